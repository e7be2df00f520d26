"""YAML to plain values, with the place of every value, in bounded time and memory.

A job spec needs mappings, lists and scalars, nothing else. Reading events instead of building objects lets
us refuse the rest (anchors, aliases, tags, merge keys, several documents) at its own line and column, and
stop at the first event too deep or too many: nothing is ever expanded or constructed.
Scalars follow YAML 1.2's core rules, so ``no``, ``on`` and ``1:30`` stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from jobs.spec.problems import MAX_GATHERED, Path, Problem, SpecError, path_text, printable
from jobs.spec.quantities import BadNumber, read_float, read_int

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_VALUES = 4_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_A_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: value
    for value, words in ((True, ("true", "True", "TRUE")), (False, ("false", "False", "FALSE")))
    for word in words
}


@dataclass
class _Open:
    """A mapping or list that is still being read."""

    value: Any
    path: Path
    key: str | None = None
    keys: dict[str, int] = field(default_factory=dict)
    is_root: bool = False

    @property
    def expects_key(self) -> bool:
        return isinstance(self.value, dict) and self.key is None

    @property
    def next_path(self) -> Path:
        """Path of the value that comes next; of the container itself while a key is awaited."""
        if self.is_root or self.expects_key:
            return self.path
        return (*self.path, len(self.value) if self.key is None else self.key)

    def add(self, value: Any) -> None:
        if self.key is None:
            self.value.append(value)
        else:
            self.value[self.key] = value
            self.key = None


class YamlReader:
    """Reads one document; problems gather, so a second duplicate key is reported as well as the first."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.places: dict[Path, tuple[int, int]] = {}
        self.problems: list[Problem] = []

    def read(self) -> Any:
        """Return the document's value; self.problems then holds what is wrong with its form.

        Raises SpecError at once where reading on makes no sense: syntax, depth, number of values.
        """
        try:
            value = self._build()
        except yaml.MarkedYAMLError as error:
            raise SpecError([*self.problems, self._syntax_problem(error)]) from error
        except yaml.reader.ReaderError as error:
            raise SpecError([self._character_problem(error)]) from error
        return value

    def _build(self) -> Any:
        """Walk the events with an explicit stack: no recursion, whatever the nesting."""
        root = _Open([], (), is_root=True)
        stack = [root]
        documents = 0
        for event in self._events():
            match event:
                case yaml.DocumentStartEvent():
                    documents += 1
                    if documents > 1:
                        self._stop(event, "yaml_several_documents", "keep one document; remove the ---")
                    if event.tags or event.version:
                        self._note(event, (), "yaml_directive_forbidden", "% directives are not read")
                case yaml.AliasEvent():
                    self._alias(stack[-1], event)
                case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                    self._open(stack, event)
                case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                    stack.pop()
                case yaml.ScalarEvent():
                    self._scalar(stack[-1], event)
        return root.value[0] if root.value else None

    def _events(self) -> Iterator[Any]:
        loader = _LOADER(self.text)
        nodes = 0
        try:
            while loader.check_event():
                event = loader.get_event()
                nodes += isinstance(event, yaml.NodeEvent)
                if nodes > MAX_VALUES:
                    self._stop(event, "body_too_large", f"the document has more than {MAX_VALUES} values")
                yield event
        finally:
            loader.dispose()

    def _alias(self, parent: _Open, event: Any) -> None:
        message = f"aliases are not allowed: write the value out instead of *{printable(event.anchor)}"
        self._note(event, parent.next_path, "yaml_alias_forbidden", message)
        if parent.expects_key:
            parent.key = f"*{event.anchor}"
        else:
            parent.add(None)

    def _open(self, stack: list[_Open], event: Any) -> None:
        parent = stack[-1]
        self._refuse_decoration(parent, event)
        if len(stack) > MAX_DEPTH:
            self._stop(event, "body_too_deep", f"the document is nested deeper than {MAX_DEPTH} levels")
        if parent.expects_key:
            self._stop(event, "yaml_key_not_text", "a key must be a string, not a mapping or a list")
        path = parent.next_path
        self.places.setdefault(path, _place(event))
        value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        parent.add(value)
        stack.append(_Open(value, path))

    def _scalar(self, parent: _Open, event: Any) -> None:
        self._refuse_decoration(parent, event)
        if parent.expects_key:
            self._key(parent, event)
        else:
            self.places[parent.next_path] = _place(event)
            parent.add(scalar_value(event.value, plain=event.implicit[0]))

    def _key(self, parent: _Open, event: Any) -> None:
        key = event.value
        here = (*parent.path, key)
        if event.implicit[0] and key == "<<":
            self._note(event, here, "yaml_merge_forbidden", "merge keys are not allowed: write the keys out")
        elif key in parent.keys:
            message = f"is given twice; it was first given in line {parent.keys[key]}"
            self._note(event, here, "duplicate_key", message)
        parent.keys.setdefault(key, event.start_mark.line + 1)
        self.places.setdefault(here, _place(event))
        parent.key = key

    def _refuse_decoration(self, parent: _Open, event: Any) -> None:
        path = parent.next_path
        if event.anchor is not None:
            message = f"anchors are not allowed: remove &{event.anchor}"
            self._note(event, path, "yaml_anchor_forbidden", message)
        if event.tag is not None:
            message = f"tags are not allowed: remove {printable(event.tag)}"
            self._note(event, path, "yaml_tag_forbidden", message)

    def _note(self, event: Any, path: Path, code: str, message: str) -> None:
        line, column = _place(event)
        self.problems.append(Problem(path_text(path), code, message, line=line, column=column))
        if len(self.problems) >= MAX_GATHERED:
            raise SpecError(self.problems)

    def _stop(self, event: Any, code: str, message: str) -> None:
        self._note(event, (), code, message)
        raise SpecError(self.problems)

    def _syntax_problem(self, error: yaml.MarkedYAMLError) -> Problem:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        if mark and _character_at(self.text, mark.line, mark.column) == "\t":
            message = "a tab cannot indent YAML: use spaces"
            return Problem("", "yaml_tab", message, line=line, column=column)
        message = f"the document is not valid YAML: {error.problem or 'unexpected end'}"
        if error.context:
            message += f" ({error.context})"
        return Problem("", "yaml_syntax", message, line=line, column=column)

    def _character_problem(self, error: yaml.reader.ReaderError) -> Problem:
        position = error.position if isinstance(error.position, int) else 0
        before = self.text.encode("utf-8", "surrogatepass")[:position].decode("utf-8", "ignore")
        line = before.count("\n") + 1
        column = len(before) - (before.rfind("\n") + 1) + 1
        message = "the document contains a control character that YAML does not allow"
        return Problem("", "yaml_control_character", message, line=line, column=column)


def scalar_value(text: str, *, plain: bool) -> Any:
    """Return the value of a scalar; a number or word keeps its literal text beside it."""
    if not plain:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return read_int(text)
    if _NOT_A_NUMBER.fullmatch(text):
        return BadNumber(text)
    if _FLOAT.fullmatch(text):
        return read_float(text)
    return text


def _place(event: Any) -> tuple[int, int]:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _character_at(text: str, line: int, column: int) -> str:
    lines = text.split("\n")
    return lines[line][column : column + 1] if line < len(lines) else ""
