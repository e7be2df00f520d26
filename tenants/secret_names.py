"""What a secret may be called. Pure: no Django, so that job specs are checked by the same rule."""

PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
RULE = "1 to 63 letters and digits, with . _ - in between"
