"""Which relative paths are safe to create below a folder: shared by specs and uploaded archives."""

from __future__ import annotations

import unicodedata

MAX_PATH_CHARS = 240
MAX_NAME_BYTES = 255
MAX_PATH_DEPTH = 32


def path_fault(path: str) -> str | None:
    """Say why a relative path may not be used, or None when it may.

    Safe means: it stays below its folder on every file system, and reads as what it is.
    """
    if not path:
        return "is empty"
    if "\x00" in path:
        return "contains a NUL character"
    if len(path) > MAX_PATH_CHARS:
        return f"is longer than {MAX_PATH_CHARS} characters"
    if any(_is_invisible(character) for character in path):
        return "contains a control or invisible character"
    if "\\" in path:
        return "contains a backslash; separate folders with /"
    if path.startswith(("/", "~")) or path[1:2] == ":":
        return "is absolute; write it relative to the folder"
    return _parts_fault(path.split("/"))


def folded(path: str) -> str:
    """Return the form in which two paths that some file system takes for one are equal."""
    return unicodedata.normalize("NFC", path).casefold()


def _parts_fault(parts: list[str]) -> str | None:
    if len(parts) > MAX_PATH_DEPTH:
        return f"is nested deeper than {MAX_PATH_DEPTH} folders"
    if ".." in parts:
        return "leaves its folder with .."
    if "" in parts or "." in parts:
        return "has an empty or . part; write it in its shortest form"
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "has a part that ends with a dot or begins or ends with a space"
    if any(len(part.encode("utf-8", "surrogatepass")) > MAX_NAME_BYTES for part in parts):
        return f"has a part longer than {MAX_NAME_BYTES} bytes"
    return None


def _is_invisible(character: str) -> bool:
    return unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"} or character in "⁄∕⧸"
