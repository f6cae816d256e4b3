"""One rollout step by step in the terminal, with a model's answers or with your own.

Input and output are plain lines, so that it works with a keyboard and with a pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from osmosis_ai.cli.transcript import message_lines, printable
from osmosis_ai.gateway.call import Answer, ModelCall, SamplingDefaults
from osmosis_ai.gateway.targets import OnText as OnPolicyText
from osmosis_ai.gateway.targets import Target
from osmosis_ai.gateway.tree import ConversationTree
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.types import Message, ToolSchema

STEP_HELP = "Enter or n: next   c: continue to the end   m: messages   t: tools   save FILE   q: quit"
TYPE_HELP = """\
  TEXT                         the assistant's answer (say TEXT where TEXT is a command)
  call NAME {"a": 3, "b": 4}   a tool call (call! sends what is no JSON, or no tool, as it is)
  ... \\                        at the end of a line: another line or another call follows
  m: messages   t: tools   save FILE: the session as a script for [llm]   q: quit"""


class Terminal:
    """Standard input, line by line, and standard output."""

    def __init__(self) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._reading = False

    def say(self, text: str) -> None:
        sys.stdout.write(printable(text) + "\n")
        sys.stdout.flush()

    async def ask(self, prompt: str) -> str | None:
        """The next line, without its end; None when there is no more."""
        sys.stdout.write(prompt)
        sys.stdout.flush()
        if not self._reading:  # a thread of its own that nothing waits for: a read cannot be cancelled
            self._reading = True
            threading.Thread(target=self._read, name="osmosis-stdin", daemon=True).start()
        line = await self._lines.get()
        if line is None or not sys.stdin.isatty():
            sys.stdout.write("\n" if line is None else f"{printable(line)}\n")
        return line

    def _read(self) -> None:
        rest = b""
        while piece := os.read(0, 65536):  # past the buffer of sys.stdin, whose lock outlives us at exit
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._put(line.decode(errors="replace").rstrip("\r"))
        if rest:
            self._put(rest.decode(errors="replace"))
        self._put(None)

    def _put(self, line: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)


class Steps:
    """The conversation on the screen, and what the person does with it."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._messages: list[Message] = []
        self._tools: list[ToolSchema] = []
        self._answers: list[Message] = []
        self._free = False  # continue: no more questions
        self._turn = asyncio.Lock()  # agents that call at the same time are shown one after the other
        self.left = asyncio.Event()  # the person has quit

    async def answered_by(
        self, messages: list[Message], tools: list[ToolSchema], ask: Callable[[], Any]
    ) -> Any:
        """A model's answer, shown, and handed on when the person says so. `ask` gives an Answer."""
        async with self._turn:
            self._show_new(messages, tools)
            answer: Answer = await ask()
            self._show(answer.message)
            while not self._free:
                line = await self._question(f"[{len(self._answers)}] {STEP_HELP} > ")
                if line in ("", "n", "next", "step"):
                    break
                if line in ("c", "continue"):
                    self._free = True
                elif not self._is_common(line):
                    self._terminal.say(f"unknown: {line}. {STEP_HELP}")
            return answer

    async def typed(self, messages: list[Message], tools: list[ToolSchema]) -> Message:
        """The person's answer."""
        async with self._turn:
            self._show_new(messages, tools)
            if not self._answers:
                self._terminal.say(f"You are the model.\n{TYPE_HELP}")
            while True:
                text = await self._whole(f"[{len(self._answers) + 1}] assistant > ")
                if not text or self._is_common(text):
                    continue
                try:
                    message = read_answer(text, [tool["function"]["name"] for tool in tools])
                except ValueError as error:
                    self._terminal.say(str(error))
                    continue
                self._show(message)
                return message

    async def ended(self, lines: list[str]) -> None:
        """The result, and a last look around."""
        self._terminal.say("\n".join(lines))
        while not self._free:
            line = await self._terminal.ask("end: m: messages   t: tools   save FILE   Enter: leave > ")
            if line is None or line.strip() in ("", "q", "quit", "exit", "n", "c"):
                return
            if not self._is_common(line.strip()):
                self._terminal.say(f"unknown: {line}")

    async def _whole(self, prompt: str) -> str:
        """Lines until one does not end in a backslash."""
        lines = [await self._question(prompt)]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1].rstrip()
            lines.append(await self._question("... > "))
        return "\n".join(lines)

    async def _question(self, prompt: str) -> str:
        line = await self._terminal.ask(prompt)
        if line is None or line.strip() in ("q", "quit", "exit"):
            self.left.set()
            await asyncio.Event().wait()  # until the rollout is cancelled
        assert line is not None
        return line.strip()

    def _is_common(self, line: str) -> bool:
        """Do what is always possible."""
        word, _, rest = line.partition(" ")
        if line in ("m", "messages"):
            for message in self._messages:
                self._terminal.say("\n".join(message_lines(message)))
        elif line in ("t", "tools"):
            self._terminal.say("\n".join(tool_lines(self._tools)) or "no tools")
        elif line in ("?", "h", "help"):
            self._terminal.say(f"{STEP_HELP}\n{TYPE_HELP}")
        elif word == "save" and rest.strip():
            self._save(Path(rest.strip()))
        else:
            return False
        return True

    def _save(self, path: Path) -> None:
        try:
            path.write_text(
                "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in self._answers)
            )
        except OSError as error:
            self._terminal.say(f"cannot write {path}: {error.strerror}")
            return
        self._terminal.say(
            f'{len(self._answers)} answers saved; replay them: [llm] model = "scripted", script = "{path}"'
        )

    def _show_new(self, messages: list[Message], tools: list[ToolSchema]) -> None:
        """What the agent has added since the last call; all of it when it is another conversation."""
        known = len(self._messages)
        same = messages[:known] == self._messages or _texts(messages[:known]) == _texts(self._messages)
        for message in messages[known:] if same else messages:
            self._terminal.say("\n".join(message_lines(message)))
        self._messages, self._tools = list(messages), tools

    def _show(self, answer: Message) -> None:
        self._answers.append({key: value for key, value in answer.items() if value not in (None, [])})
        self._messages.append(answer)
        self._terminal.say("\n".join(message_lines(answer)))


