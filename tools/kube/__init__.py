"""A Kubernetes control plane for tests: real etcd, API server, controllers and scheduler, with fake GPU nodes.

    python -m tools.kube build          build the programs, or find them in the cache
    python -m tools.kube up             start a cluster on free loopback ports; docs/development.md has the rest

Programs come from Go modules, Go from its wheel: Python and make are all a machine needs.
"""
