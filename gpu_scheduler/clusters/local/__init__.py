"""The cluster of one machine: a node daemon owns the learners' processes, any worker talks to it.

    driver      LocalCluster, the five verbs over the daemon's socket; may die at any moment
    client      one request, one answer; ping
    protocol    the JSON on the socket
    daemon      the process: socket, loop, signals
    gangs       what the daemon does for one gang, from launch to removal
    learner     one learner's two processes, from start to end
    shipper     keeps the second of them alive until it has delivered
    ending      what the spool says of a program's end
    house       what all learners of a daemon share
    store       what a restarted daemon must know, on disk
    processes   starting, finding, killing and measuring processes of Linux
    memory      the memory limit of a learner
    environment what a training program finds in its environment
    runtimes    virtual environments made on first use
    nodes       LOCAL_NODES

Processes of one Unix user are no walls between tenants; the Kubernetes cluster is (docs/local-cluster.md).
"""
