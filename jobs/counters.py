"""What this process has counted since its start, for /metrics: in memory, by one process, lost with it.

Whatever the database knows is read from there instead (jobs.selectors.monitoring), so that all processes show the same.
"""

from prometheus_client import CollectorRegistry, Counter

REGISTRY = CollectorRegistry(auto_describe=False)

INGEST_LINES = Counter("luthier_ingest_lines", "Log lines stored.", registry=REGISTRY)
INGEST_BYTES = Counter("luthier_ingest_bytes", "Bytes of log stored, uncompressed.", registry=REGISTRY)
INGEST_POINTS = Counter(
    "luthier_ingest_points", "Metric points stored; a repeated one counts again.", registry=REGISTRY
)
INGEST_COMMITS = Counter("luthier_ingest_commits", "Commits of learners' frames.", registry=REGISTRY)
INGEST_WAITS = Counter(
    "luthier_ingest_waits", "Commits that failed because the database was away.", registry=REGISTRY
)
INGEST_REFUSED = Counter("luthier_ingest_refused", "Frames that could not be stored.", registry=REGISTRY)
HTTP_RESPONSES = Counter(
    "luthier_http_responses", "HTTP responses by class of status.", ["status"], registry=REGISTRY
)


def count_response(status: int) -> None:
    """Count an HTTP response; every status is one of five classes."""
    HTTP_RESPONSES.labels(f"{status // 100}xx").inc()
