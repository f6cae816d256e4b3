"""What is wrong with a TOML file, for the person who wrote it: `file:line:col: what, value, way out`."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from osmosis_ai.toml_places import Place, place_of

COMMAND_LINE: Place = (0, 0)  # goes before the file
Finding = tuple[Place, str]


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A file, and what the command line gave instead of it."""

    path: Path
    text: str
    overrides: frozenset[str]  # tables and dotted keys that only the command line gave

    def finding(self, where: Iterable[str], about: str) -> Finding:
        """`about` after the place of the key: file:line:col, or the option of the command line."""
        dotted = ".".join(where)
        if dotted in self.overrides:
            option = "--name" if dotted == "run.name" else f"--set {dotted}"
            return COMMAND_LINE, f"{option}: {about}"
        line, column = place = place_of(self.text, *where)
        return place, f"{self.path}:{line}:{column}: {about}"


def in_order(findings: Iterable[Finding]) -> list[str]:
    """The command line's first, then down the file; nothing twice."""
    return list(dict.fromkeys(text for _, text in sorted(findings, key=lambda item: item[0])))


def syntax_finding(path: Path, text: str, error: tomllib.TOMLDecodeError) -> str:
    """ "Invalid value (at line 3, column 5)" -> "run.toml:3:5: not valid TOML: Invalid value" """
    what, _, at = str(error).rpartition(" (at ")
    place = re.fullmatch(r"line (\d+), column (\d+)\)", at)
    lines = text.split("\n")  # without a place it is the end of the document
    line, column = map(int, place.groups()) if place else (len(lines), len(lines[-1]) + 1)
    return f"{path}:{line}:{column}: not valid TOML: {what}"


def model_finding(file: TomlFile, root: type[BaseModel], item: Mapping[str, Any]) -> Finding:
    """One of pydantic's errors about the tables in `root`."""
    where = [str(part) for part in item["loc"]]
    dotted = ".".join(where)
    if item["type"] == "extra_forbidden":
        return file.finding(where, _unknown(root, where))
    description = describe(root, where)
    if item["type"] == "missing":
        name = f"the table [{dotted}]" if len(where) == 1 else dotted
        return file.finding(where, f"{name} is missing: {description}")
    return file.finding(
        where, f"{dotted} = {_toml(item.get('input'))} {_must(root, where, item)}. {description}"
    )


def _unknown(root: type[BaseModel], where: list[str]) -> str:
    *table, key = where
    allowed = sorted(keys(root, *table))
    hint = ""
    if near := difflib.get_close_matches(key, allowed, n=1):
        hint = f" Did you mean {near[0]!r}?"
    elif homes := [name for name in root.model_fields if key in keys(root, name) and [name] != table]:
        hint = f" It is a key of {' and '.join(f'[{name}]' for name in homes)}."
    kind, dotted = "key" if table else "table", ".".join(where)
    return f"unknown {kind} {dotted!r}.{hint} Known here: {', '.join(allowed)}."


def _must(root: type[BaseModel], where: list[str], item: Mapping[str, Any]) -> str:
    """What pydantic expected, in our words: "Input should be at most 1" -> "must be at most 1"."""
    if item["type"] in ("model_type", "dict_type"):
        return f"must be a table: write [{where[0]}] on a line of its own and its keys below"
    if rule := _rule(root, where):
        return rule
    must = str(item["msg"]).replace("Input should be", "must be", 1)
    if item["type"] == "literal_error":
        allowed = re.findall(r"'([^']*)'", item["ctx"]["expected"])
        if near := difflib.get_close_matches(str(item.get("input")), allowed, n=1):
            must += f" (did you mean {near[0]!r}?)"
    return must


def _rule(root: type[BaseModel], where: list[str]) -> str | None:
    """What the model itself says of a text that must match a pattern; editors show the same."""
    model = table_model(root, where[0])
    extra = model.model_fields[where[1]].json_schema_extra if model and len(where) == 2 else None
    return str(extra["patternErrorMessage"]) if isinstance(extra, dict) else None


def _toml(value: Any) -> str:
    """A value as the file would write it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def keys(root: type[BaseModel], *table: str) -> list[str]:
    """The tables of the file, or the keys of one of them; none of a table that is free or unknown."""
    if not table:
        return list(root.model_fields)
    model = table_model(root, table[0])
    return list(model.model_fields) if model is not None and len(table) == 1 else []


def describe(root: type[BaseModel], where: list[str]) -> str:
    model = table_model(root, where[0])
    if model is None:
        return ""
    if len(where) > 1 and where[1] in model.model_fields:
        return model.model_fields[where[1]].description or ""
    return model.__doc__ or ""


def table_model(root: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The model of a table: of `LlmTable | None` the first."""
    if name not in root.model_fields:
        return None
    annotation = root.model_fields[name].annotation
    kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
    return next((kind for kind in kinds if issubclass(kind, BaseModel)), None)
