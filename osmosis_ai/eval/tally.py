"""What may be said about the rewards of an eval, counted rollout by rollout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from osmosis_ai.eval.statistics import Estimate, PassEstimate, mean_reward, pass_rates
from osmosis_ai.types import Outcome

KS = (1, 2, 4, 8, 16, 32, 64)  # of pass@k, as far as the attempts per row go


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What may be said about the rewards of an eval."""

    rows: int
    attempts: int
    graded: int
    failures: dict[str, int]  # status -> rollouts without a reward
    first_failures: dict[str, str]  # status -> row and reason of the first of them, by row and attempt
    mean: Estimate | None  # None when nothing was graded
    pass_rates: list[PassEstimate]  # for k = 1, 2, 4, ... up to the attempts per row
    completion_tokens: int
    turns: int
    malformed_tool_calls: int
    branches: dict[str, int]  # reason -> calls that do not continue the latest turn of their sample
    stopped: str  # why the run ended before every place was tried; "" when it did not


class Tally:
    """Takes outcomes in any order; keeps a number per graded rollout, and a count of everything else."""

    def __init__(self, attempts: int, pass_threshold: float) -> None:
        self._attempts = attempts
        self._threshold = pass_threshold
        self._rows: set[int] = set()
        self._rewards: dict[int, list[float]] = {}
        self._failures: Counter[str] = Counter()
        self._first: dict[str, Outcome] = {}  # status -> the failure of the first row
        self._branches: Counter[str] = Counter()
        self.stopped = ""
        self._turns = self._completion_tokens = self._malformed = 0

    def add(self, outcome: Outcome) -> None:
        """One more rollout that counts."""
        self._rows.add(outcome.row_index)
        if outcome.reward is not None:
            self._rewards.setdefault(outcome.row_index, []).append(outcome.reward)
        else:
            self._fail(outcome)
        self._turns += outcome.turns
        self._completion_tokens += outcome.completion_tokens
        self._malformed += outcome.malformed_tool_calls
        self._branches.update(outcome.branches)

    def _fail(self, outcome: Outcome) -> None:
        status = outcome.status.value
        self._failures[status] += 1
        first = self._first.setdefault(status, outcome)
        if (outcome.row_index, outcome.member) < (first.row_index, first.member):
            self._first[status] = outcome

    def report(self) -> EvalReport:
        """Of what was added so far. A failure is counted, never taken for a reward of 0."""
        first = {status: f"row {o.row_index}: {o.reason}" for status, o in self._first.items()}
        # Sorted, so that the figures do not depend on who ended first, to the last bit.
        rewards = {row: sorted(self._rewards[row]) for row in sorted(self._rewards)}
        return EvalReport(
            rows=len(self._rows),
            attempts=self._attempts,
            graded=sum(len(of_row) for of_row in rewards.values()),
            failures=dict(self._failures),
            first_failures=first,
            mean=mean_reward(rewards) if rewards else None,
            pass_rates=self._pass_rates(rewards),
            completion_tokens=self._completion_tokens,
            turns=self._turns,
            malformed_tool_calls=self._malformed,
            branches=dict(self._branches),
            stopped=self.stopped,
        )

    def _pass_rates(self, rewards: dict[int, list[float]]) -> list[PassEstimate]:
        """pass@1, pass@2, pass@4, ... over the rows whose attempts were all graded."""
        complete = {row: of_row for row, of_row in rewards.items() if len(of_row) == self._attempts}
        if not complete:
            return []
        return [pass_rates(complete, k, threshold=self._threshold) for k in KS if k <= self._attempts]
