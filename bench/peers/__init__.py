"""Other systems, run beside the platform on the same machine: one command for each, which starts and ends it itself."""
