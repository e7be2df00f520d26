"""The front end's bundle: its files have a hash of their content in their names, and a manifest gives the names."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from django.conf import settings
from django.contrib.staticfiles.storage import StaticFilesStorage

BUNDLE = "dist/"


class BundleStorage(StaticFilesStorage):
    """Addresses of static files: `dist/app.js` is the bundle's newest `app.js`, every other name is its own file."""

    @cached_property
    def files(self) -> dict[str, str]:
        """Plain name → file below dist/; empty where nothing is bundled, or a bundler watches the sources."""
        manifest = settings.BASE_DIR / "static" / BUNDLE / "manifest.json"
        if not manifest.exists():
            return {}
        found: dict[str, Any] = json.loads(manifest.read_text())
        return {name: entry["file"] for name, entry in found.items()}

    def url(self, name: str | None) -> str:
        """Raises ValueError for a file that the bundle does not have."""
        if name and name.startswith(BUNDLE) and self.files:
            plain = name.removeprefix(BUNDLE)
            if plain not in self.files:
                raise ValueError(f"static/dist has no {plain!r}: run `make front-end`, then restart.")
            name = BUNDLE + self.files[plain]
        return super().url(name)
