"""Messages to text to tokens and back, by the policy's own chat template and tokenizer."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from osmosis_ai.errors import UsageError
from osmosis_ai.gateway.messages import KEPT, read_arguments
from osmosis_ai.gateway.tree import TemplateRefusedError
from osmosis_ai.gateway.words import word_encoder
from osmosis_ai.types import Message, ToolSchema

CALL_START = "<tool_call>"
REPLACEMENT = "\ufffd"  # what a decoder gives for bytes that are no character, or not yet
MAX_KEPT_CHARS = 2**21  # of pieces of text whose tokens are remembered, some 500,000 tokens
MAX_KEPT_PROMPTS = 512  # whole prompts whose tokens are remembered, for the other rollouts of a group
MAX_KEPT_PROMPT = 32_768  # characters of one of them; longer ones are put together from their pieces


class TemplateRenderer:
    """The tokenizer and template of a Hugging Face folder, loaded by `transformers`.

    The text is what `tokenizer.apply_chat_template` gives for the same messages, with three conventions:
    "developer" is "system" under a newer name, and most templates know only the older one; arguments of a
    tool call are passed as an object where they are one (what templates expect) and as the raw text where
    they are not; reasoning fields (`messages.KEPT`) are not passed at all.
    """

    def __init__(self, folder: Path) -> None:
        # One prompt is tokenised at a time, so threads have nothing to give and would warn at every fork.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        from transformers import AutoTokenizer

        from osmosis_ai.gateway.template import ChatTemplate

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UsageError(f"{folder} holds no tokenizer that transformers can load: {error}") from error
        if not tokenizer.is_fast:
            raise UsageError(f"the tokenizer in {folder} is no fast one: the folder needs a tokenizer.json")
        if not isinstance(tokenizer.chat_template, str):
            raise UsageError(
                f"the tokenizer in {folder} has no chat template. Put one into {folder}/chat_template.jinja"
            )
        names = {name: str(text) for name, text in tokenizer.special_tokens_map.items()}
        self._template = ChatTemplate(tokenizer.chat_template, names)
        self._prompts: dict[bytes, tuple[str, list[int]]] = {}  # messages and tools -> prompt, oldest first
        self._tokens = tokenizer.backend_tokenizer
        self._tokens.no_truncation()  # a folder may ask for either; a prompt is never cut
        self._tokens.no_padding()
        self._pieces = PieceEncoder(self._tokens)
        self._special_ids: dict[str, int] = {
            token.content: token_id
            for token_id, token in self._tokens.get_added_tokens_decoder().items()
            if token.special
        }
        self.end_ids = _end_ids(folder, tokenizer)
        self._ends = [(end_id, self.decode([end_id])) for end_id in self.end_ids]
        for end_id, text in self._ends:
            if self.encode(text) != [end_id]:
                raise UsageError(
                    f"the tokenizer in {folder} does not read its end token {text!r} as one token"
                )

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSchema], *, reply: bool) -> str:
        return self._render([_for_template(message) for message in messages], tools, reply)

    def prompt(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> tuple[str, list[int]]:
        shown = [_for_template(message) for message in messages]
        try:
            key = orjson.dumps([shown, tools])
        except TypeError:  # an integer of more than 64 bits
            key = b""
        known = self._prompts.get(key)
        if known is None:
            text = self._render(shown, tools, True)
            known = text, self.encode(text)
            if key and len(text) <= MAX_KEPT_PROMPT and not self._template.depends_on_time:
                if len(self._prompts) >= MAX_KEPT_PROMPTS:
                    del self._prompts[next(iter(self._prompts))]
                self._prompts[key] = known
        text, ids = known
        return text, ids.copy()

    def _render(self, shown: list[Message], tools: Sequence[ToolSchema], reply: bool) -> str:
        from jinja2 import TemplateError

        try:
            return self._template.render(shown, tools, reply=reply)
        except (TemplateError, TypeError, ValueError) as error:
            # A template is a program of the model's maker: what it raises is its answer to these messages.
            raise TemplateRefusedError(f"{type(error).__name__}: {error}") from error

    def encode(self, text: str) -> list[int]:
        return self._pieces.encode(text)

    def encode_after(self, end_id: int, text: str) -> list[int]:
        # Tokenised behind the end token, not alone: some tokenizers treat the start of a text specially,
        # and some end tokens swallow the white space behind them.
        return self.encode(self.decode([end_id]) + text)[1:]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokens.decode(list(ids), skip_special_tokens=False)
        return text

    def special_id(self, text: str) -> int | None:
        return self._special_ids.get(text)

    def end_of(self, closed: str) -> tuple[int, str] | None:
        place, end_id, end = max((closed.rfind(text), end_id, text) for end_id, text in self._ends)
        behind = closed[place + len(end) :]
        return None if place < 0 or behind.strip() else (end_id, behind)


class PieceEncoder:
    """Text to tokens, each distinct piece between special tokens once.

        "<s>user\\nHi<e>\\n<s>assistant\\n"  ->  "<s>user\\nHi" | "<e>\\n" | "<s>assistant\\n"

    Instructions, tool lists, and the questions of a group are the same in call after call; their tokens are
    looked up. It is exact because a tokenizer first cuts the text at its added tokens (leftmost, then
    longest; in the raw text, unless they are "normalized") and treats what lies between them one by one. All
    that such a part knows of the rest is whether it stands at the beginning of the text, and behind its token
    it does not, here as there. Tokens that take white space from their neighbours are not cut at; where one
    asks whether a word goes on behind it, nothing is cut. What was not used for longest is forgotten first.
    Pieces that are new are read word by word where the tokenizer allows it: see `words.py`.
    """

    def __init__(self, tokenizer: Any, max_kept_chars: int = MAX_KEPT_CHARS) -> None:
        self._tokenizer = tokenizer
        self._cuts = _cuts(tokenizer)
        self._words = None if self._cuts is None else word_encoder(tokenizer)
        self._cut_ids: dict[str, int] = {}  # where all added tokens are cut at, so that no piece has another
        if self._cuts is not None and self._words is not None:
            added = {token.content: i for i, token in tokenizer.get_added_tokens_decoder().items()}
            self._cut_ids = added if added.keys() == self._cuts[1] else {}
        self._known: dict[str, list[int]] = {}  # piece -> its tokens, least recently used first
        self._kept_chars = 0
        self._max_kept_chars = max_kept_chars

    def encode(self, text: str) -> list[int]:
        """The tokens that the tokenizer gives for the text, no special ones added."""
        if self._cuts is None:
            return self._tokens_of(text)
        pattern, cuts = self._cuts
        ids: list[int] = []
        start = 0
        for found in pattern.finditer(text):
            if found.start() > start and found.group() in cuts:
                ids += self._piece(text[start : found.start()])
                start = found.start()
        ids += self._piece(text[start:])
        return ids

    def _piece(self, piece: str) -> list[int]:
        ids = self._known.pop(piece, None)
        if ids is None:
            ids = self._tokens_of(piece)
            self._kept_chars += len(piece)
        self._known[piece] = ids
        while self._kept_chars > self._max_kept_chars:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self._kept_chars -= len(oldest)
        return ids

    def _tokens_of(self, text: str) -> list[int]:
        if self._cuts is not None and self._words is not None and self._cut_ids and text.isascii():
            found = self._cuts[0].match(text)
            if found is None:
                return self._words.encode(text)
            return [self._cut_ids[found.group()], *self._words.encode(text[found.end() :])]
        # The batch call that keeps no offsets: half to two thirds of the time of `encode`.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def _cuts(tokenizer: Any) -> tuple[re.Pattern[str], frozenset[str]] | None:
    """What finds the added tokens as the tokenizer does, and those of them that a text may be cut before."""
    added = [token for token in tokenizer.get_added_tokens_decoder().values() if token.content]
    if tokenizer.encode_special_tokens or any(token.single_word for token in added):
        return None
    raw = sorted((token for token in added if not token.normalized), key=lambda token: -len(token.content))
    cuts = {t.content for t in raw if not (t.lstrip or t.rstrip) and t.content == t.content.strip()}
    if not cuts:
        return None
    # The longest alternative first, so that of two tokens at one place the longer is found, as it is there.
    return re.compile("|".join(re.escape(token.content) for token in raw)), frozenset(cuts)


class TextStream:
    """Sampled tokens, one at a time, to text that can be sent at once and will not be taken back.

    Held back until it is certain: bytes that are no whole character yet, and, with tools, white space at the
    beginning and everything that is or could become a tool call:

        "Su" -> "Su";  "re. <to" -> "re. ";  "ol_call>{..." -> "" (and nothing more)
        "a" -> "a";  half of "é" -> "";  the other half -> "é"
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], *, tool_calls: bool) -> None:
        self._decode = decode
        self._tool_calls = tool_calls
        self._ids: list[int] = []  # from the last place where a text was whole
        self._whole = 0  # of `_ids`, already given out as text
        self._held = ""
        self._in_call = False
        self._begun = False

    def push(self, token_id: int) -> str:
        """The text that is certain now and was not before."""
        self._ids.append(token_id)
        if self._in_call:
            return ""
        before = self._decode(self._ids[: self._whole]) if self._whole else ""
        now = self._decode(self._ids)
        if len(now) <= len(before) or now.endswith(REPLACEMENT):
            return ""
        # The next decode starts at the tokens just given out: enough context for any byte-level decoder.
        self._ids = self._ids[self._whole :]
        self._whole = len(self._ids)
        return self._release(self._held + now[len(before) :])

    def _release(self, text: str) -> str:
        if not self._tool_calls:
            return text
        start = text.find(CALL_START)
        self._in_call = start >= 0
        certain = text[:start] if self._in_call else text[: len(text) - _overlap(text)]
        if not self._begun and not certain.strip():
            certain = ""
        self._begun = self._begun or bool(certain)
        self._held = text[len(certain) :]
        return certain


def _overlap(text: str) -> int:
    """How many characters at the end of `text` could begin a tool call: "a<tool" -> 5, "a<b" -> 0."""
    for size in range(min(len(text), len(CALL_START) - 1), 0, -1):
        if CALL_START.startswith(text[-size:]):
            return size
    return 0


def _for_template(message: Message) -> Message:
    shown = {key: value for key, value in message.items() if key not in KEPT}
    if shown["role"] == "developer":
        shown["role"] = "system"
    if calls := shown.get("tool_calls"):
        shown["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"]["arguments"])}}
            for call in calls
        ]
    return shown


def _arguments(text: str) -> dict[str, Any] | str:
    value = read_arguments(text)
    return text if value is None else value


def _end_ids(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """The tokens that end an answer: the tokenizer's, and those of generation_config.json."""
    found: list[int] = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    config = folder / "generation_config.json"
    if config.exists():
        named = json.loads(config.read_text(encoding="utf-8")).get("eos_token_id")
        found += named if isinstance(named, list) else [named] if named is not None else []
    if not found:
        raise UsageError(f"the policy in {folder} has no end token: set eos_token in tokenizer_config.json")
    return tuple(dict.fromkeys(found))
