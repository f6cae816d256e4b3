"""What can come next on an unfinished command line. Each press of the tab key starts Python: no Click here.

`completions.json` says what the commands take; it is generated from them by `make docs`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any

from osmosis_ai.cli.main import COMMANDS

Kind = (
    str | list[str] | None
)  # "path", "toml", "run", "key", "value"; the values to choose from; None: a flag
CONTROLS = frozenset(map(chr, range(32)))  # in the name of a file they are not for a terminal


def main(words: Sequence[str]) -> None:
    """One candidate per line for the last of `words`, which may be empty."""
    for candidate in candidates(words):
        if CONTROLS.isdisjoint(candidate):
            sys.stdout.write(candidate + "\n")


def candidates(words: Sequence[str]) -> list[str]:
    """("eval", "ru") -> ["run"]; the words come without `osmosis`, the last one is being typed."""
    *before, typed = words or [""]
    return sorted({found for found in _possible(before, typed) if found.startswith(typed)})


def _possible(before: list[str], typed: str) -> Iterator[str]:
    if not before:
        yield from [*COMMANDS, "--help", "--version"]
        return
    group = COMMANDS.get(before[0])
    if group is None:
        return
    depth = 1 if isinstance(group[1], str) else 2
    if len(before) < depth:
        yield from [*group[1], "--help"]
        return
    command = _table()["commands"].get(" ".join(before[:depth]))
    if command is not None:
        yield from _of_command(command, before[depth:], typed)


def _of_command(command: dict[str, Any], before: list[str], typed: str) -> Iterator[str]:
    options: dict[str, Kind] = command["options"]
    if before and options.get(before[-1]) is not None:
        yield from _values(options[before[-1]], before, typed)
    elif typed.startswith("-"):
        given = set(before) - set(command["repeated"])
        yield from (option for option in [*options, "--help"] if option not in given)
    else:
        yield from _values(_next_argument(command, before), before, typed)


def _next_argument(command: dict[str, Any], before: list[str]) -> Kind:
    """The kind of the argument that comes next; the last one may repeat."""
    options: dict[str, Kind] = command["options"]
    kinds: list[Kind] = command["arguments"]
    values = {place + 1 for place, word in enumerate(before) if options.get(word) is not None}
    given = sum(place not in values and not word.startswith("-") for place, word in enumerate(before))
    if given < len(kinds):
        return kinds[given]
    return kinds[-1] if kinds and command["many"] else None


def _values(kind: Kind, before: list[str], typed: str) -> Iterator[str]:
    if isinstance(kind, list):
        yield from kind
    elif kind == "run":
        yield from _run_ids(before)
    elif kind == "key":
        yield from (f"{key}=" for key in _table()["keys"])
    elif kind in ("path", "toml"):
        yield from _files(typed, ".toml" if kind == "toml" else "")


def _files(typed: str, suffix: str) -> Iterator[str]:
    """Files and folders (with a slash) that go on from what was typed; hidden ones when asked for."""
    folder, _, name = typed.rpartition("/")
    start = f"{folder}/" if "/" in typed else ""
    try:
        entries = list(os.scandir(os.path.expanduser(start) or "."))
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(".") and not name.startswith("."):
            continue
        if entry.is_dir():
            yield f"{start}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield start + entry.name


def _run_ids(before: list[str]) -> list[str]:
    """Of the workspace that the line names. A database that cannot be read completes nothing."""
    workspace = os.environ.get("OSMOSIS_WORKSPACE") or ".osmosis"
    for option, value in pairwise(before):
        workspace = value if option == "--workspace" else workspace
    database = os.path.join(os.path.expanduser(workspace), "osmosis.db")
    if not os.path.exists(database):
        return []
    import apsw

    try:
        with closing(apsw.Connection(database, flags=apsw.SQLITE_OPEN_READONLY)) as connection:
            connection.set_busy_timeout(50)
            found = [str(run_id) for (run_id,) in connection.execute("SELECT run_id FROM run")]
    except apsw.Error:
        return []
    return found


def _table() -> dict[str, Any]:
    path = os.path.join(os.path.dirname(__file__), "completions.json")
    with open(path, encoding="utf-8") as file:
        table: dict[str, Any] = json.load(file)
    return table
