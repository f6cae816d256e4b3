"""A provider that is a Python function: for tests, and for demonstrations with mistakes on purpose."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.types import Message, ToolSchema

_WORDS = re.compile(r"\s*\S+|\s+$")  # with the blanks before them, or those at the end

Script = Callable[[list[Message], list[ToolSchema], Random], Message]


class ScriptedProvider:
    """Answers every call with `answer(messages, tools, random)`.

    `random` is seeded by the call (see ProviderRequest.seed), so an answer that makes a mistake one time in
    four makes it at the same place in every run. A tool call of the answer needs no `id` and no `type`, and
    its arguments may be a dict. Tokens are counted as words, at blanks: good for a test, not for a price.
    A streaming agent gets word by word. A raw text completion reaches the function as one user message.

        def answer(messages, tools, random):
            wrong = random.random() < 0.25
            return {"role": "assistant", "content": "41" if wrong else "42"}

        provider = ScriptedProvider(answer)
    """

    def __init__(self, answer: Script, *, model: str = "scripted") -> None:
        self._answer = answer
        self._model = model

    @classmethod
    def from_texts(cls, texts: Sequence[str | Message], *, model: str = "scripted") -> ScriptedProvider:
        """The n-th assistant message of a conversation is `texts[n]` (a text, or a whole message).

        What is answered depends on the conversation alone, so many rollouts can be answered at once.
        """

        def answer(messages: list[Message], tools: list[ToolSchema], random: Random) -> Message:
            position = sum(message.get("role") == "assistant" for message in messages)
            if position >= len(texts):
                raise ProviderError(
                    f"the script has {len(texts)} answers and the conversation asks for "
                    f"number {position + 1}. Give from_texts more of them, or end the agent's loop earlier.",
                    retryable=False,
                )
            chosen = texts[position]
            return {"role": "assistant", "content": chosen} if isinstance(chosen, str) else dict(chosen)

        return cls(answer, model=model)

    @classmethod
    def from_file(cls, path: Path, *, model: str = "scripted") -> ScriptedProvider:
        """`from_texts` of a JSON Lines file: each line an assistant message, or a text. Raises UsageError."""
        texts: list[str | Message] = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the script {path} cannot be read: {error}") from error
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                raise UsageError(f"{path}:{number}: not JSON: {error}") from error
            if not isinstance(value, str | dict):
                raise UsageError(f"{path}:{number}: expected an assistant message or a text, got {line[:80]}")
            texts.append(value)
        return cls.from_texts(texts, model=model)

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        messages, tools = list(request.messages), list(request.tools)
        try:
            message = self._answer(messages, tools, Random(request.seed))
        except ProviderError:
            raise
        except Exception as error:  # the script is the user's code: whatever it raises is the model's failure
            name = getattr(self._answer, "__name__", "the script")
            raise ProviderError(
                f"scripted provider: {name} raised {type(error).__name__}: {error}", retryable=False
            ) from error
        message = self._checked(message)
        if on_text is not None and isinstance(message.get("content"), str):
            for word in _WORDS.findall(message["content"]):
                on_text(word)
                await asyncio.sleep(0)
        return ProviderAnswer(
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            prompt_tokens=sum(count_words(m) for m in messages),
            completion_tokens=count_words(message),
            model=self._model,
        )

    def state(self) -> ProviderState:
        """A function is never busy and never down."""
        return ProviderState()

    async def close(self) -> None:
        """Nothing to drop."""

    def _checked(self, message: Any) -> Message:
        if not isinstance(message, dict):
            raise ProviderError(
                f"scripted provider: the answer must be a message like "
                f'{{"role": "assistant", "content": "42"}}, got {message!r}',
                retryable=False,
            )
        return {"role": "assistant", **message}


def count_words(message: Message) -> int:
    """Words of a message, names and arguments of its tool calls included.

    {"content": "two words"} -> 2;  {"tool_calls": [add '{"a": 1}']} -> 3 (`add`, `{"a":`, `1}`)
    """
    total = _words_of(message.get("content"))
    for call in message.get("tool_calls") or []:
        function = call.get("function") or {}
        arguments = function.get("arguments", "")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        total += len(str(function.get("name", "")).split()) + len(text.split())
    return total


def _words_of(content: Any) -> int:
    if isinstance(content, str):
        return len(content.split())
    if isinstance(content, list):
        return sum(_words_of(part.get("text")) for part in content if isinstance(part, dict))
    return 0
