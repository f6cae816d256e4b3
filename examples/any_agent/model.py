"""A scripted model that multiplies with the tool, and forgets to every fourth time."""

from __future__ import annotations

import re
from random import Random
from typing import Any

Message = dict[str, Any]


def answer(messages: list[Message], tools: list[dict[str, Any]], random: Random) -> Message:
    if messages[-1]["role"] == "tool":
        return {"content": f"The answer is {messages[-1]['content']}."}
    a, b = (int(digits) for digits in re.findall(r"\d+", messages[0]["content"]))
    if random.random() < 0.25:
        return {"content": f"Off the top of my head: {a * 10 + b}."}
    return {"tool_calls": [{"function": {"name": "multiply", "arguments": {"a": a, "b": b}}}]}
