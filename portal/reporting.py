"""Report unexpected errors to SENTRY_DSN; without it the SDK is not imported."""


def start_reporting(dsn: str | None) -> bool:
    """Report errors of requests and tasks without personal or job data. Returns whether reporting is on."""
    if dsn is None:
        return False
    import sentry_sdk

    sentry_sdk.init(
        dsn=dsn,
        send_default_pii=False,
        include_local_variables=False,  # they hold specs, tokens and log lines
        max_request_body_size="never",
        traces_sample_rate=0,
    )
    return True
