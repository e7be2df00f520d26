"""Print a spec as YAML that a person would have written: short, code as a block, in the usual order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from jobs.spec.definition import json_schema
from jobs.spec.model import Spec


class _Dumper(yaml.SafeDumper):
    """Writes several lines as a block and never an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def in_order(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The same spec with its keys as the format lists them: a database column forgets the order."""
    return dict(_in_order(spec, json_schema()))


def _in_order(value: Any, schema: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    known = schema.get("properties", {})
    keys = [key for key in known if key in value] + [key for key in value if key not in known]
    return {key: _in_order(value[key], known.get(key, {})) for key in keys}


def to_yaml(spec: Spec | Mapping[str, Any]) -> str:
    """Return YAML which parses to an equal spec; keys stay in the order of the format."""
    value = spec.normalized if isinstance(spec, Spec) else dict(spec)
    return yaml.dump(in_order(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
