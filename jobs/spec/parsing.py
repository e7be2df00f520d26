"""From submitted text to a valid Spec, or to all that is wrong with it. JSON is read here, YAML in yaml_reader."""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from jobs.spec import yaml_reader
from jobs.spec.definition import json_schema
from jobs.spec.key_like import looks_like_key
from jobs.spec.model import Spec, build, written
from jobs.spec.problems import MAX_GATHERED, MAX_PROBLEMS, Path, Problem, SpecError, path_text, printable
from jobs.spec.quantities import BadNumber, parse_duration, read_float, read_int
from jobs.spec.rules import foreign_manifest, rule_faults
from jobs.spec.walk import Walk

JSON = "application/json"
YAML = "application/yaml"
YAML_TYPES = frozenset({YAML, "application/x-yaml", "text/yaml", "text/x-yaml"})

KEY_IN_ENV = "looks like a key, which all who can view the job can read: store it as a secret, and name that in secrets"
SAVES_NOTHING = (
    "is set, but nothing in the code, the command or env mentions checkpoints: a job that saves none loses its work"
    " each time it is stopped for another"
)
INTERPRETERS = frozenset({"python", "python3"})
_PLAIN = re.compile(r"[\w./=,: +@%-]*")
"""A command without anything that a shell would act on."""
MAX_BYTES = 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 20_000
MAX_JSON_VALUES = 10_000
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]|,', re.DOTALL)
_SCHEMA = json_schema()


@dataclass(frozen=True, slots=True)
class Document:
    """A document: its value, line and column of its parts (YAML), and the problems of its form."""

    value: Any
    places: Mapping[Path, tuple[int, int]]
    problems: tuple[Problem, ...]


def parse(source: str | bytes | Mapping[str, Any], content_type: str | None = None) -> Spec:
    """Read and check a job spec.

    source: YAML or JSON as text or bytes, or an object already read. content_type: a Content-Type header;
    None takes an object as it is, and detects JSON or YAML by the first character.
    Raises SpecError with every problem at once, at most 50, in the order of the document.
    """
    document = _read(source, content_type)
    walk = Walk(document.places)
    if not isinstance(document.value, Mapping):
        message = "a job spec is a mapping of keys to values"
        problem = walk.problem((), "wrong_type", message, document.value, "apiVersion, name, command, …")
        raise SpecError([*document.problems, problem])
    problems = [*document.problems, *islice(_faults(document, walk), MAX_GATHERED)]
    if problems:
        in_order = sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        raise SpecError(in_order, document.value)
    return build(document.value, tuple(_warnings(document.value, walk)))


def _faults(document: Document, walk: Walk) -> Iterator[Problem]:
    """Yield what is wrong with the content: one problem per field, the most useful first."""
    foreign = foreign_manifest(document.value, walk)
    if foreign:
        yield foreign
        return
    reported = {problem.path for problem in document.problems if problem.code != "duplicate_key"} - {""}
    for faults in (walk.faults(document.value, _SCHEMA), rule_faults(document.value, walk)):
        fresh = [problem for problem in islice(faults, MAX_GATHERED) if problem.path not in reported]
        yield from fresh
        reported.update(problem.path for problem in fresh)


def _warnings(value: Mapping[str, Any], walk: Walk) -> Iterator[Problem]:
    for name, item in value.get("env", {}).items():
        if not isinstance(item, str):
            message = f'is a number or true/false; the program sees the string "{printable(written(item))}"'
            yield walk.problem(("env", name), "env_not_text", message, written(item))
        if looks_like_key(name, written(item)):
            yield walk.problem(("env", name), "env_looks_secret", KEY_IN_ENV)  # its value is not repeated
    path: Path = ("image",)
    if str(value.get("image", "")).endswith(":latest"):
        message = "The tag latest changes without notice, so a resumed attempt may run something else"
        yield walk.problem(path, "image_latest", message, value["image"])
    checkpoint = value.get("checkpoint", {})
    if "time_limit" in value and "every" in checkpoint and _shorter(value["time_limit"], checkpoint["every"]):
        message = "is longer than the time limit, so the job may end before its first checkpoint"
        yield walk.problem(("checkpoint", "every"), "checkpoint_after_limit", message, checkpoint["every"])
    if value.get("opportunistic") and not _may_save(value):
        yield walk.problem(("opportunistic",), "checkpoints_not_found", SAVES_NOTHING)
    if missing := _missing_program(value):
        message = f"runs {printable(missing)}, which is not among the files of the code"
        yield walk.problem(("command",), "program_not_in_code", message, missing)


