"""A scripted model that solves calculator questions and makes mistakes on purpose.

Rollouts recorded from it teach a new policy the format (`record.toml`, `sft.toml`); its mistakes leave
something for reinforcement learning: the policy learns to make them too, and unlearns them from rewards.
"""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

Message = dict[str, Any]

# How often each mistake is made, per call of the model.
GUESSES = 0.12  # answers at once, with a number out of the air
WRONG_TOOL = 0.35
WRONG_DIGIT = 0.01  # in one argument
SKIPS_SECOND_STEP = 0.2
WRONG_COPY = 0.01  # of the last result, in the answer
MALFORMED = 0.02  # a tool call that is no JSON


def answer(messages: list[Message], tools: list[dict[str, Any]], random: Random) -> Message:
    """The next message of a calculator that is often careless."""
    steps, numbers = read_question(next(m["content"] for m in messages if m["role"] == "user"))
    results = [
        value for m in messages if m["role"] == "tool" and (value := read_number(m["content"])) is not None
    ]
    done = len(results)
    if done == 0 and not has_called(messages) and random.random() < GUESSES:
        return say(random.randint(2, 999))
    if done == len(steps) or (done == 1 and random.random() < SKIPS_SECOND_STEP):
        return say(change_digit(results[-1], random) if random.random() < WRONG_COPY else results[-1])
    a, b = (numbers[0], numbers[1]) if done == 0 else (results[0], numbers[2])
    name = steps[done]
    if random.random() < WRONG_TOOL:
        name = "add" if name == "multiply" else "multiply"
    if random.random() < WRONG_DIGIT:
        a, b = (change_digit(a, random), b) if random.random() < 0.5 else (a, change_digit(b, random))
    return call(name, a, b, malformed=random.random() < MALFORMED)


def read_question(text: str) -> tuple[list[str], list[int]]:
    """ "How much is 29 plus 8, and then times 3?" -> (["add", "multiply"], [29, 8, 3])"""
    parts = text.split(", and then ")
    steps = ["multiply" if re.search("times|multiply", part.lower()) else "add" for part in parts]
    return steps, [int(digits) for digits in re.findall(r"\d+", text)]


def read_number(content: Any) -> int | None:
    """The result of a tool; None when the tool answered with an error."""
    text = content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return int(text) if re.fullmatch(r"-?\d+", text.strip()) else None


def has_called(messages: list[Message]) -> bool:
    return any(m.get("tool_calls") for m in messages)


def say(number: int) -> Message:
    return {"role": "assistant", "content": f"The answer is {number}."}


def call(name: str, a: int, b: int, *, malformed: bool) -> Message:
    arguments = json.dumps({"a": a, "b": b})
    if malformed:
        arguments = arguments[:-1]  # without its closing brace
    return {"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def change_digit(number: int, random: Random) -> int:
    """Another number with one digit changed: 148 -> 178."""
    digits = list(str(abs(number)))
    place = random.randrange(len(digits))
    others = [d for d in "0123456789" if d != digits[place] and not (place == 0 and d == "0")]
    digits[place] = random.choice(others)
    return int("".join(digits))
