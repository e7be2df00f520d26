"""Settings, all from the environment: `env` reads and validates them, `base` maps them to Django's names."""
