"""A copy of an installation that can be started again: the database, the stored files, and the keys."""