def _missing_program(value: Mapping[str, Any]) -> str:
    """The file that a plain call of Python names and that the inline code does not have; "" if there is none, or if it
    may come from elsewhere: an archive, a command that runs before."""
    files, command = value.get("code", {}).get("files"), value["command"]
    if files is None or value.get("setup"):
        return ""
    words = (
        command if isinstance(command, list) else command.split() if _PLAIN.fullmatch(command.strip()) else []
    )
    words = [word for word in words[1:] if word != "-u"] if words and words[0] in INTERPRETERS else []
    name = words[0] if words else ""
    known = {posixpath.normpath(path) for path in files}
    return name if name.endswith(".py") and name[0] != "/" and posixpath.normpath(name) not in known else ""


def _may_save(value: Mapping[str, Any]) -> bool:
    """Whether the job may save checkpoints, by what can be read of it: how a program saves always has the word in it
    (training.checkpoint, CHECKPOINT_DIR). What an archive or an image holds is not known."""
    code = value.get("code", {})
    if "files" not in code:
        return True
    texts = (*code["files"].values(), value["command"], value.get("setup", ()), value.get("env", {}))
    return any("checkpoint" in str(text).lower() for text in texts)


def _shorter(one: str, other: str) -> bool:
    return parse_duration(one) < parse_duration(other)


def _read(source: str | bytes | Mapping[str, Any], content_type: str | None = None) -> Document:
    """Read a spec. content_type None: an object as it is; text by its first character ({ means JSON).

    Raises SpecError if nothing can be read; else the document lists its problems.
    """
    if not isinstance(source, str | bytes):
        return Document(source, {}, _value_problems(source, {}))
    kind = _media_type(content_type)
    limit = yaml_reader.MAX_BYTES if kind == YAML else MAX_BYTES
    text = _decode(source, limit)
    if kind is None:
        kind = JSON if text.lstrip()[:1] == "{" else YAML
        _decode(source, yaml_reader.MAX_BYTES if kind == YAML else MAX_BYTES)
    reader: Any = yaml_reader.YamlReader(text) if kind == YAML else JsonReader(text)
    value = reader.read()
    places = getattr(reader, "places", {})
    return Document(value, places, (*reader.problems, *_value_problems(value, places)))


def _media_type(content_type: str | None) -> str | None:
    """Return JSON or YAML for a Content-Type header. Raises SpecError for any other."""
    if content_type is None:
        return None
    bare = content_type.split(";")[0].strip().lower()
    if bare in YAML_TYPES:
        return YAML
    if bare == JSON or bare.endswith("+json"):
        return JSON
    message = "a job spec is sent as JSON or YAML"
    problem = Problem("", "media_type", message, got=printable(bare), allowed=f"{JSON} or {YAML}")
    raise SpecError([problem])


