"""The columns of one dataset item -> a row, or everything that is wrong with it."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Any

from osmosis_ai.types import Message, Row

KNOWN = ("system_prompt", "user_prompt", "ground_truth", "label", "metadata")


@dataclass(frozen=True, slots=True)
class Finding:
    """Why an item of the file is not a row."""

    problems: list[str]


def to_row(columns: dict[str, Any], index: int, from_text: bool, strict: bool = False) -> Row | Finding:
    """Check and convert one item. `from_text`: all values are strings (CSV), and an empty one is absent.

    `strict` refuses halves of surrogate pairs, too: legal in JSON, but no character.
    """
    problems: list[str] = []
    known, extra = _split(columns, problems)
    if from_text:
        known = {name: value for name, value in known.items() if value != ""}
    if isinstance(known.get("metadata"), str):  # an object as JSON text: the way of CSV, and of many exports
        known["metadata"] = _parse_metadata(known["metadata"], problems)
    prompt = _prompt(known, columns, problems)
    label = _label(known, problems)
    metadata = _metadata(known.get("metadata"), extra, problems)
    if strict:
        problems += _halves({**known, **extra})
    if problems:
        return Finding(problems)
    return Row(index, prompt, label, metadata)


def _split(columns: dict[str, Any], problems: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our columns under their lower-case names, and all others as they are."""
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in columns.items():
        folded = name.strip().lower()
        if folded not in KNOWN:
            extra[name] = value
        elif folded in known:
            problems.append(f"column {folded!r} is there twice, in different letter case")
        else:
            known[folded] = value
    return known, extra


def _prompt(known: dict[str, Any], columns: dict[str, Any], problems: list[str]) -> list[Message]:
    messages: list[Message] = []
    system, user = known.get("system_prompt"), known.get("user_prompt")
    if system is not None and not isinstance(system, str):
        problems.append(f"system_prompt must be a string, got {_kind(system)}")
    elif system:
        messages.append({"role": "system", "content": system})
    if "user_prompt" not in known:
        problems.append(_no_user_prompt(list(columns)))
    elif not isinstance(user, str):
        problems.append(f"user_prompt must be a string, got {_kind(user)}")
    elif not user.strip():
        problems.append("user_prompt is empty")
    else:
        messages.append({"role": "user", "content": user})
    return messages


def _no_user_prompt(names: list[str]) -> str:
    near = difflib.get_close_matches("user_prompt", [name.lower() for name in names], n=1, cutoff=0.5)
    hint = f" Rename {near[0]!r} to 'user_prompt'." if near and near[0] != "user_prompt" else ""
    return f"no user_prompt; the row has {', '.join(names) or 'no columns'}.{hint}"


def _label(known: dict[str, Any], problems: list[str]) -> str | None:
    given = [name for name in ("ground_truth", "label") if known.get(name) is not None]
    if len(given) == 2:
        problems.append("both ground_truth and label are given; they mean the same, keep one")
    for name in given:
        value = known[name]
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            problems.append(f"{name} must be a string or a number, got {_kind(value)}")
    return str(known[given[0]]) if given and not problems else None


def _parse_metadata(text: str, problems: list[str]) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        problems.append(f"metadata must be a JSON object: {error}")
        return None


def _metadata(value: Any, extra: dict[str, Any], problems: list[str]) -> dict[str, Any] | None:
    if value is None:
        return extra or None
    if not isinstance(value, dict):
        problems.append(f"metadata must be an object, got {_kind(value)}")
        return None
    both = sorted(value.keys() & extra.keys())
    if both:
        problems.append(f"{both[0]!r} is a column and also a key of metadata; rename one")
    return {**value, **extra}


def _halves(columns: dict[str, Any]) -> list[str]:
    first = {name: _first_half(name) or _first_half(value) for name, value in columns.items()}
    return [
        f"{_shown(name)} has half of a surrogate pair, {half}: it is no character, so the row cannot be "
        "sent. Write both halves (\\ud83d\\ude00 is one character), or take it out"
        for name, half in first.items()
        if half is not None
    ]


def _first_half(value: Any) -> str | None:
    """As an escape of JSON; None: there is none in the value."""
    if isinstance(value, dict):
        return next((half for pair in value.items() for half in map(_first_half, pair) if half), None)
    if isinstance(value, list):
        return next((half for half in map(_first_half, value) if half), None)
    if isinstance(value, str) and not value.isascii():
        return next((f"\\u{ord(letter):04x}" for letter in value if "\ud800" <= letter <= "\udfff"), None)
    return None


def _shown(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _kind(value: object) -> str:
    """JSON's word for the type, with the value when it is short."""
    names: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    if isinstance(value, dict | list | str):
        return names[type(value)]
    return f"{names.get(type(value), 'the number')} {json.dumps(value)}"
