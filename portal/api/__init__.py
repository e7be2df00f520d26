"""The REST API, /api/v1/. One function per operation, its In and Out beside it; errors, paging and doors are shared."""
