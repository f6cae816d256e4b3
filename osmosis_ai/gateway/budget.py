"""What the calls of one rollout may use up, all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osmosis_ai.gateway.call import Refusal
from osmosis_ai.providers.prices import Prices, Usage, as_dollars, cost

TOKENS_SPENT = "token_budget_spent"
DOLLARS_SPENT = "dollar_budget_spent"


@dataclass(frozen=True, slots=True)
class Budget:
    """None: as much as they want. The call that reaches a limit is answered, and so are those that are under
    way with it: what a call uses up is known when it is answered. No other is.
    """

    tokens: int | None = None  # prompt and completion
    dollars: float | None = None
    prices: Prices | None = None  # what the dollars are counted by

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Budget:
        """From the JSON of `asdict`."""
        prices = data["prices"]
        return cls(data["tokens"], data["dollars"], None if prices is None else Prices(**prices))

    def check(self, spent: Usage) -> None:
        """Raise Refusal (403) when nothing is left."""
        if self.tokens is not None and spent.tokens >= self.tokens:
            raise Refusal(
                403,
                f"the rollout has spent {spent.tokens:,} tokens and its budget is {self.tokens:,} "
                "(budget.rollout_tokens): no further call is answered",
                code=TOKENS_SPENT,
            )
        if self.dollars is not None and self.prices is not None:
            paid = cost(spent, self.prices)
            if paid >= self.dollars:
                raise Refusal(
                    403,
                    f"the rollout has spent {as_dollars(paid)} and its budget is {as_dollars(self.dollars)} "
                    "(budget.rollout_dollars): no further call is answered",
                    code=DOLLARS_SPENT,
                )
