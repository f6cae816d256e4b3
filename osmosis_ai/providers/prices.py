"""What an external model's tokens cost."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from osmosis_ai.types import Turn

TOKENS_PER_PRICE = 1_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """Dollars per million tokens, as `[llm]` gives them."""

    input: float
    output: float
    cached_input: float | None = None  # of prompt tokens that the endpoint had cached; None: as the others


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, or of many, as the endpoint counted them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0  # of the prompt tokens; 0 also where the endpoint does not tell

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


NOTHING = Usage(0, 0)


def usage_of(turns: Iterable[Turn]) -> Usage:
    """The tokens of recorded turns, added up."""
    prompt_tokens = completion_tokens = cached_tokens = 0
    for turn in turns:
        prompt_tokens += turn.prompt_tokens
        completion_tokens += turn.completion_tokens
        cached_tokens += turn.sampling.get("cached_tokens", 0)
    return Usage(prompt_tokens, completion_tokens, cached_tokens)


def cost(usage: Usage, prices: Prices) -> float:
    """Dollars.

    1,000,000 prompt tokens at $2, of which 400,000 cached at $0.5, and 100,000 completion tokens at $10:
    0.6 * 2 + 0.4 * 0.5 + 0.1 * 10 = 2.4
    """
    cached_price = prices.input if prices.cached_input is None else prices.cached_input
    fresh_tokens = usage.prompt_tokens - usage.cached_tokens
    in_millionths = (
        fresh_tokens * prices.input
        + usage.cached_tokens * cached_price
        + usage.completion_tokens * prices.output
    )
    return in_millionths / TOKENS_PER_PRICE


def as_dollars(amount: float) -> str:
    """With cents; below a dollar with three significant digits.

    1234.5 -> $1,234.50    0.4 -> $0.40    0.00041236 -> $0.000412
    """
    if not 0 < amount < 1:
        return f"${amount:,.2f}"
    digits = f"{amount:.{2 - math.floor(math.log10(amount))}f}".rstrip("0")
    return f"${digits}" if len(digits) > len("0.00") else f"${amount:.2f}"
