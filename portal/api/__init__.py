"""The REST API, /api/v1/: one function per operation. Errors, paging and permissions are shared."""
