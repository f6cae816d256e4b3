"""What a run may use up, and what it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from osmosis_ai.providers.prices import NOTHING, Prices, Usage, as_dollars, cost
from osmosis_ai.types import Outcome


@dataclass(frozen=True, slots=True)
class RunBudget:
    """`[budget]` of a run; None: as much as it takes."""

    tokens: int | None = None
    dollars: float | None = None
    seconds: float | None = None  # of one command

    @property
    def limits_money(self) -> bool:
        return self.tokens is not None or self.dollars is not None


class Spending:
    """Tokens and dollars of all rollouts of a run, those that were tried again included.

    What is out is not in it yet, so a run ends above its budget by what one wave of rollouts takes at most.
    """

    def __init__(self, budget: RunBudget, prices: Prices | None, earlier: Usage = NOTHING) -> None:
        self.budget = budget
        self.prices = prices
        self.usage = earlier

    def add(self, outcome: Outcome) -> None:
        self.usage += usage_of_outcome(outcome)

    @property
    def dollars(self) -> float | None:
        """None: no prices are known."""
        return None if self.prices is None else cost(self.usage, self.prices)

    @property
    def exhausted(self) -> str:
        """Which budget is spent, and the way out; "" while there is something left."""
        budget, dollars = self.budget, self.dollars
        if budget.dollars is not None and dollars is not None and dollars >= budget.dollars:
            return _spent("run_dollars", f"{budget.dollars:g}", as_dollars(dollars))
        if budget.tokens is not None and self.usage.tokens >= budget.tokens:
            return _spent("run_tokens", str(budget.tokens), f"{self.usage.tokens:,} tokens")
        return ""

    def out_of_time(self) -> str:
        return _spent("run_seconds", f"{self.budget.seconds:g}", "the time is up")


class Deadline:
    """Calls `expired` after so many seconds in which it was not paused; None: never."""

    def __init__(self, seconds: float | None, expired: Callable[[], None]) -> None:
        self._left = seconds
        self._expired = expired
        self._timer: asyncio.TimerHandle | None = None
        self._started = 0.0

    def start(self) -> None:
        if self._left is not None:
            self._started = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self._left, self._expired)

    def pause(self) -> None:
        if self._timer is not None and self._left is not None:
            self._timer.cancel()
            self._timer = None
            self._left = max(0.0, self._left - (time.monotonic() - self._started))


class Guard:
    """Calls `stop` with the reason when the budget of a run is used up."""

    def __init__(self, spending: Spending, stop: Callable[[str], None]) -> None:
        self._spending = spending
        self._stop = stop
        self._deadline = Deadline(spending.budget.seconds, lambda: stop(spending.out_of_time()))

    def start(self) -> None:
        """From now on time counts; earlier commands may have spent all the rest."""
        self._check()
        self._deadline.start()

    def pause(self) -> None:
        """Until `start` no time counts."""
        self._deadline.pause()

    def add(self, outcome: Outcome) -> None:
        """One more rollout has ended, whether it counts or is tried again."""
        self._spending.add(outcome)
        self._check()

    def _check(self) -> None:
        if why := self._spending.exhausted:
            self._stop(why)


def _spent(key: str, limit: str, spent: str) -> str:
    return f"budget.{key} = {limit} is used up ({spent}): raise it, e.g. with --set budget.{key}=..."


def usage_of_outcome(outcome: Outcome) -> Usage:
    return Usage(outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens)
