"""What may be said about the rewards of an eval, counted rollout by rollout."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from osmosis_ai.eval.statistics import Estimate, PassEstimate, mean_reward, pass_rates
from osmosis_ai.providers.prices import NOTHING, Prices, Usage, cost
from osmosis_ai.types import Outcome

KS = (1, 2, 4, 8, 16, 32, 64)  # of pass@k, as far as the attempts per row go


@dataclass(frozen=True, slots=True)
class Spread:
    """How a figure lies over the rollouts."""

    mean: float
    median: float
    p95: float  # 95 of 100 rollouts have at most this much

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """None where there is no value. [1, 2, 3, 10] -> 4.0, 2.5 and 8.95 (between two, in proportion)"""
        if not values:
            return None
        ordered = sorted(values)
        return cls(sum(values) / len(values), _quantile(ordered, 0.5), _quantile(ordered, 0.95))


def _quantile(ordered: Sequence[float], share: float) -> float:
    """[1, 2, 3, 10] and 0.95: 0.85 of the way from the third to the fourth, 8.95"""
    below, fraction = divmod((len(ordered) - 1) * share, 1.0)
    low = ordered[int(below)]
    return low if not fraction else low + (ordered[int(below) + 1] - low) * fraction


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What may be said about the rewards of an eval."""

    rows: int
    first_row: int | None  # the lowest index among them; None when there is none
    worst_row: int | None  # the first that failed, else the first of the lowest reward
    attempts: int
    graded: int
    failures: dict[str, int]  # status -> rollouts without a reward
    first_failures: dict[str, str]  # status -> row and reason of the first of them, by row and member
    mean: Estimate | None  # None when nothing was graded
    pass_rates: list[PassEstimate]  # for k = 1, 2, 4, ... up to the attempts per row
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None  # None: no prices are known
    turns: int
    seconds_per_turn: float | None  # from a call to its answer; None when none was answered
    tool_errors: int  # tool results that say they are errors
    malformed_tool_calls: int
    branches: dict[str, int]  # reason -> calls that do not continue the latest turn of their sample
    stopped: str  # why the run ended before every place was tried; "" when it did not
    by_choice: bool  # it was a budget or an answer that stopped it, not failures
    per_rollout: dict[str, Spread]  # turns, tokens, seconds, model_seconds


class Tally:
    """Takes outcomes in any order; keeps a few numbers per rollout, and a count of everything else."""

    def __init__(self, attempts: int, pass_threshold: float, prices: Prices | None = None) -> None:
        self._attempts = attempts
        self._threshold = pass_threshold
        self._rows: set[int] = set()
        self._rewards: dict[int, list[float]] = {}
        self._failures: Counter[str] = Counter()
        self._first: dict[str, Outcome] = {}  # status -> the failure of the first row
        self._branches: Counter[str] = Counter()
        self.stopped = ""
        self.by_choice = False
        self._malformed = self._tool_errors = 0
        self._prices = prices
        self._usage = NOTHING
        self._turns, self._tokens = array("q"), array("q")  # of each rollout
        self._seconds, self._model_seconds = array("d"), array("d")

    def add(self, outcome: Outcome) -> None:
        """One more rollout that counts."""
        self._rows.add(outcome.row_index)
        if outcome.reward is not None:
            self._rewards.setdefault(outcome.row_index, []).append(outcome.reward)
        else:
            self._fail(outcome)
        usage = Usage(outcome.prompt_tokens, outcome.completion_tokens, outcome.cached_tokens)
        self._usage += usage
        self._turns.append(outcome.turns)
        self._tokens.append(usage.tokens)
        self._seconds.append(outcome.duration_seconds)
        self._model_seconds.append(outcome.model_seconds)
        self._malformed += outcome.malformed_tool_calls
        self._tool_errors += outcome.tool_errors
        self._branches.update(outcome.branches)

    def _fail(self, outcome: Outcome) -> None:
        status = outcome.status.value
        self._failures[status] += 1
        first = self._first.setdefault(status, outcome)
        if (outcome.row_index, outcome.member) < (first.row_index, first.member):
            self._first[status] = outcome

    def _worst_row(self, rewards: Mapping[int, Sequence[float]]) -> int | None:
        failed = (outcome.row_index for outcome in self._first.values())
        return min(failed, default=min(rewards, key=lambda row: (min(rewards[row]), row), default=None))

    def report(self) -> EvalReport:
        """Of what was added so far. A failure is counted, never taken for a reward of 0."""
        first = {status: f"row {o.row_index}: {o.reason}" for status, o in self._first.items()}
        # Sorted, so that the figures do not depend on who ended first, to the last bit.
        rewards = {row: sorted(self._rewards[row]) for row in sorted(self._rewards)}
        return EvalReport(
            rows=len(self._rows),
            first_row=min(self._rows, default=None),
            worst_row=self._worst_row(rewards),
            attempts=self._attempts,
            graded=sum(len(of_row) for of_row in rewards.values()),
            failures=dict(self._failures),
            first_failures=first,
            mean=mean_reward(rewards) if rewards else None,
            pass_rates=self._pass_rates(rewards),
            prompt_tokens=self._usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens,
            dollars=None if self._prices is None else cost(self._usage, self._prices),
            turns=sum(self._turns),
            seconds_per_turn=sum(self._model_seconds) / turns if (turns := sum(self._turns)) else None,
            tool_errors=self._tool_errors,
            malformed_tool_calls=self._malformed,
            branches=dict(self._branches),
            stopped=self.stopped,
            by_choice=self.by_choice,
            per_rollout=self._per_rollout(),
        )

    def _per_rollout(self) -> dict[str, Spread]:
        figures: dict[str, Sequence[float]] = {
            "turns": self._turns,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "model_seconds": self._model_seconds,
        }
        spreads = {name: Spread.of(values) for name, values in figures.items()}
        return {name: spread for name, spread in spreads.items() if spread is not None}

    def _pass_rates(self, rewards: dict[int, list[float]]) -> list[PassEstimate]:
        """pass@1, pass@2, pass@4, ... over the rows whose attempts were all graded."""
        complete = {row: of_row for row, of_row in rewards.items() if len(of_row) == self._attempts}
        if not complete:
            return []
        return [pass_rates(complete, k, threshold=self._threshold) for k in KS if k <= self._attempts]


class Tallies:
    """A tally of all rollouts, and one of those of each value of a metadata column."""

    def __init__(
        self, attempts: int, pass_threshold: float, prices: Prices | None, column: Mapping[int, str]
    ) -> None:
        self._settings = (attempts, pass_threshold, prices)
        self._column = column  # row -> value; empty: no column is asked for
        self._by: dict[str, Tally] = {}
        self.all = Tally(*self._settings)

    def add(self, outcome: Outcome) -> None:
        self.all.add(outcome)
        if self._column:
            value = self._column[outcome.row_index]
            self._by.setdefault(value, Tally(*self._settings)).add(outcome)

    def by(self) -> dict[str, EvalReport]:
        return {value: tally.report() for value, tally in self._by.items()}
