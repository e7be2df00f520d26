"""Whether an environment variable looks like a password, a token or a key, which belongs into a secret."""

from __future__ import annotations

import re

NAME = re.compile(
    r"(?:^|_)(?:API_?KEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(?:_ID)?$|PASSWORD|PASSWD",
    re.IGNORECASE,
)
VALUE = re.compile(
    r"(?:hf_|gh[opsur]_|github_pat_|glpat-|xox[abeprs]-|sk-|rk_live_|sk_live_|AIza|npm_|pypi-|lut_|dop_v1_)[\w-]{12,}"
    r"|(?:AKIA|ASIA)[0-9A-Z]{12,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|[A-Za-z]://[^\s/:@]{0,100}:[^\s/@]{1,200}@",
    re.ASCII,
)
"""The prefixes that well-known services give their keys, a signed web token, a private key, an address with a
password."""
PLAIN = re.compile(r"(?i)\s*(?:[-+.\d]+(?:e[-+]?\d+)?|true|false|yes|no|on|off|none|null)?\s*", re.ASCII)
"""A number or a switch: what MAX_TOKEN or USE_KEY may hold."""


def looks_like_key(name: str, value: str) -> bool:
    """True if the name or the value suggests it; the value of a key-like name may be anything but a number."""
    if VALUE.search(value):
        return True
    return bool(NAME.search(name)) and not PLAIN.fullmatch(value)
