"""How much work a regular expression can make on one line, at worst: an upper bound, read off its structure.

Python's matcher tries one way through a pattern after the other. The walk below follows the pattern from left to
right and keeps how many ways can lead to each point. Two repeats that can take the same characters multiply them,
unless something stands between that the later one cannot take: then it can begin at one place only. The search,
which begins at every character, counts like a repeat in front. What no longer can fail costs nothing: then the first
way is the match.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from re import _compiler as compiler  # type: ignore[attr-defined]  # not in the stubs
from re import _constants as op  # type: ignore[attr-defined]  # not in the stubs
from re import _parser as parser  # type: ignore[attr-defined]  # not in the stubs
from typing import Any

MATCHED_CHARS = 4096
MAX_WORK = 13 * MATCHED_CHARS**2
"""Steps on one line: a fraction of a second."""
MAX_PARTS = 10_000
GROUP = 6
"""A choice, or one turn of a repeated group, costs the matcher as much as so many single characters."""
FEW = 16
"""Characters that a narrow repeat right before ``.*`` is taken to hold: nobody prints numbers of thousands of
digits, ``\\d+.*loss`` is what people write, and for whoever does print them the shipper keeps a clock."""

REPEATS = frozenset({op.MAX_REPEAT, op.MIN_REPEAT, op.POSSESSIVE_REPEAT})
_CHARS = frozenset({op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN})
_CLASSES = {
    op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s",
    op.CATEGORY_NOT_SPACE: r"\S", op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_SIGNS = {op.MAX_REPEAT: "", op.MIN_REPEAT: "?", op.POSSESSIVE_REPEAT: "+"}
_SAMPLES = "".join(map(chr, range(0x180))) + "\u0663\u2003\u2028\u212a\u4e2d\uff10\U0001f600"
"""With the pattern's own characters, at least one of every kind that two classes can have in common."""


class TooMuchWork(Exception):
    """What it says continues "metrics.pattern …"."""


@dataclass(frozen=True)
class _Part:
    """Something that takes characters: which may come first and last, and how many."""

    first: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    least: int = 0
    most: int = 0
    varies: bool = False
    is_wild: bool = False
    is_boundary: bool = False
    name: str = ""


@dataclass(frozen=True)
class _Open:
    """A repeat whose end is not settled yet, and how matters stood before it."""

    chars: frozenset[str]
    places: int
    paths: int
    offset: int = 0


@dataclass(frozen=True)
class _Reach:
    """How a point can be reached: at how many places of the line, in how many ways at one place and in all."""

    places: int = MATCHED_CHARS
    ways: int = 1
    paths: int = MATCHED_CHARS
    open: tuple[_Open, ...] = ()
    streak: tuple[frozenset[str], ...] = ()
    """Fixed characters since the last repeat of which no two can be the same."""
    before: tuple[_Part, ...] = ()


def check_work(tree: Any) -> None:
    """Raise TooMuchWork for a parsed pattern that a line can make slow. Its repeats hold no choices themselves."""
    _Walk(_alphabet(tree)).sequence(list(tree), _Reach(), tree.state.flags, rest=False)