def _decode(source: str | bytes, limit_bytes: int) -> str:
    """Return the text. Raises SpecError for too many bytes, byte order marks, UTF-16 and bad UTF-8."""
    size = len(source) if isinstance(source, bytes) else len(source.encode("utf-8", "surrogatepass"))
    if size > limit_bytes:
        message = f"the spec has {size} bytes; upload large code as an archive and name it in code.upload"
        raise _refused("spec_too_large", message, allowed=f"at most {limit_bytes} bytes")
    if isinstance(source, str):
        text = source
    elif source[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\x00" in source[:2]:
        raise _refused("encoding_not_utf8", "the document is UTF-16 or UTF-32: save it as UTF-8")
    else:
        try:
            text = source.decode("utf-8")
        except UnicodeDecodeError as error:
            message = f"the document is not UTF-8: byte {error.start} is {source[error.start]:#04x}"
            raise _refused("encoding_not_utf8", message) from error
    if text[:1] == "\ufeff":
        raise _refused("byte_order_mark", "the document begins with a byte order mark: save it without")
    if not text.strip():
        raise _refused("body_empty", "the document is empty")
    return text


def _value_problems(value: Any, places: Mapping[Path, tuple[int, int]]) -> tuple[Problem, ...]:
    return tuple(islice(_find_value_problems(value, places), MAX_GATHERED))


def _find_value_problems(value: Any, places: Mapping[Path, tuple[int, int]]) -> Iterator[Problem]:
    """Find what no field may hold: numbers that are none, lone surrogates, NUL, endless nesting.

    Walks with an explicit stack and stops at MAX_VALUES, so an object may be handed over unread.
    """
    stack: list[tuple[Path, Any]] = [((), value)]
    seen = 0
    while stack:
        path, item = stack.pop()
        seen += 1
        waiting = seen + len(stack) + (len(item) if isinstance(item, Mapping | list | tuple) else 0)
        if waiting > MAX_VALUES or len(path) > MAX_DEPTH:
            code = "body_too_large" if waiting > MAX_VALUES else "body_too_deep"
            raise _refused(code, "the document has too many values or is nested too deep")
        fault = _value_fault(item)
        if fault:
            line, column = places.get(path, (None, None))
            yield Problem(path_text(path), *fault, got=printable(_shown(item)), line=line, column=column)
        if isinstance(item, Mapping):
            stack.extend(((*path, str(key)), part) for key, part in reversed(list(item.items())))
            yield from _key_problems(path, item)
        elif isinstance(item, list | tuple):
            stack.extend(((*path, index), part) for index, part in reversed(list(enumerate(item))))


def _key_problems(path: Path, item: Mapping[Any, Any]) -> Iterator[Problem]:
    for key in item:
        fault = _value_fault(key) if isinstance(key, str) else ("key_not_text", "a key must be a string")
        if fault:
            yield Problem(path_text(path), *fault, got=printable(key))


def _value_fault(value: Any) -> tuple[str, str] | None:
    if isinstance(value, BadNumber) or (isinstance(value, float) and value - value != 0):
        return "number_not_finite", "is not a finite number that can be held exactly"
    if isinstance(value, str):
        if "\x00" in value:
            return "nul_forbidden", "contains a NUL character"
        if any("\ud800" <= character <= "\udfff" for character in value):
            return "lone_surrogate", "contains half of a surrogate pair, which is no character"
    return None


def _shown(value: Any) -> Any:
    return value.text if isinstance(value, BadNumber) else value


def _refused(code: str, message: str, allowed: str | None = None) -> SpecError:
    return SpecError([Problem("", code, message, allowed=allowed)])


class JsonReader:
    """Reads one JSON text to plain values, strictly: what Python's parser lets pass is found and named.

    Problems gather as in the YAML reader, without places.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.problems: list[Problem] = []

    def read(self) -> Any:
        """Return the value. Raises SpecError where the text is no JSON, too deep or too large."""
        self._refuse_size()
        try:
            return json.loads(
                self.text,
                object_pairs_hook=self._mapping,
                parse_constant=BadNumber,
                parse_float=read_float,
                parse_int=read_int,
            )
        except json.JSONDecodeError as error:
            message = f"the body is not JSON: {error.msg}"
            problem = Problem("", "body_not_json", message, line=error.lineno, column=error.colno)
            raise SpecError([problem]) from error

    def _mapping(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            for name in [name for name, count in counts.items() if count > 1][:MAX_PROBLEMS]:
                shown = printable(name)
                self.problems.append(Problem(shown, "duplicate_key", f"the key {shown} is given twice"))
        return value

    def _refuse_size(self) -> None:
        """Count depth and values before anything is built. A key and its value are two texts at most."""
        depth = 0
        counts = {",": 0, '"': 0}
        for token in _TOKEN.finditer(self.text):
            character = token[0][0]
            if character in "[{":
                depth += 1
                if depth > MAX_DEPTH:
                    message = f"the body is nested deeper than {MAX_DEPTH} levels"
                    raise SpecError([Problem("", "body_too_deep", message)])
            elif character in "]}":
                depth -= 1
            else:
                counts[character] += 1
                if counts[","] > MAX_JSON_VALUES or counts['"'] > 2 * MAX_JSON_VALUES:
                    message = f"the body has more than {MAX_JSON_VALUES} values"
                    raise SpecError([Problem("", "body_too_large", message)])
