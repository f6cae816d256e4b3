"""A scripted model for both agents: the calculator's for the solver, and a checker that is often wrong."""

import re
import sys
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "calculator"))

from demonstrations import answer as solve
from demonstrations import read_question

WRONG_VERDICT = 0.3


def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]], random: Random) -> dict[str, Any]:
    """The next message of whoever asks: only the checker has a question with an answer."""
    asked = next(m["content"] for m in messages if m["role"] == "user")
    if "\nAnswer:" not in asked:
        return solve(messages, tools, random)
    question, given = asked.split("\nAnswer:")
    steps, numbers = read_question(question)
    value = numbers[0]
    for step, number in zip(steps, numbers[1:], strict=False):
        value = value * number if step == "multiply" else value + number
    right = re.findall(r"-?\d+", given)[-1:] == [str(value)]
    if random.random() < WRONG_VERDICT:
        right = not right
    return {"role": "assistant", "content": "right" if right else "wrong"}
