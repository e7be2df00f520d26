"""The admin console: tenants, limits, people and what happened. For platform admins; to others it does not exist."""
