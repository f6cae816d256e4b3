"""Tokens of ASCII text for byte-level BPE tokenizers, word by word, at a quarter of the time.

Most model families of today cut a text into words with a regular expression and merge bytes within each word:

    "Add 37, it's 4"  ->  "Add" | " " | "3" | "7" | "," | " it" | "'s" | " " | "4"  ->  tokens of each

A word's tokens depend on the word alone, so they are looked up, and asked of the tokenizer's own model when a
word is new. What is done here instead of there is the cutting, by Python's `re`: in ASCII text the classes of
Unicode are plain ranges, and both engines take the first alternative that matches. Where anything about a
tokenizer is not of this kind there is no `WordEncoder` for it; and none whose cuts differ from the
tokenizer's on a text in which characters of all kinds meet in all ways.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

MAX_WORDS = 100_000  # remembered; all are forgotten then

# What the families of tokenizers write, and nothing else: literals, classes, repetition, alternatives, groups
# that capture nothing, "not followed by". The anchors ^ and $ do not mean the same in both engines.
_UNDERSTOOD = re.compile(
    r"""(?: \\p\{\w+\} | \\[rntsS] | \(\?(?:i:|:|!) | [^\\^$&(\[\]]
        | \[ \^? (?: \\p\{\w+\} | \\[rntsS] | [^\\&\[\]] )+ \]
    )*""",
    re.VERBOSE | re.ASCII,
)
_CLASSES = {"L": "a-zA-Z", "Lu": "A-Z", "Ll": "a-z", "Lt": "", "Lm": "", "Lo": "", "M": "", "N": "0-9"}
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"  # ByteLevel's own
_KINDS = "aZs0'.- \t\n\r\x0b\x1c\x00~"  # a character at least of each kind that a pattern may tell apart
_TRIPLES = "".join("".join(three) for three in itertools.product(_KINDS, repeat=3))


class WordEncoder:
    """Exactly what the tokenizer gives for an ASCII text without added tokens."""

    def __init__(self, model: Any, pattern: re.Pattern[str]) -> None:
        self._words = pattern.findall
        self._known = _Known(model)

    def encode(self, text: str) -> list[int]:
        return list(itertools.chain.from_iterable(map(self._known.__getitem__, self._words(text))))


class _Known(dict[str, tuple[int, ...]]):
    """word -> its tokens, by the model when it is new."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def __missing__(self, word: str) -> tuple[int, ...]:
        if len(self) >= MAX_WORDS:
            self.clear()
        ids = self[word] = tuple(token.id for token in self._model.tokenize(word.translate(_AS_BYTES)))
        return ids


def word_encoder(tokenizer: Any) -> WordEncoder | None:
    """For a `tokenizers.Tokenizer`; None where it is not of this kind."""
    from tokenizers import models

    model = tokenizer.model
    plain = isinstance(model, models.BPE) and not (
        model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix
    )
    if not plain or not _keeps_ascii(_state(tokenizer.normalizer)):
        return None
    source = _pattern_of(_state(tokenizer.pre_tokenizer))
    pattern = None if source is None else in_ascii(source)
    if pattern is None or not _cuts_alike(tokenizer.pre_tokenizer, pattern):
        return None
    return WordEncoder(model, pattern)


def in_ascii(pattern: str) -> re.Pattern[str] | None:
    r"""The pattern for `re` that finds the same words in ASCII text; None if it says more than is known here.

    r" ?\p{L}+|[^\s\p{N}]{1,3}"  ->  r" ?[a-zA-Z]+|[^\s0-9]{1,3}"
    """
    if not _UNDERSTOOD.fullmatch(pattern):
        return None
    in_class = False
    parts = []
    for part in re.findall(r"\\p\{\w+\}|\\?.", pattern, re.DOTALL):
        if part.startswith(r"\p"):
            letters = _CLASSES.get(part[3:-1])
            if letters is None or not (letters or in_class):
                return None
            part = letters if in_class else f"[{letters}]"
        in_class = part == "[" or (in_class and part != "]")
        parts.append(part)
    try:
        return re.compile("".join(parts), re.ASCII)
    except re.error:
        return None


def _pattern_of(pre_tokenizer: dict[str, Any] | None) -> str | None:
    """The expression that cuts the text, if that and the change to bytes is all that is done to it."""
    steps = [pre_tokenizer or {}]
    if steps[0].get("type") == "Sequence":
        steps = steps[0]["pretokenizers"]
    *before, last = steps
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if last.get("use_regex", True):
        return None if before else _GPT2
    if len(before) != 1 or before[0].get("type") != "Split":
        return None
    split = before[0]
    isolated = split.get("behavior") == "Isolated" and not split.get("invert")
    pattern = split["pattern"].get("Regex") if isolated else None
    return pattern if isinstance(pattern, str) else None


def _keeps_ascii(normalizer: dict[str, Any] | None) -> bool:
    if normalizer is None or normalizer.get("type") in ("NFC", "NFKC"):
        return True
    return normalizer.get("type") == "Sequence" and all(map(_keeps_ascii, normalizer["normalizers"]))


def _state(part: Any) -> dict[str, Any] | None:
    """What a part of a tokenizer is, in the words of tokenizer.json."""
    state: dict[str, Any] | None = None if part is None else json.loads(part.__getstate__())
    return state


def _cuts_alike(pre_tokenizer: Any, pattern: re.Pattern[str]) -> bool:
    cuts = [place for _, place in pre_tokenizer.pre_tokenize_str(_TRIPLES)]
    return cuts == [found.span() for found in pattern.finditer(_TRIPLES)]


def _as_bytes() -> dict[int, str]:
    """How byte-level tokenizers write ASCII: what prints as it is, the rest as characters from 256 on."""
    moved = (byte for byte in range(256) if not (33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174))
    return {byte: chr(256 + place) for place, byte in enumerate(moved) if byte < 128}


_AS_BYTES = _as_bytes()
