"""Settings, all from the environment: `env` reads and judges it, `base` turns it into Django's names."""
