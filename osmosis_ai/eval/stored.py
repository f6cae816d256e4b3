"""A run as the store has it: the rollouts that count, and the rows of its dataset."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from osmosis_ai.datasets import dataset_fingerprint, load_rows
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import RolloutFilter, RunRecord, Store
from osmosis_ai.types import Message, Outcome, Rollout, Row, Status

R = TypeVar("R", Rollout, Outcome)

FINGERPRINT_CHARS = 16  # of a dataset, in the identity of a run


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A run and, place by place, the rollout that counts; without turns."""

    record: RunRecord
    rollouts: list[Rollout]  # by step, row and member

    @property
    def run_id(self) -> str:
        return self.record.run_id

    @property
    def rows(self) -> set[int]:
        return {rollout.row_index for rollout in self.rollouts}

    @property
    def rewards(self) -> dict[int, list[float]]:
        """Rewards by row; rows without a graded rollout are left out."""
        by_row: dict[int, list[float]] = {}
        for rollout in self.rollouts:
            if (reward := rollout.reward) is not None:
                by_row.setdefault(rollout.row_index, []).append(reward)
        return by_row


async def read_run(store: Store, run_id: str) -> StoredRun:
    """The run with the rollouts that count. Raises UsageError when there is no such run."""
    record = await find_run(store, run_id)
    return StoredRun(record, counted(await store.rollouts(RolloutFilter(run_id), turns=False)))


def lineage_note(record: RunRecord, started_at: Iterable[float]) -> str | None:
    """What is to be said of a run whose rollouts were not all made with the same inputs.

    `started_at` are the beginnings of those that count.
    """
    parts = Counter(record.lineage_at(begun) for begun in started_at)
    last = len(record.lineage)
    if min(parts, default=last) == last:
        return None
    keys = sorted({key for amendment in record.lineage[min(parts) :] for key in amendment.changes})
    return (
        f"{record.run_id} is of mixed lineage: {sum(parts.values()) - parts[last]} of its rollouts were made "
        f"before a change that was accepted ({', '.join(keys)}), {parts[last]} after the last one"
    )


async def find_run(store: Store, run_id: str) -> RunRecord:
    record = await store.get_run(run_id)
    if record is None:
        known = ", ".join(summary.run.run_id for summary in await store.list_runs())
        raise UsageError(f"there is no run {run_id!r}. Known: {known or 'none'}.")
    return record


def counted(rollouts: Iterable[R]) -> list[R]:
    """The last attempt at every place, by step, row and member; one that still runs is no result yet.

    Place (row 3, member 0): attempt 0 infrastructure, attempt 1 graded -> attempt 1.
    """
    last: dict[tuple[int, int, str, int], R] = {}
    for rollout in rollouts:
        if rollout.status is Status.RUNNING:
            continue
        place = (rollout.step, rollout.row_index, rollout.group_id, rollout.member)
        if place not in last or rollout.attempt > last[place].attempt:
            last[place] = rollout
    return [last[place] for place in sorted(last)]


def dataset_rows(record: RunRecord, dataset: Path | None = None) -> dict[int, Row]:
    """The rows of the run's dataset by index, when the file is still what it was.

    The store keeps no labels and no metadata: they are read from `dataset`, or else from the path in the
    run's configuration, relative to the config file (its "source"), or to the working directory where the
    run does not say where that file was. Raises UsageError, which says why.
    """
    named = str(record.config.get("dataset", {}).get("path", ""))
    if dataset is None and not named:
        raise UsageError(f"run {record.run_id!r}: its config names no dataset. Name the file with --dataset.")
    folder = Path(record.config.get("source", "")).parent  # of the config file; without it, the working one
    path = dataset.expanduser() if dataset else folder / os.path.expanduser(named)
    if not path.is_file():
        raise UsageError(
            f"run {record.run_id!r}: its dataset {str(path)!r} is not there (a path of its config is "
            "relative to the config file). Name the file with --dataset."
        )
    was, is_now = record.identity.get("dataset"), dataset_fingerprint(path)[:FINGERPRINT_CHARS]
    if was != is_now:
        raise UsageError(
            f"run {record.run_id!r}: {path} is not the dataset that it was made with "
            f"(fingerprint {is_now}, was {was}). Name the right file with --dataset."
        )
    return {row.index: row for row in load_rows(path)}


def column_of(rows: dict[int, Row], column: str) -> dict[int, str]:
    """Row index -> its value of a metadata column as text; "(none)" where a row lacks it."""
    known = sorted({key for row in rows.values() for key in row.metadata or {}})
    if column not in known:
        raise UsageError(
            f"--by {column}: no row has a metadata column of that name. Known: {', '.join(known) or 'none'}."
        )
    return {index: str((row.metadata or {}).get(column, "(none)")) for index, row in rows.items()}


def text_of(message: Message) -> str:
    """The words of one chat message, whatever framework wrote it; "" when it has none.

    "hi"  ->  hi          [{"type": "text", "text": "a"}, {"text": "b"}]  ->  a, newline, b
    """
    content = message.get("content")
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def last_words(rollout: Rollout) -> str:
    """The first line of the last answer in words; the reason when the rollout failed."""
    for sample in reversed(rollout.samples.values()):
        for message in reversed(sample.messages):
            if message.get("role") == "assistant" and (text := text_of(message).strip()):
                return text.split("\n", 1)[0]
    return rollout.reason.split("\n", 1)[0]
