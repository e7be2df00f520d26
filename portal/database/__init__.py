"""Django's PostgreSQL engine with a connection pool, and the threads that use it."""
