"""Django's PostgreSQL, with connections that a web process keeps between requests."""
