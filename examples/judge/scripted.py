"""A model and a judge without a network, so that the example runs anywhere."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

Message = dict[str, Any]


def answer(messages: list[Message], tools: list[Any], random: Random) -> Message:
    """The model: right or wrong, in a sentence or as a bare number."""
    numbers = [int(digits) for digits in re.findall(r"\d+", messages[-1]["content"])]
    result = sum(numbers) if "plus" in messages[-1]["content"] else random.randint(2, 999)
    return {"content": random.choice(["The answer is {}.", "{}"]).format(result)}


def verdict(messages: list[Message], tools: list[Any], random: Random) -> Message:
    """The judge: a sentence ends in a full stop."""
    text = messages[-1]["content"].split("<<<BEGIN_CANDIDATE_OUTPUT>>>\n")[1].split("\n<<<END_")[0]
    score = float(text.endswith("."))
    return {"content": json.dumps({"score": score, "explanation": "a sentence" if score else "no sentence"})}
