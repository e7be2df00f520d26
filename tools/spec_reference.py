"""Write the fields and codes of a job spec into docs/job-spec.md; the text around the tables is written by hand.

The tables come from the definition that the validator interprets, so the page says what is checked. With
--check nothing is written and the exit code says whether the page is up to date.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from jobs.spec import codes, json_schema  # noqa: E402

PAGE = ROOT / "docs" / "job-spec.md"
SECTION = re.compile(r"(<!-- (?P<name>fields|[a-z]+ codes) -->\n).*?(<!-- end -->)", re.DOTALL)
UNITS = {"duration": "duration", "memory": "amount of memory"}


def main() -> int:
    tables = {
        "fields": field_table(json_schema()),
        "document codes": code_table(codes.DOCUMENT),
        "field codes": code_table(codes.FIELDS),
        "installation codes": code_table(codes.INSTALLATION),
        "warning codes": code_table(codes.WARNINGS),
    }
    text = PAGE.read_text()
    missing = tables.keys() - {match["name"] for match in SECTION.finditer(text)}
    if missing:
        print(f"docs/job-spec.md has no section for {', '.join(sorted(missing))}", file=sys.stderr)
        return 1
    written = SECTION.sub(lambda match: f"{match[1]}{tables[match['name']]}{match[3]}", text)
    if "--check" in sys.argv:
        if written != text:
            print("docs/job-spec.md is older than jobs/spec; run `make docs`", file=sys.stderr)
        return int(written != text)
    PAGE.write_text(written)
    return 0


def field_table(schema: dict) -> str:
    """One row per field, parents before children: name, what it takes, default, meaning."""
    lines = ["| field | takes | default | meaning |", "|---|---|---|---|"]
    for path, field, required in fields(schema):
        default = f"`{json.dumps(field['default'])}`" if "default" in field and not children(field) else ""
        if required:
            default = "required"
        lines.append(f"| `{path}` | {takes(field)} | {default} | {field['description']} |")
    return "\n".join(lines) + "\n"


def fields(schema: dict, prefix: str = "") -> list:
    rows = []
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}{name}"
        rows.append((path, field, name in schema.get("required", ())))
        rows += fields(field, f"{path}.")
        rows += fields(field.get("items", {}), f"{path}[].")
    return rows


def takes(field: dict) -> str:
    """Say in words what a field's schema takes."""
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return ", ".join(f"`{choice}`" for choice in field["enum"])
    if "oneOf" in field and field["oneOf"][0]["type"] == "array":
        listed, mapping = field["oneOf"]
        keys = ", ".join(f"{{{name}: …}}" for name in mapping["properties"])
        return f"{takes(listed)}; or `{keys}`"
    if "oneOf" in field and field["oneOf"][0]["type"] == "integer":
        number, ends = field["oneOf"]
        return f"{takes(number)}; or `{{{', '.join(f'{name}: …' for name in ends['properties'])}}}`"
    if "oneOf" in field:
        return f"string, at most {field['oneOf'][0]['maxLength']} characters; or a list of strings"
    if "x-unit" in field:
        return f"{UNITS[field['x-unit']]}, {field['x-minimum']} to {field['x-maximum']}"
    match field["type"]:
        case "boolean":
            return "true or false"
        case "integer":
            return f"whole number, {field['minimum']} to {field['maximum']}"
        case "array":
            entries = "mappings" if "properties" in field["items"] else "strings"
            return f"list of at most {field['maxItems']} {entries}" + (help_of(field["items"]))
        case "object":
            if children(field):
                return "exactly one of its keys" if field.get("maxProperties") == 1 else "mapping"
            return f"mapping of at most {field['maxProperties']} names to strings"
    limit = f", at most {field['maxLength']} characters" if "maxLength" in field else ""
    return f"string{limit}{help_of(field)}"


def help_of(field: dict) -> str:
    return f": {field['x-help']}" if "x-help" in field else ""


def children(field: dict) -> bool:
    return "properties" in field or "properties" in field.get("items", {})


def code_table(meanings: dict) -> str:
    rows = [f"| `{code}` | {meaning} |" for code, meaning in meanings.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
