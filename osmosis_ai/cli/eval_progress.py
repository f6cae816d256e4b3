"""What is seen of an eval while it runs: one line that lives on a terminal, a line per result when piped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from osmosis_ai.cli.display import NARROW, Display, Failures, first_line
from osmosis_ai.eval.statistics import wilson_interval
from osmosis_ai.providers.prices import as_dollars
from osmosis_ai.types import Outcome, Rollout

REST_OF_LINE = {True: 31, False: 45}  # columns of the bar (True: a short one), its label and the clock


class EvalProgress:
    """done/total, pass rate with its interval, failures by status, what it costs and how fast it goes."""

    def __init__(
        self,
        display: Display,
        total: int,
        *,
        pass_threshold: float = 1.0,
        dollars: Callable[[], float | None] = lambda: None,
        throttled: Callable[[], int] = lambda: 0,
        lines: bool = True,
    ) -> None:
        self._display = display
        self._total = total
        self._pass_threshold = pass_threshold
        self._dollars = dollars  # that the whole run has cost so far; None: no prices are known
        self._throttled = throttled  # answers so far that said "too many requests"
        self._lines = lines  # one for each result, where nothing lives
        self._done = self._tokens = 0
        self._rewards = 0.0
        self._binary = True  # all rewards so far are 0 or 1
        self._passes: dict[int, tuple[int, int]] = {}  # by row: attempts that passed, and all with a reward
        self._rates = 0.0  # the sum over these rows of the share that passed
        self._failed: Counter[str] = Counter()
        self._failures = Failures(display)
        self._started = time.monotonic()
        self.show()

    def show(self) -> None:
        """Begin the bar, or one that takes its place after a question."""
        if self._display.is_live:
            self._display.expect("rollouts", self._total)
        self.refresh()

    def refresh(self) -> None:
        """The line as it is now, though nothing has ended."""
        if self._display.is_live:
            self._display.advance(self._done, self._line())

    def on_result(self, outcome: Outcome) -> None:
        self._done += 1
        self._tokens += outcome.prompt_tokens + outcome.completion_tokens
        if outcome.reward is None:
            self._failed[outcome.status.value] += 1
        else:
            self._rewards += outcome.reward
            self._binary = self._binary and outcome.reward in (0.0, 1.0)
            self._count(outcome.row_index, passed=outcome.reward >= self._pass_threshold)
        if self._display.is_live:
            if outcome.reward is None:
                self._failures.note(outcome)
            self._display.advance(self._done, self._line())
        elif self._lines and not self._display.as_json:
            self._display.note(f"{self._done}/{self._total}  {result_line(outcome)}")

    def _count(self, row: int, *, passed: bool) -> None:
        passes, attempts = self._passes.get(row, (0, 0))
        if attempts:
            self._rates -= passes / attempts
        self._passes[row] = passes + passed, attempts + 1
        self._rates += (passes + passed) / (attempts + 1)

    def on_retry(self, rollout: Rollout) -> None:
        self._failures.note(rollout.outcome, ", tried again")

    def _line(self) -> str:
        parts = [(f"{self._done}/{self._total}",), *self._parts()]
        return "  ".join(fitting(parts, self._display.columns))

    def _parts(self) -> Iterator[tuple[str, ...]]:
        """The most important first; of each the long way to say it, and a short one where there is one."""
        if self._passes:
            yield (self._pass_rate(),)
        if self._failed:
            by_status = "  ".join(f"{count} {status}" for status, count in self._failed.most_common())
            yield by_status, f"{self._failed.total()} failed"
        if (dollars := self._dollars()) is not None:
            yield (as_dollars(dollars),)
        if throttled := self._throttled():
            yield f"{throttled} answers said 'too many requests'", f"{throttled} x 429"
        if not self._binary:
            yield (f"reward {self._rewards / (self._done - self._failed.total()):.3f}",)
        if (seconds := time.monotonic() - self._started) > 0:
            yield (f"{self._tokens / seconds:,.0f} tok/s",)

    def _pass_rate(self) -> str:
        """Over the rows that have a reward; as in the report, attempts at one row are no more evidence."""
        rows = len(self._passes)
        rate = min(max(self._rates / rows, 0.0), 1.0)
        low, high = wilson_interval(rate, rows)
        return f"pass {rate:.2f} [{low:.2f}, {high:.2f}]"


def fitting(parts: Iterable[tuple[str, ...]], columns: int) -> list[str]:
    """What fits beside the bar, in this order: of each part the first way to say it that does.

    [("12/988",), ("3 workflow_timeout", "3 failed"), ("$0.42",)] in 80 columns -> 12/988, 3 failed, $0.42
    """
    room = columns - REST_OF_LINE[columns < NARROW]
    kept: list[str] = []
    for ways in parts:
        fits = next((way for way in ways if len(way) + 2 <= room), None)
        if fits is not None:
            room -= len(fits) + 2
            kept.append(fits)
    return kept


def result_line(outcome: Outcome) -> str:
    """row 7  graded  reward 1  2 turns  316 tokens  0.84 s"""
    parts = [f"row {outcome.row_index}"]
    parts += [f"member {outcome.member}"] if outcome.member else []
    parts.append(outcome.status.value)
    if outcome.reward is not None:
        parts.append(f"reward {outcome.reward:g}")
    tokens = outcome.prompt_tokens + outcome.completion_tokens
    parts += [f"{outcome.turns} turns", f"{tokens:,} tokens", f"{outcome.duration_seconds:.2f} s"]
    parts += [first_line(outcome.reason)] if outcome.reason else []
    return "  ".join(parts)