@dataclass
class _Walk:
    alphabet: str
    work: int = 0
    parts: int = 0
    clash: tuple[int, str, str] = (1, "", "")
    """The costliest two parts that can take the same characters, or one that can begin at every character."""
    sets: dict[str, frozenset[str]] = field(default_factory=dict)

    def sequence(self, nodes: list[Any], reach: _Reach, flags: int, *, rest: bool) -> _Reach:
        """Walk over parts that follow each other; rest says that something after them can fail."""
        for index, (code, argument) in enumerate(nodes):
            self._count(0)
            fails = rest or any(not _is_optional(later) for later in nodes[index + 1 :])
            if code in _CHARS:
                reach = self._fixed(self._chars((code, argument), flags), (code, argument), reach)
            elif code is op.AT:
                reach = self._at(argument, reach, flags)
            elif code is op.SUBPATTERN:
                _, added, removed, body = argument
                reach = self.sequence(list(body), reach, (flags | added) & ~removed, rest=fails)
            elif code is op.ATOMIC_GROUP:
                reach = self.sequence(list(argument), reach, flags, rest=fails)
            elif code is op.BRANCH:
                reach = self._branch(argument[1], reach, flags, fails)
            elif code in REPEATS:
                reach = self._repeat(code, argument, reach, flags, fails)
        return reach

    def _count(self, work: int) -> None:
        self.work += work
        self.parts += 1
        if self.work <= MAX_WORK and self.parts <= MAX_PARTS:
            return
        if self.parts > MAX_PARTS:
            raise TooMuchWork("is too long when its repeats are written out")
        _, later, earlier = self.clash
        if not later:
            raise TooMuchWork("has too many alternatives that can match the same text")
        if not earlier:
            raise TooMuchWork(
                f"can take very long on one line, because {later} can begin at every character: put \\b or fixed "
                "text that it cannot match before it, such as loss="
            )
        raise TooMuchWork(
            f"can take very long on one line, because {later} can take the same characters as {earlier} before it: "
            "join them, or put fixed text between them that they cannot match"
        )

    def _fixed(self, chars: frozenset[str], node: Any, reach: _Reach) -> _Reach:
        """One character that must be there. One that an open repeat cannot take settles where that ends."""
        self._count(reach.paths)
        places, paths = reach.places, reach.paths
        for begun in reversed(reach.open):
            if chars & begun.chars:
                break
            places = min(places, begun.places * (begun.offset + 1))
            paths = min(paths, begun.paths * (begun.offset + 1))
        streak = reach.streak
        if not any(chars & other for other in streak):
            streak = (*streak, chars)
            places = min(places, MATCHED_CHARS // len(streak))
        return replace(
            reach,
            places=places,
            paths=min(paths, reach.ways * places),
            open=tuple(replace(begun, offset=begun.offset + 1) for begun in reach.open),
            streak=streak,
            before=(*reach.before, _Part(chars, chars, 1, 1, name=_text(node))),
        )

    def _repeat(self, code: Any, argument: Any, reach: _Reach, flags: int, fails: bool) -> _Reach:
        least, most, body = argument
        if least == most:
            for _ in range(least):
                self._count(0 if len(body) == 1 and body[0][0] in _CHARS else GROUP * reach.paths)
                reach = self.sequence(list(body), reach, flags, rest=fails)
            return reach
        parts = self._body(body, flags)
        if most == 1 and len(parts) != 1:
            return self._branch([body, []], reach, flags, fails)
        if not parts:
            raise TooMuchWork("repeats nothing")
        chars = frozenset().union(*(part.first for part in parts))
        is_wild = len(parts) == 1 and body[0][0] is op.ANY
        part = _Part(
            parts[0].first, parts[-1].last, least * len(parts), MATCHED_CHARS, varies=True, is_wild=is_wild,
            name=_text((code, argument)),
        )  # fmt: skip
        width = MATCHED_CHARS if most == op.MAXREPEAT else most - least + 1
        begins = self._begins(part, chars, reach, width)
        if not fails:
            self._count(reach.paths * max(1, least))
            return replace(reach, open=(), streak=(), before=(*reach.before, part))
        ways = min(reach.paths, reach.ways * begins)
        places = min(MATCHED_CHARS, reach.places * width)
        paths = min(ways * places, reach.paths * width)
        self._count(paths * (1 if len(parts) == 1 else GROUP * len(parts)) + reach.paths * least)
        still = reach.open if all(begun.offset == 0 for begun in reach.open) else ()
        still = tuple(replace(begun, paths=begun.paths * begins) for begun in still)
        return _Reach(
            places, ways, paths, (*still, _Open(chars, reach.places, reach.paths)), (), (*reach.before, part)
        )

    def _body(self, body: Any, flags: int) -> tuple[_Part, ...]:
        apart = _Walk(self.alphabet, parts=self.parts, sets=self.sets)
        found = apart.sequence(list(body), _Reach(1, 1, 1), flags, rest=False).before
        self.parts = apart.parts
        return tuple(part for part in found if not part.is_boundary)

    def _begins(self, part: _Part, chars: frozenset[str], reach: _Reach, width: int) -> int:
        """At how many places a repeat can have begun that ends at a given one."""
        shift = 0
        for earlier in reversed(reach.before):
            if earlier.is_boundary:
                if shift == 0 and part.least and chars <= earlier.last:
                    return 1
            elif not earlier.last & chars:
                if earlier.least:
                    return shift + 1
            elif not earlier.varies:
                shift += earlier.most
            else:
                few = FEW if part.is_wild and not earlier.is_wild else MATCHED_CHARS
                return self._clashes(min(reach.places, width, few), part.name, earlier.name)
        return self._clashes(min(reach.places, width), part.name, "")

    def _clashes(self, places: int, later: str, earlier: str) -> int:
        if places > self.clash[0]:
            self.clash = (places, later, earlier)
        return places

    def _branch(self, choices: Iterable[Any], reach: _Reach, flags: int, fails: bool) -> _Reach:
        self._count(GROUP * reach.paths)
        ends = [self.sequence(list(choice), reach, flags, rest=fails) for choice in choices]
        joined = [_join(end.before[len(reach.before) :]) for end in ends]
        one_begins = _are_apart([part.first for part in joined]) and all(part.least for part in joined)
        one_ends = _are_apart([part.last for part in joined]) and all(part.least for part in joined)
        part = _Part(
            frozenset().union(*(each.first for each in joined)),
            frozenset().union(*(each.last for each in joined)),
            min(each.least for each in joined),
            max(each.most for each in joined),
            varies=any(each.varies or not each.least for each in joined),
            is_wild=any(each.is_wild for each in joined),
            name=next((each.name for each in joined if each.varies), joined[0].name),
        )
        places = min(MATCHED_CHARS, sum(end.places for end in ends))
        ways = (max if one_ends else sum)(end.ways for end in ends)
        paths = (max if one_begins else sum)(end.paths for end in ends)
        return _Reach(places, ways, min(paths, ways * places), (), (), (*reach.before, part))

    def _chars(self, node: Any, flags: int) -> frozenset[str]:
        key = f"{node}{flags}"
        if key not in self.sets:
            self.sets[key] = _matching(node, flags, self.alphabet)
        return self.sets[key]

    def _at(self, where: Any, reach: _Reach, flags: int) -> _Reach:
        self._count(reach.paths)
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING, op.AT_END, op.AT_END_STRING):
            return replace(reach, places=1, paths=min(reach.paths, reach.ways), open=())
        if where is op.AT_BOUNDARY:
            word = self._chars((op.IN, [(op.CATEGORY, op.CATEGORY_WORD)]), flags)
            return replace(reach, before=(*reach.before, _Part(last=word, is_boundary=True)))
        return reach


