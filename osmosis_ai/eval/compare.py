"""Two runs over the same rows: how much better the second is, where, and whether chance would do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.errors import UsageError
from osmosis_ai.eval.statistics import Difference, paired_difference
from osmosis_ai.eval.stored import StoredRun, last_words, lineage_note
from osmosis_ai.types import Rollout

MANY = 8  # rows that a message names


@dataclass(frozen=True, slots=True)
class McNemar:
    """Rows by who solved them, and the exact two-sided p-value that the two runs solve rows equally often."""

    both: int
    only_first: int
    only_second: int
    neither: int
    p_value: float


@dataclass(frozen=True, slots=True)
class Flip:
    """A row that passes in one run and not in the other."""

    row: int
    first: float  # mean reward over the row's attempts
    second: float
    first_says: str  # the first line of the last answer
    second_says: str


@dataclass(frozen=True, slots=True)
class Part:
    """The rows with one value of a metadata column."""

    value: str
    rows: int
    difference: Difference


@dataclass(frozen=True, slots=True)
class Comparison:
    """The second run minus the first, row by row."""

    first: str
    second: str
    difference: Difference
    pass_threshold: float
    mcnemar: McNemar | None  # None: rewards that are not 0 or 1, or several attempts at a row
    flips: list[Flip]  # those that were lost first, then those that were won, each by row
    by: list[Part] = field(default_factory=list)
    changes: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # what differs: model, sampling, ...
    notes: list[str] = field(default_factory=list)


def compare(
    first: StoredRun,
    second: StoredRun,
    *,
    allow_code_change: bool = False,
    column: Mapping[int, str] | None = None,
) -> Comparison:
    """Compare two eval runs. `column` maps a row to its value of the metadata column to split by.

    Raises UsageError with every reason why the two cannot be compared.
    """
    refuse_incomparable(first, second, allow_code_change=allow_code_change)
    threshold = float(second.record.config.get("eval", {}).get("pass_threshold", 1.0))
    return Comparison(
        first=first.run_id,
        second=second.run_id,
        difference=paired_difference(first.rewards, second.rewards),
        pass_threshold=threshold,
        mcnemar=_mcnemar(first.rewards, second.rewards),
        flips=_flips(first, second, threshold),
        by=_parts(first.rewards, second.rewards, column or {}),
        changes=_changes(first, second),
        notes=list(_notes(first, second)),
    )


# --- what may be compared

CODE_KEYS = ("entrypoint", "grader")  # of a run's identity: the workflow and grader, or a later grading
SAME_KEYS = {
    "dataset": "the dataset",
    "eval.attempts": "the attempts per row",
}


def refuse_incomparable(first: StoredRun, second: StoredRun, *, allow_code_change: bool) -> None:
    """Raise UsageError with every reason why the two cannot be compared."""
    reasons = list(_reasons(first, second, allow_code_change=allow_code_change))
    if reasons:
        raise UsageError(
            f"runs {first.run_id!r} and {second.run_id!r} cannot be compared:\n"
            + "\n".join(f"  {reason}" for reason in reasons)
        )


def _reasons(first: StoredRun, second: StoredRun, *, allow_code_change: bool) -> Iterator[str]:
    """Every reason, with the way out where there is one."""
    if first.run_id == second.run_id:
        yield "they are one and the same run"
        return
    for run in (first, second):
        if run.record.kind != "eval":
            yield f"{run.run_id!r} is a run of kind {run.record.kind!r}; only evals are compared"
        elif not run.rewards:
            yield f"{run.run_id!r} has no graded rollout ({run.record.state})"
    before, after = first.record.identity, second.record.identity
    for key, words in SAME_KEYS.items():
        if before.get(key) != after.get(key):
            yield f"{words} differ{'s' if key == 'dataset' else ''}: {before.get(key)} and {after.get(key)}"
    if before.get("dataset") == after.get("dataset"):
        yield from _other_rows(first, second)
    if not allow_code_change:
        yield from _other_code(first, second)


def _other_rows(first: StoredRun, second: StoredRun) -> Iterator[str]:
    for run, other in ((first, second), (second, first)):
        missing = sorted(other.rows - run.rows)
        if missing:
            state = "" if run.record.state == "done" else f" (it is {run.record.state})"
            named = ", ".join(map(str, missing[:MANY])) + (", ..." if len(missing) > MANY else "")
            yield f"other rows: {run.run_id!r}{state} lacks {len(missing)} rows of the other: {named}"


def _other_code(first: StoredRun, second: StoredRun) -> Iterator[str]:
    before, after = first.record.identity, second.record.identity
    for key in CODE_KEYS:
        if before.get(key) != after.get(key):
            yield (
                f"the code differs, so the rewards may not mean the same: {key} was {before.get(key)}, "
                f"is {after.get(key)}. Compare anyway with --allow-code-change."
            )
    graders = [run.record.config.get("rollout", {}).get("grader", "") for run in (first, second)]
    if graders[0] != graders[1]:
        yield (
            f"the grader differs: {graders[0]!r} and {graders[1]!r}. Compare anyway with --allow-code-change."
        )


def _changes(first: StoredRun, second: StoredRun) -> dict[str, tuple[Any, Any]]:
    before, after = first.record.identity, second.record.identity
    return {
        key: (before.get(key), after.get(key))
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    }


def _notes(first: StoredRun, second: StoredRun) -> Iterator[str]:
    for run in (first, second):
        failed = sum(rollout.reward is None for rollout in run.rollouts)
        if failed:
            yield f"{run.run_id}: {failed} of {len(run.rollouts)} rollouts failed and have no reward"
        if run.record.state != "done":
            yield f"{run.run_id} is {run.record.state}"
        if note := lineage_note(run.record, [rollout.started_at for rollout in run.rollouts]):
            yield note


# --- what is said about them


def mcnemar_p_value(only_first: int, only_second: int) -> float:
    """Exact two-sided McNemar test (Psychometrika 12, 1947): a fair coin per row that one run alone solved.

    Both as often, or no such row: 1. 0 and 6: 2 * (1/2)**6 = 0.03125.
    """
    total, ways, tail = only_first + only_second, 1, 0  # ways: of choosing k out of total, exact integers
    for k in range(min(only_first, only_second) + 1):
        tail += ways
        ways = ways * (total - k) // (k + 1)
    return min(1.0, float(2 * tail / 2**total))


def _mcnemar(first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]]) -> McNemar | None:
    """Only for one attempt per row and rewards of 0 or 1: there a row is solved or it is not."""
    shared = first.keys() & second.keys()
    pairs = [(first[row], second[row]) for row in shared]
    if any(len(a) != 1 or len(b) != 1 or {*a, *b} - {0.0, 1.0} for a, b in pairs):
        return None
    count = {(a, b): 0 for a in (0.0, 1.0) for b in (0.0, 1.0)}
    for a, b in pairs:
        count[a[0], b[0]] += 1
    return McNemar(
        both=count[1.0, 1.0],
        only_first=count[1.0, 0.0],
        only_second=count[0.0, 1.0],
        neither=count[0.0, 0.0],
        p_value=mcnemar_p_value(count[1.0, 0.0], count[0.0, 1.0]),
    )


def _flips(first: StoredRun, second: StoredRun, threshold: float) -> list[Flip]:
    """Rows whose mean reward reaches the threshold in one run only."""
    before, after = _by_row(first), _by_row(second)
    flips = []
    for row in sorted(before.keys() & after.keys()):
        a, b = _mean(before[row]), _mean(after[row])
        if (a >= threshold) != (b >= threshold):
            flips.append(Flip(row, a, b, _says(before[row], a < b), _says(after[row], b < a)))
    return sorted(flips, key=lambda flip: flip.second > flip.first)


def _by_row(run: StoredRun) -> dict[int, list[Rollout]]:
    rows: dict[int, list[Rollout]] = {}
    for rollout in run.rollouts:
        if rollout.reward is not None:
            rows.setdefault(rollout.row_index, []).append(rollout)
    return rows


def _mean(rollouts: Sequence[Rollout]) -> float:
    return sum(rollout.reward or 0.0 for rollout in rollouts) / len(rollouts)


def _says(rollouts: Sequence[Rollout], worst: bool) -> str:
    """The answer that speaks for the row: of its worst attempt where it lost, of its best where it won."""
    return last_words((min if worst else max)(rollouts, key=lambda rollout: rollout.reward or 0.0))


def _parts(
    first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]], column: Mapping[int, str]
) -> list[Part]:
    rows_of: dict[str, list[int]] = {}
    for row in sorted(first.keys() & second.keys()):
        if row in column:
            rows_of.setdefault(column[row], []).append(row)
    return [
        Part(
            value,
            len(rows),
            paired_difference({r: first[r] for r in rows}, {r: second[r] for r in rows}),
        )
        for value, rows in sorted(rows_of.items())
    ]
