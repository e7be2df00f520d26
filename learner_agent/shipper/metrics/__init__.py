"""Where metric points come from: metrics.jsonl (`reported`), rules over the log (`log_rules`), TensorBoard files."""
