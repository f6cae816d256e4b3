"""The content of an answer that came as a list of parts, where only text can go on."""

from __future__ import annotations

from typing import Any


def read_parts(parts: list[Any]) -> tuple[str, str]:
    """The text and the reasoning. Raises ValueError for a part that is neither.

    [{"type": "thinking", "thinking": [{"type": "text", "text": "6 x 7"}]}, {"type": "text", "text": "42"}]
        -> ("42", "6 x 7")
    """
    texts, thoughts = [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif kind == "thinking" and isinstance(part.get("thinking"), str):
            thoughts.append(part["thinking"])
        elif kind == "thinking" and isinstance(part.get("thinking"), list):
            thoughts += ["".join(read_parts([inner])) for inner in part["thinking"]]
        else:
            raise ValueError(f"a content part of type {str(kind)[:80]!r}; text and thinking are read here")
    return "".join(texts), "".join(thoughts)
