"""Unexpected errors are reported where SENTRY_DSN says; without it the reporter is not even loaded."""


def start_reporting(dsn: str | None) -> bool:
    """Report errors of requests and tasks, without people's data or the job's. Returns whether reporting is on."""
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
