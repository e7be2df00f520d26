"""The Kubernetes driver: a gang is a headless Service, a Secret and one pod per learner, in its tenant's namespace.

`settings` reads the variables, `manifests` makes the objects, `reports` and `nodes` read objects back, `client` is the
only module that speaks to an API server, `watching` keeps its pods and nodes in memory, `driver` is the contract.
"""
