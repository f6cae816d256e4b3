"""A streamed chat or text completion, put together again as the whole answer that it stands for."""

from __future__ import annotations

from typing import Any

import orjson

from osmosis_ai.providers.base import OnText
from osmosis_ai.providers.parts import read_parts

_REASONING = (
    "reasoning_content",
    "reasoning",
    "refusal",
)  # texts beside the content, which come in pieces too


class StreamedAnswer:
    """Feed it the bytes of the stream as they come.

        data: {"choices": [{"delta": {"role": "assistant", "content": "4"}}]}
        data: {"choices": [{"delta": {"content": "2"}}]}
        data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}
        data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
        data: [DONE]

    `on_text` gets "4" and "2"; `document` is what a plain answer would have been, with the content "42".
    """

    def __init__(self, on_text: OnText) -> None:
        self._on_text = on_text
        self._rest = b""  # of a line that is not whole yet
        self._message: dict[str, Any] = {"role": "assistant", "content": ""}
        self._calls: dict[int, dict[str, Any]] = {}
        self._document: dict[str, Any] = {}
        self._finish_reason: str | None = None
        self.done = False  # [DONE] came

    @property
    def is_whole(self) -> bool:
        """Whether the answer ended, and did not just stop coming."""
        return self._finish_reason is not None

    @property
    def document(self) -> dict[str, Any]:
        """The answer as a plain request would have got it."""
        message = dict(self._message)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        choice = {"index": 0, "message": message, "finish_reason": self._finish_reason}
        return {**self._document, "choices": [choice]}

    def feed(self, data: bytes) -> None:
        """Raises ValueError for a line that makes no sense, and StreamedError for an error in the stream."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._read(line[5:].strip())

    def _read(self, data: bytes) -> None:
        if not data:
            return
        if data == b"[DONE]":
            self.done = True
            return
        chunk = orjson.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError("a chunk is no object")
        if chunk.get("error"):
            raise StreamedError(orjson.dumps(chunk["error"]).decode())
        for key in ("model", "usage", "id"):
            if chunk.get(key):
                self._document[key] = chunk[key]
        for choice in chunk.get("choices") or ():
            self._take(choice)

    def _take(self, choice: dict[str, Any]) -> None:
        if choice.get("index", 0) != 0:
            raise ValueError("a second choice, which nobody asked for")
        self._finish_reason = choice.get("finish_reason") or self._finish_reason
        if isinstance(choice.get("text"), str):
            self._add_text(choice["text"])
        delta = choice.get("delta") or {}
        for key, value in delta.items():
            if key == "content" and isinstance(value, str):
                self._add_text(value)
            elif key == "content" and isinstance(value, list):
                self._add_parts(value)
            elif key == "tool_calls":
                for call in value or ():
                    self._add_call(call)
            elif key in _REASONING and isinstance(value, str):
                self._message[key] = self._message.get(key, "") + value
            elif key not in ("role", "content") and value is not None:
                self._message[key] = value

    def _add_text(self, text: str) -> None:
        if text:
            self._message["content"] += text
            self._on_text(text)

    def _add_parts(self, parts: list[Any]) -> None:
        text, thinking = read_parts(parts)
        self._add_text(text)
        if thinking:
            self._message["reasoning_content"] = self._message.get("reasoning_content", "") + thinking

    def _add_call(self, piece: dict[str, Any]) -> None:
        index = piece.get("index", len(self._calls))
        call = self._calls.setdefault(
            index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = piece.get("id") or call["id"]
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


class StreamedError(Exception):
    """The endpoint reported an error in the middle of its stream."""
