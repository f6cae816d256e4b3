"""Messages to text to tokens and back, by the policy's own chat template and tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from osmosis_ai.errors import UsageError
from osmosis_ai.gateway.messages import KEPT, read_arguments
from osmosis_ai.gateway.tree import TemplateRefusedError
from osmosis_ai.types import Message, ToolSchema

CALL_START = "<tool_call>"
REPLACEMENT = "\ufffd"  # what a decoder gives for bytes that are no character, or not yet


class TemplateRenderer:
    """The tokenizer and template of a Hugging Face folder, loaded by `transformers`.

    The text is what `tokenizer.apply_chat_template` gives for the same messages, with three conventions:
    "developer" is "system" under a newer name, and most templates know only the older one; arguments of a
    tool call are passed as an object where they are one (what templates expect) and as the raw text where
    they are not; reasoning fields (`messages.KEPT`) are not passed at all.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer
        from transformers.utils.chat_template_utils import render_jinja_template

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
        self._render_template: Callable[..., tuple[list[str], Any]] = render_jinja_template
        self._template: str = tokenizer.chat_template
        self._special_tokens: dict[str, Any] = tokenizer.special_tokens_map
        self._tokens = tokenizer.backend_tokenizer
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
        from jinja2 import TemplateError

        try:
            texts, _ = self._render_template(
                conversations=[[_for_template(message) for message in messages]],
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=reply,
                **self._special_tokens,
            )
        except (TemplateError, TypeError, ValueError) as error:
            # A template is a program of the model's maker: what it raises is its answer to these messages.
            raise TemplateRefusedError(f"{type(error).__name__}: {error}") from error
        return texts[0]

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokens.encode(text, add_special_tokens=False).ids
        return ids

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
