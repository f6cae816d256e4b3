"""A stand-in for a model: it looks prices up as it should, and is careless now and then.

With it the project needs no key and no network. `[llm]` in eval.toml says how to take a real one.
"""

import re
from random import Random

# How often each mistake is made, per order.
GUESSES = 0.15  # answers at once, without looking a price up
FORGETS_AN_ITEM = 0.2  # of an order of two
WRONG_SUM = 0.1


def answer(messages: list[dict], tools: list[dict], random: Random) -> dict:
    """The next message; `random` is seeded by the call, so that every run makes the same mistakes."""
    question = next(message["content"] for message in messages if message["role"] == "user")
    order = [(int(count), item) for count, item in re.findall(r"(\d+) x (\w+)", text_of(question))]
    prices = [int(text_of(message["content"])) for message in messages if message["role"] == "tool"]
    if not prices and random.random() < GUESSES:
        return {"content": f"That should be around {random.randrange(2, 30) * 50} cents."}
    forgets = len(prices) == 1 and random.random() < FORGETS_AN_ITEM
    if len(prices) < len(order) and not forgets:
        item = order[len(prices)][1]
        return {"tool_calls": [{"function": {"name": "price", "arguments": {"item": item}}}]}
    total = sum(count * price for (count, _), price in zip(order, prices, strict=False))
    if random.random() < WRONG_SUM:
        total += 10
    return {"content": f"That makes {total} cents."}


def text_of(content: str | list[dict]) -> str:
    """Content is a text, or a list of parts."""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