def _is_optional(node: Any) -> bool:
    """Whether a part can take nothing, so that it never fails."""
    code, argument = node
    if code in REPEATS:
        return argument[0] == 0 or all(map(_is_optional, argument[2]))
    if code is op.SUBPATTERN:
        return all(map(_is_optional, argument[3]))
    if code is op.ATOMIC_GROUP:
        return all(map(_is_optional, argument))
    if code is op.BRANCH:
        return any(all(map(_is_optional, choice)) for choice in argument[1])
    return False


def _join(parts: tuple[_Part, ...]) -> _Part:
    """One part for several that follow each other."""
    parts = tuple(part for part in parts if not part.is_boundary)
    return _Part(
        _edge(parts, lambda part: part.first),
        _edge(parts[::-1], lambda part: part.last),
        sum(part.least for part in parts),
        sum(part.most for part in parts),
        varies=any(part.varies for part in parts),
        is_wild=any(part.is_wild for part in parts),
        name=next((part.name for part in parts if part.varies), "".join(part.name for part in parts)),
    )


def _edge(parts: tuple[_Part, ...], side: Any) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for part in parts:
        found |= side(part)
        if part.least:
            break
    return found


def _are_apart(sets: list[frozenset[str]]) -> bool:
    return not any(one & other for one, other in combinations(sets, 2))


def _matching(node: Any, flags: int, alphabet: str) -> frozenset[str]:
    """Which characters of the alphabet one node takes, asked of the matcher itself."""
    state = parser.State()
    state.flags = flags
    return frozenset(compiler.compile(parser.SubPattern(state, [node]), flags).findall(alphabet))


def _alphabet(tree: Any) -> str:
    found = set(_SAMPLES)
    for number in _numbers(tree):
        found.update(chr(near) for near in (number - 1, number, number + 1) if 0 <= near < 0x110000)
    return "".join(sorted(found - {"\n"}))


def _numbers(tree: Any) -> Iterable[int]:
    """Code points that a pattern names, and the middle of its ranges."""
    for item in tree:
        if isinstance(item, tuple) and len(item) == 2 and item[0] in (op.LITERAL, op.NOT_LITERAL):
            yield item[1]
        elif isinstance(item, tuple) and len(item) == 2 and item[0] is op.RANGE:
            low, high = item[1]
            yield from (low, (low + high) // 2, high)
        elif isinstance(item, tuple | list | parser.SubPattern):
            yield from _numbers(item)


def _text(node: Any) -> str:
    """The part as its author wrote it, or nearly."""
    code, argument = node
    if code is op.LITERAL:
        return re.sub(r"[][\\.^$*+?{}|()]", r"\\\g<0>", chr(argument))
    if code is op.NOT_LITERAL:
        return f"[^{chr(argument)}]"
    if code is op.ANY:
        return "."
    if code is op.RANGE:
        return f"{chr(argument[0])}-{chr(argument[1])}"
    if code is op.CATEGORY:
        return _CLASSES.get(argument, "")
    if code is op.NEGATE:
        return "^"
    if code is op.IN:
        text = "".join(_text(each) for each in argument)
        return text if len(argument) == 1 and argument[0][0] is op.CATEGORY else f"[{text}]"
    if code in REPEATS:
        least, most, body = argument
        counts = {(0, op.MAXREPEAT): "*", (1, op.MAXREPEAT): "+", (0, 1): "?"}
        count = counts.get((least, most)) or f"{{{least},{'' if most == op.MAXREPEAT else most}}}"
        text = "".join(_text(each) for each in body)
        return f"{text if len(body) == 1 and body[0][0] in _CHARS else f'(?:{text})'}{count}{_SIGNS[code]}"
    if code is op.SUBPATTERN:
        return "".join(_text(each) for each in argument[3])
    return "…"
