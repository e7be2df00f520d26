"""Everything that is read of jobs and the cluster. Fetching is the permission check: outsiders get JobNotFound.

* jobs, serializers, redaction: which jobs a user can see, as which JSON, and what is hidden outside the tenant
* wait_reasons, queue, snapshot, throughput, what_if, suggestions: why a job waits, its position, and when it starts
* validation, installation, cluster, usage: what a spec is checked against, what exists, what is used
* logs (log_lines, log_cache), metrics, checkpoints, results: what a job has produced
"""
