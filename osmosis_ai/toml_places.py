"""Where in a TOML file a key stands, for messages that an editor can follow.

`tomllib` reads values and forgets places. This reads places and no values, of a text that `tomllib` accepts.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

Path = tuple[str, ...]  # ("dataset", "limit")
Place = tuple[int, int]  # line and column, from 1

TOKEN = re.compile(
    r"""(?P<skip>[ \t\r]+|\#[^\n]*)
    |(?P<string>\"\"\"(?:[^\\]|\\.)*?\"{3,5}|'''.*?'{3,5}|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')
    |(?P<word>[A-Za-z0-9_+:-]+)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)


def places(text: str) -> Mapping[Path, Place]:
    """The place of every table and key, of its first word.

    >>> places('[a]\\nb = { c = 1 }')
    {('a',): (1, 2), ('a', 'b'): (2, 1), ('a', 'b', 'c'): (2, 7)}
    """
    reader = _Reader()
    for token, place in _tokens(text):
        reader.read(token, place)
    return reader.found


def place_of(text: str, *where: str) -> Place:
    """The place of a key, else of the nearest table around it, else the first character."""
    found = places(text)
    while where and where not in found:
        where = where[:-1]
    return found.get(where, (1, 1))


def _tokens(text: str) -> Iterator[tuple[re.Match[str], Place]]:
    line, start = 1, 0  # the position at which the line begins
    for token in TOKEN.finditer(text):
        if token.lastgroup != "skip":
            yield token, (line, token.start() - start + 1)
        if newlines := token.group().count("\n"):
            line += newlines
            start = token.start() + token.group().rindex("\n") + 1


@dataclass(slots=True)
class _Reader:
    """What has been read up to here: in which table, inside of which values, and of which key."""

    found: dict[Path, Place] = field(default_factory=dict)
    table: Path = ()
    inside: list[Path | None] = field(default_factory=list)  # open inline tables, by path; None: an array
    key: list[tuple[str, Place]] | None = field(default_factory=list)  # None: this is a value
    in_header: bool = False
    last: Path = ()  # the key whose value this is

    def read(self, token: re.Match[str], place: Place) -> None:
        text = token.group()
        if token.lastgroup != "sign":
            if self.key is not None:
                self.key.append((_name(text), place))
        elif text == "\n":
            if not self.inside:
                self.key, self.in_header = [], False
        elif self.key is not None:
            self._sign_of_a_key(text)
        else:
            self._sign_of_a_value(text)

    def _sign_of_a_key(self, sign: str) -> None:
        assert self.key is not None
        if sign == "[":
            self.in_header = True
        elif sign == "]" and self.key:
            self.table = self._keep((), self.key)
            self.key = None
        elif sign == "=":
            around = self.inside[-1] if self.inside else self.table
            self.last = self._keep(around or (), self.key)
            self.key = None
        elif sign == "}":  # of a table without keys
            self._sign_of_a_value(sign)

    def _sign_of_a_value(self, sign: str) -> None:
        if self.in_header:
            return  # the second bracket of [[table]]
        if sign == "{":
            self.inside.append(self.last)
            self.key = []
        elif sign == "[":
            self.inside.append(None)
        elif sign in "}]" and self.inside:
            self.inside.pop()
            self.key = None
        elif sign == "," and self.inside and self.inside[-1] is not None:
            self.key = []

    def _keep(self, around: Path, key: list[tuple[str, Place]]) -> Path:
        path = around
        for name, place in key:
            path = (*path, name)
            self.found.setdefault(path, place)
        return path


def _name(text: str) -> str:
    """A key without its quotes."""
    return str(tomllib.loads(f"name = {text}")["name"]) if text[0] in "\"'" else text
