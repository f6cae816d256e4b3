"""A run as JSON Lines, and back without a bit of difference.

    {"format": "osmosis-run", "version": 1, "run": {...}}
    {"step": {...}}                                          in order
    {"rollout": {..., "samples": [...], "turns": [...]}}     by start time, every attempt
    {"end": {"steps": 3, "rollouts": 200}}

The fields are those of `RunRecord`, `StepRecord`, `Rollout`, `Sample` and `Turn`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.errors import OsmosisError, UsageError
from osmosis_ai.store.base import Amendment, RolloutFilter, RunRecord, StepRecord, Store
from osmosis_ai.types import Rollout, Sample, Status, Turn

FORMAT, VERSION = "osmosis-run", 1
BATCH = 200  # rollouts held at once, in either direction

T = TypeVar("T")


async def run_lines(store: Store, run: RunRecord) -> AsyncIterator[str]:
    """The lines of the file, without their line ends."""
    yield _line({"format": FORMAT, "version": VERSION, "run": asdict(run)})
    steps = await store.steps(run.run_id)
    for step in steps:
        yield _line({"step": asdict(step)})
    count = 0
    async for rollout in read_rollouts(store, run.run_id):
        yield _line({"rollout": _plain(rollout)})
        count += 1
    yield _line({"end": {"steps": len(steps), "rollouts": count}})


async def read_rollouts(store: Store, run_id: str) -> AsyncIterator[Rollout]:
    """Every rollout of a run with its turns, by start time; at most BATCH of them in memory."""
    ids = [rollout.rollout_id for rollout in await store.rollouts(RolloutFilter(run_id), turns=False)]
    for start in range(0, len(ids), BATCH):
        for rollout in await store.rollouts(RolloutFilter(run_id, rollout_ids=ids[start : start + BATCH])):
            yield rollout


def _plain(rollout: Rollout) -> dict[str, Any]:
    return asdict(rollout) | {"samples": [asdict(sample) for sample in rollout.samples.values()]}


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"))  # ASCII: also half a surrogate pair comes back


# --- and back


async def import_run(store: Store, path: Path) -> tuple[RunRecord, int]:
    """Store the run of a file; returns it and how many rollouts it has.

    The whole file is read and checked first. Raises UsageError when it is not whole, not ours, or when the
    workspace has a run or rollout of that name.
    """
    run = _check(path)
    await _refuse_duplicates(store, run, path)
    await store.create_run(RunRecord(**{**_shallow(run), "state": "running", "error": ""}))
    count = 0
    try:
        for batch in _batches(path):
            await _store_batch(store, batch)
            count += len(batch)
        for kind, value in _records(path):
            if kind == "step":
                await store.finish_step(_made(StepRecord, value, path))
    except (OsmosisError, asyncio.CancelledError) as error:
        await store.finish_run(run.run_id, "failed", f"the import of {path.name} did not end: {error}")
        raise
    if run.state != "running":
        await store.finish_run(run.run_id, run.state, run.error)
    return run, count


def exported_rollouts(path: Path) -> Iterator[Rollout]:
    """The rollouts of a file, which is read to its end first. Raises UsageError as `import_run` does."""
    _check(path)
    for kind, value in _records(path):
        if kind == "rollout":
            yield _rollout(value, path)


def _check(path: Path) -> RunRecord:
    """Read the file once, to its end: the run that it holds. Raises UsageError."""
    found = {"step": 0, "rollout": 0}
    run: RunRecord | None = None
    end: dict[str, int] | None = None
    names: set[str] = set()
    for kind, value in _records(path):
        if kind == "run":
            run = _run(value, path)
        elif kind == "end":
            end = value
        elif kind == "step":
            _made(StepRecord, value, path)
        else:
            rollout = _rollout(value, path)
            if rollout.rollout_id in names:
                raise UsageError(f"{path}: rollout {rollout.rollout_id!r} is in it twice")
            names.add(rollout.rollout_id)
            if run is not None and rollout.run_id != run.run_id:
                raise UsageError(f"{path}: rollout {rollout.rollout_id!r} is of run {rollout.run_id!r}")
        if kind in found:
            found[kind] += 1
    if run is None or end != {"steps": found["step"], "rollouts": found["rollout"]}:
        raise UsageError(
            f"{path} is not whole: it has {found['rollout']} rollouts and {found['step']} steps, its last "
            f"line says {end}. Export the run again."
        )
    return run


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """("run", {...}), ("step", {...}), ("rollout", {...}), ..., ("end", {...})"""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                yield _record(path, number, line)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def _record(path: Path, number: int, line: str) -> tuple[str, Any]:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}:{number}: not JSON: {error}. Was the file cut off?") from error
    if number == 1:
        if not isinstance(record, dict) or record.get("format") != FORMAT:
            raise UsageError(
                f'{path} is not a run of ours: its first line has no "format": "{FORMAT}". '
                "Only files of `osmosis runs export --format jsonl` can be imported."
            )
        if record.get("version") != VERSION:
            raise UsageError(
                f"{path} has version {record.get('version')} of the format, known here is {VERSION}; "
                "upgrade osmosis-ai"
            )
        return "run", record.get("run")
    if (
        not isinstance(record, dict)
        or len(record) != 1
        or next(iter(record)) not in ("step", "rollout", "end")
    ):
        raise UsageError(f"{path}:{number}: expected a step, a rollout or the end")
    kind, value = next(iter(record.items()))
    return kind, value


def _made(kind: Callable[..., T], value: Any, path: Path) -> T:
    """The dataclass with these fields. Raises UsageError when they are not its own."""
    try:
        return kind(**value)
    except TypeError as error:
        raise UsageError(f"{path}: not a {kind.__name__}: {error}") from error


def _run(value: Any, path: Path) -> RunRecord:
    if not isinstance(value, dict):
        raise UsageError(f"{path}: not a RunRecord: {value!r}")
    lineage = [_made(Amendment, amendment, path) for amendment in value.get("lineage", [])]
    return _made(RunRecord, {**value, "lineage": lineage}, path)


def _rollout(value: Any, path: Path) -> Rollout:
    try:
        samples = [_made(Sample, sample, path) for sample in value["samples"]]
        turns = [_made(Turn, turn, path) for turn in value["turns"]]
        status = Status(value["status"])
    except (TypeError, KeyError, ValueError) as error:
        raise UsageError(f"{path}: not a Rollout: {error!r}") from error
    rest = {key: value[key] for key in value.keys() - {"samples", "turns", "status"}}
    by_id = {sample.sample_id: sample for sample in samples}
    return _made(Rollout, {**rest, "status": status, "samples": by_id, "turns": turns}, path)


def _shallow(record: RunRecord) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}


async def _refuse_duplicates(store: Store, run: RunRecord, path: Path) -> None:
    if await store.get_run(run.run_id) is not None:
        raise UsageError(
            f"{path} holds run {run.run_id!r}, and this workspace has a run of that name. "
            f"Import it into another one (--workspace FOLDER), or osmosis runs delete {run.run_id} first."
        )


def _batches(path: Path) -> Iterator[list[Rollout]]:
    batch: list[Rollout] = []
    for kind, value in _records(path):
        if kind == "rollout":
            batch.append(_rollout(value, path))
            if len(batch) == BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


async def _store_batch(store: Store, batch: list[Rollout]) -> None:
    """Starts in the order of the file, which is that of the export; then all at once, to share commits."""
    await _all([store.start_rollout(_started(rollout)) for rollout in batch])
    await _all([_store_rest(store, rollout) for rollout in batch])


async def _all(work: list[Any]) -> None:
    """Wait for all of it, then raise what the first one that failed raised."""
    for result in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _started(rollout: Rollout) -> Rollout:
    """As it was when it began; a duration is stored at the end."""
    rest = {field.name: getattr(rollout, field.name) for field in fields(rollout)}
    rest |= {"status": Status.RUNNING, "samples": {}, "turns": []}
    if rollout.status is not Status.RUNNING:
        rest |= {"reason": "", "duration_seconds": 0.0}
    return Rollout(**rest)


async def _store_rest(store: Store, rollout: Rollout) -> None:
    for turn in rollout.turns:
        await store.append_turn(turn)
    if rollout.status is not Status.RUNNING:
        samples = list(rollout.samples.values())
        await store.end_rollout(
            rollout.rollout_id, rollout.status, rollout.reason, samples, rollout.duration_seconds
        )
