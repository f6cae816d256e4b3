"""One `osmosis eval grade`: the stored rollouts graded again, and what that changed."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.cli.display import Display, first_line
from osmosis_ai.cli.options import existing_store
from osmosis_ai.config import NAME, NAME_RULE, JudgeTable, load_config
from osmosis_ai.controller.identity import endpoint_identity
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.grade import NewGrading, grade_again, record_of
from osmosis_ai.eval.statistics import paired_difference
from osmosis_ai.eval.stored import StoredRun, dataset_rows, last_words, read_run
from osmosis_ai.rollout.discovery import load_grader
from osmosis_ai.store.base import RunRecord, Store
from osmosis_ai.store.lock import RunLock
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Rollout

if TYPE_CHECKING:  # most gradings ask nobody
    from osmosis_ai.controller.judging import Judging

SHOWN_FAILURES = 3
SHOWN_CHANGES = 12


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options say of the two runs."""

    run_id: str
    name: str
    dataset: Path | None
    judge: Path | None
    timeout: float | None
    workspace: Workspace

    def __post_init__(self) -> None:
        if not re.fullmatch(NAME, self.name):
            raise UsageError(
                f"{self.name!r} cannot name a run, which must be {NAME_RULE}: give another with --name"
            )


def read_grader(place: str, max_concurrent: int) -> NewGrading:
    """The grader at "FILE.py:CLASS". Raises EntrypointError."""
    file, _, class_name = place.partition(":")
    found, config = load_grader(file, class_name or None)
    digest = hashlib.sha256(Path(inspect.getfile(found)).read_bytes()).hexdigest()[:16]
    return NewGrading(found, config, f"{Path(file).name}:{found.__name__} {digest}", 0.0, max_concurrent)


async def grade_stored(asked: Asked, grading: NewGrading, display: Display) -> tuple[StoredRun, StoredRun]:
    store = existing_store(asked.workspace)
    try:
        origin = await read_run(store, asked.run_id)
        judge = _judge(origin.record, asked.judge)
        grading = replace(
            grading,
            timeout_seconds=asked.timeout or _timeout(origin.record),
            judge=None if judge is None else endpoint_identity(*judge),
        )
        record = record_of(origin, asked.name, grading)
        rows = dataset_rows(origin.record, asked.dataset)
        folder = asked.workspace.run_folder(asked.name)
        with RunLock(folder):
            record = await _known(store, record)
            # what a grader prints is no result of ours
            with contextlib.redirect_stdout(sys.stderr), display.bar("grading"):
                async with _judging(judge, folder, grading.max_concurrent) as judging:
                    grading = replace(grading, judging=judging)
                    display.expect("grading", len(origin.rollouts))
                    on_end = progress(display, len(origin.rollouts))
                    return origin, await grade_again(store, origin, record, grading, rows, on_end)
    finally:
        await store.close()


def _judge(record: RunRecord, file: Path | None) -> tuple[JudgeTable, Path] | None:
    """The [judge] of the file, else that of the run, and the folder of the file; None: there is none."""
    if file is not None:
        config = load_config(file)
        if config.judge is None:
            raise UsageError(f"--judge {file}: there is no table [judge] in it")
        return config.judge, file.parent
    table = record.config.get("judge")
    source = Path(record.config.get("source", ""))
    return None if table is None else (JudgeTable.model_validate(table), source.parent)


@contextlib.asynccontextmanager
async def _judging(
    judge: tuple[JudgeTable, Path] | None, folder: Path, most: int
) -> AsyncIterator[Judging | None]:
    if judge is None:
        yield None
        return
    from osmosis_ai.controller.rollouts import open_judge

    judging = open_judge(*judge, folder, most=most)
    try:
        await judging.start()
        yield judging
    finally:
        await judging.stop()


def _timeout(record: RunRecord) -> float:
    return float(record.config.get("rollout", {}).get("grader_timeout_seconds", 150.0))


async def _known(store: Store, record: RunRecord) -> RunRecord:
    """The run as it is stored when it is this one; UsageError when another has its name."""
    known = await store.get_run(record.run_id)
    if known is None:
        return record
    changed = [
        f"  {key}: was {known.identity.get(key)!r}, is {record.identity.get(key)!r}"
        for key in sorted({*known.identity, *record.identity})
        if known.identity.get(key) != record.identity.get(key)
    ]
    if changed:
        raise UsageError(
            f"run {record.run_id!r} exists and was made with other inputs:\n"
            + "\n".join(changed)
            + "\nGive this grading another name with --name."
        )
    return known


def progress(display: Display, total: int) -> Callable[[Rollout], None]:
    """Count on the bar, and the first few failures in a line each."""
    done = failed = 0

    def on_end(rollout: Rollout) -> None:
        nonlocal done, failed
        done += 1
        display.advance(done, f"{done}/{total}")
        if rollout.reward is None:
            failed += 1
            if failed <= SHOWN_FAILURES:
                display.note(
                    f"  row {rollout.row_index}: {rollout.status.value}: {first_line(rollout.reason)}"
                )

    return on_end


def show(origin: StoredRun, graded: StoredRun, display: Display) -> None:
    counts: dict[str, int] = {}
    for rollout in graded.rollouts:
        counts[rollout.status.value] = counts.get(rollout.status.value, 0) + 1
    changes = _changes(origin, graded)
    display.data(
        {
            "event": "graded",
            "run_id": graded.run_id,
            "graded_from": origin.run_id,
            "rollouts": counts,
            "changes": [asdict(change) for change in changes],
        }
    )
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    display.out(f"run {graded.run_id}: the rollouts of {origin.run_id}, graded again: {words}")
    display.out("\n".join(_difference(origin, graded, changes)))


@dataclass(slots=True)
class Change:
    """Rollouts whose reward went from one value to another; None: no reward."""

    before: float | None
    after: float | None
    rollouts: int
    first_row: int
    says: str  # the last words of the first of them


def _changes(origin: StoredRun, graded: StoredRun) -> list[Change]:
    """What changed, the most frequent first."""
    old = {(rollout.group_id, rollout.member): rollout for rollout in origin.rollouts}
    found: dict[tuple[float | None, float | None], Change] = {}
    for rollout in graded.rollouts:
        before, after = old[rollout.group_id, rollout.member].reward, rollout.reward
        if before == after:
            continue
        words = last_words(old[rollout.group_id, rollout.member])
        change = found.setdefault((before, after), Change(before, after, 0, rollout.row_index, words))
        change.rollouts += 1
    return sorted(found.values(), key=lambda change: -change.rollouts)


def _difference(origin: StoredRun, graded: StoredRun, changes: list[Change]) -> Iterator[str]:
    if origin.rewards and graded.rewards:
        difference = paired_difference(origin.rewards, graded.rewards)
        yield (
            f"  mean reward {difference.mean_first:.3f} -> {difference.mean_second:.3f} "
            f"over {difference.estimate.num_rows} rows"
        )
    yield f"  {sum(change.rollouts for change in changes)} of {len(graded.rollouts)} rewards changed"
    for change in changes[:SHOWN_CHANGES]:
        yield (
            f"  {_reward(change.before):>6} -> {_reward(change.after):<6} {change.rollouts:>5}  "
            f"first row {change.first_row}: {first_line(change.says)}"
        )
    if len(changes) > SHOWN_CHANGES:
        yield f"  ... and {len(changes) - SHOWN_CHANGES} more kinds of change (all with --json)"


def _reward(reward: float | None) -> str:
    return "-" if reward is None else f"{reward:.4g}"