def _texts(messages: list[Message]) -> list[tuple[Any, Any]]:
    """Messages without what is added to them on their way, such as the ids of tool calls."""
    return [(message.get("role"), message.get("content") or "") for message in messages]


def tool_lines(tools: list[ToolSchema]) -> list[str]:
    """add(a, b)  Adds two numbers."""
    lines = []
    for tool in tools:
        function = tool.get("function", {})
        names = ", ".join((function.get("parameters") or {}).get("properties") or {})
        lines.append(f"  {function.get('name')}({names})  {function.get('description') or ''}".rstrip())
    return lines


def read_answer(text: str, tools: list[str]) -> Message:
    """What the person typed, as an assistant message. Raises ValueError.

    'call add {"a": 1}' -> {"role": "assistant", "content": "", "tool_calls": [...]}
    """
    if text.split(maxsplit=1)[0] not in ("call", "call!"):
        return {"role": "assistant", "content": text.removeprefix("say ")}
    calls = [_call(line, tools) for line in text.splitlines() if line.strip()]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _call(line: str, tools: list[str]) -> dict[str, Any]:
    word, _, rest = line.strip().partition(" ")
    name, _, arguments = rest.strip().partition(" ")
    if word not in ("call", "call!") or not name:
        raise ValueError(f'expected: call NAME {{"argument": value}}, got {line!r}')
    arguments = arguments.strip() or "{}"
    if word == "call":
        if name not in tools:
            raise ValueError(
                f"there is no tool {name!r}: {', '.join(tools) or 'none at all'} (call! sends it)"
            )
        try:
            if not isinstance(json.loads(arguments), dict):
                raise ValueError(f"the arguments must be a JSON object, got {arguments} (call! sends them)")
        except json.JSONDecodeError as error:
            raise ValueError(f"the arguments are no JSON: {error} (call! sends them)") from error
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


class TypedProvider:
    """You are the model."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        messages = list(request.messages)
        message = await self._steps.typed(messages, list(request.tools))
        return ProviderAnswer(
            message=message,
            finish_reason="tool_calls" if message.get("tool_calls") else "stop",
            prompt_tokens=sum(_words(m) for m in messages),
            completion_tokens=_words(message),
            model="you",
        )

    def state(self) -> ProviderState:
        """One call at a time is shown; the others wait for you."""
        return ProviderState()

    async def close(self) -> None:
        """Nothing to drop."""


def _words(message: Message) -> int:
    return len(json.dumps([message.get("content"), message.get("tool_calls")]).split())


class SteppedTarget:
    """Each answer is shown before the agent gets it."""

    def __init__(self, inner: Target, steps: Steps) -> None:
        self._inner = inner
        self._steps = steps
        self.is_policy = inner.is_policy

    def new_tree(self) -> ConversationTree:
        return self._inner.new_tree()

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnPolicyText | None,
    ) -> Answer:
        # No text on the way: the agent gets nothing before the person has seen it.
        result: Answer = await self._steps.answered_by(
            call.messages, call.tools, lambda: self._inner.answer(call, tree, defaults, seed, None)
        )
        return result

    def count(self, call: ModelCall, tree: ConversationTree) -> int:
        return self._inner.count(call, tree)
