"""One protocol, several drivers: memory and local today, Kubernetes next."""
