from typing import Any

class CONSTANTS:
    TOKEN_KEY_LENGTH: int
    DIGEST_LENGTH: int
    MAXIMUM_TOKEN_PREFIX_LENGTH: int

knox_settings: Any
