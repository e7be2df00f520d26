"""Changes to tenants, members and quotas. Each checks for itself what its caller may do, and leaves an audit row."""
