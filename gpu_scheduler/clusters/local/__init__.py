"""The cluster of one machine: a node daemon owns the learners' processes, any worker talks to it.

    driver          LocalCluster: the contract, over the daemon's socket; may die at any time
    feed            the cache of observations, fed by the daemon while there is a watch
    client          requests to the daemon
    protocol        the JSON on the socket
    daemon          the process: socket, loop, signals
    gangs           all gangs, from launch to removal
    gang            one gang: its record, its learners, its report
    journal         which gangs changed since when
    learner         one learner's two processes, from start to end
    shipper         restarts the second of them until it has delivered
    ending          how a program ended, from its spool
    context         what all learners of a daemon share
    store           what a restarted daemon must know, on disk
    processes       starting, finding, killing and measuring Linux processes
    memory_limits   the memory limit of a learner
    isolation       whether programs can be confined here, and to what
    environment     folders, addresses and devices for a learner's environment
    builder         makes one environment with uv: once, whole or not at all
    runtimes        environments of the source tree's requirement files, made on first use
    packages        a gang's environment: a runtime or a plain Python, and the job's own packages on top
    choices         the versions of packages of jobs that wait
    package_cache   which environments are removed, and when
    layers          environments on top of each other, down to the learner's own, in which pip installs
    interpreters    which Python versions this machine has
    runtime_failure why an environment could not be made
    nodes           LOCAL_NODES
    labels          which names nodes, gangs and runtimes may have

What keeps programs apart, and what does not: docs/local-cluster.md.
"""
