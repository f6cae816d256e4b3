"""Grading again: stored rollouts, another grader, no model call.

The result is a run of its own, with copies of the conversations and new rewards; its identity and config say
which run it was made from and with what. Nothing of the old run is changed.

    run before        r0.m0 -> reward 0        run before-Lenient   r0.m0 -> reward 0.5
                      r1.m0 -> workflow_error                       r1.m0 -> workflow_error (as it was)
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from osmosis_ai.controller.results import STATUS_OF
from osmosis_ai.errors import OsmosisError, UsageError
from osmosis_ai.eval.stored import StoredRun, counted
from osmosis_ai.rollout.backends.base import ExecutionRequest, ExecutionResult, RolloutErrorCategory
from osmosis_ai.rollout.backends.local import LocalBackend
from osmosis_ai.rollout.config import GraderConfig
from osmosis_ai.rollout.context import get_rollout_context
from osmosis_ai.rollout.grader import Grader
from osmosis_ai.rollout.samples import RolloutSample, SampleSource
from osmosis_ai.rollout.workflow import AgentWorkflow, AgentWorkflowContext
from osmosis_ai.store.base import RolloutFilter, RunRecord, Store
from osmosis_ai.types import RETRIED, Rollout, Row, Sample, Status

if TYPE_CHECKING:  # most gradings ask nobody
    from osmosis_ai.controller.judging import JudgeAccess, Judging

GRADABLE = frozenset({Status.GRADED, Status.GRADER_ERROR, Status.GRADER_TIMEOUT})  # the workflow ended well
CHUNK = 100  # rollouts held at once
SPARE_SECONDS = 60.0  # beyond the grader's deadline, until the judge's key is of no use any more


@dataclass(frozen=True, slots=True)
class NewGrading:
    """What grades, and how."""

    grader: type[Grader[Any]]
    config: GraderConfig | None
    named: str  # as the user named it, with the digest of its source: a part of the run's identity
    timeout_seconds: float
    max_concurrent: int
    judging: Judging | None = None  # whom the grader may ask
    judge: str | None = None  # its identity


def record_of(origin: StoredRun, name: str, grading: NewGrading) -> RunRecord:
    """The new run: everything of the old one, and where it comes from."""
    if origin.record.kind != "eval":
        raise UsageError(
            f"run {origin.run_id!r} is of kind {origin.record.kind!r}; only evals are graded again"
        )
    if not any(rollout.status in GRADABLE for rollout in origin.rollouts):
        raise UsageError(f"run {origin.run_id!r} has no rollout whose workflow ended well: nothing to grade")
    same = {key: value for key, value in origin.record.identity.items() if key != "judge"}
    judge = {} if grading.judge is None else {"judge": grading.judge}
    identity = {**same, **judge, "grader": grading.named, "graded_from": origin.run_id}
    config = {**origin.record.config, "graded": {"from": origin.run_id, "grader": grading.named}}
    return RunRecord(name, "eval", "running", time.time(), identity, config)


async def grade_again(
    store: Store,
    origin: StoredRun,
    record: RunRecord,
    grading: NewGrading,
    rows: Mapping[int, Row],
    on_end: Callable[[Rollout], None],
) -> StoredRun:
    """Grade what `record` has not graded yet. The caller holds the lock of the run."""
    if await store.get_run(record.run_id) is None:
        await store.create_run(record)
    else:
        await store.resume_run(record.run_id)
    known = {_place(r): r for r in counted(await store.rollouts(RolloutFilter(record.run_id), turns=False))}
    again = (RETRIED | {Status.CANCELLED}) if known else frozenset()
    waiting = [r for r in origin.rollouts if _place(r) not in known or known[_place(r)].status in again]
    try:
        for start in range(0, len(waiting), CHUNK):
            ids = [rollout.rollout_id for rollout in waiting[start : start + CHUNK]]
            full = await store.rollouts(RolloutFilter(origin.run_id, rollout_ids=ids))
            await _grade_chunk(store, record.run_id, full, known, grading, rows, on_end)
    except asyncio.CancelledError:
        await store.finish_run(record.run_id, "interrupted")
        raise
    except OsmosisError as error:
        await store.finish_run(record.run_id, "failed", str(error))
        raise
    await store.finish_run(record.run_id, "done")
    graded = await store.rollouts(RolloutFilter(record.run_id), turns=False)
    return StoredRun(replace(record, state="done"), counted(graded))


def _place(rollout: Rollout) -> tuple[str, int]:
    return rollout.group_id, rollout.member


async def _grade_chunk(
    store: Store,
    run_id: str,
    rollouts: Sequence[Rollout],
    known: Mapping[tuple[str, int], Rollout],
    grading: NewGrading,
    rows: Mapping[int, Row],
    on_end: Callable[[Rollout], None],
) -> None:
    """Copy, grade and end each rollout, at most `max_concurrent` at a time."""
    slots = asyncio.Semaphore(grading.max_concurrent)
    copies = {}
    for rollout in rollouts:
        before = known.get(_place(rollout))
        attempt = 0 if before is None else before.attempt + 1
        name = f"{run_id}.{rollout.group_id}.m{rollout.member}.a{attempt}"
        copies[name] = _copy(rollout, name, run_id, attempt)
    workflow = _replay({name: list(rollout.samples.values()) for name, rollout in copies.items()})
    backend = LocalBackend(workflow=workflow, grader=grading.grader, grader_config=grading.config)

    async def one(rollout: Rollout) -> None:
        async with slots:
            await _grade_one(store, backend, rollout, rows[rollout.row_index], grading)
        on_end(rollout)

    try:
        async with asyncio.TaskGroup() as group:
            for rollout in copies.values():
                group.create_task(one(rollout))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None  # the store cannot take a write: one message is enough
    finally:
        await backend.close()


def _copy(rollout: Rollout, name: str, run_id: str, attempt: int) -> Rollout:
    turns = [replace(turn, rollout_id=name) for turn in rollout.turns]
    return replace(rollout, rollout_id=name, run_id=run_id, attempt=attempt, turns=turns)


async def _grade_one(
    store: Store, backend: LocalBackend, rollout: Rollout, row: Row, grading: NewGrading
) -> None:
    """Store the conversation, grade it, store what came of it. `rollout` carries the result afterwards."""
    running = replace(rollout, status=Status.RUNNING, reason="", samples={}, turns=[], duration_seconds=0.0)
    await store.start_rollout(running)
    for turn in rollout.turns:
        await store.append_turn(turn)
    if rollout.status in GRADABLE:
        result, rollout.status, rollout.reason = await _graded(backend, rollout, row, grading)
        stored = rollout.samples
        rewarded = rollout.status is Status.GRADED
        rollout.samples = {
            name: _sample(sample, stored[name], rewarded=rewarded) for name, sample in result.samples.items()
        }
    await store.end_rollout(
        rollout.rollout_id,
        rollout.status,
        rollout.reason,
        list(rollout.samples.values()),
        rollout.duration_seconds,
    )


async def _graded(
    backend: LocalBackend, rollout: Rollout, row: Row, grading: NewGrading
) -> tuple[ExecutionResult, Status, str]:
    """What the grader says, or why it said nothing."""
    judging, rollout_id = grading.judging, rollout.rollout_id
    if judging is None:
        result = await _run_grader(backend, rollout, row, grading.timeout_seconds)
        return result, _status(result), result.err_message or ""
    access = judging.access()
    place = f"{rollout.group_id}/{rollout.member}"
    judging.open(rollout_id, access.key, place=place, seconds=grading.timeout_seconds + SPARE_SECONDS)
    try:
        result = await _run_grader(backend, rollout, row, grading.timeout_seconds, access)
        failure = judging.failure(rollout_id, refusals=not result.succeeded)
    finally:
        await judging.close(rollout_id)
    status = _status(result)
    if failure is None or status is Status.GRADER_TIMEOUT:
        return result, status, result.err_message or ""
    return result, STATUS_OF[failure.kind], f"the grader's judge: {failure.message}"


async def _run_grader(
    backend: LocalBackend,
    rollout: Rollout,
    row: Row,
    timeout_seconds: float,
    judge: JudgeAccess | None = None,
) -> ExecutionResult:
    """Through the backend as every grading: a lane of its own, a deadline, a copy of the samples."""
    results: list[ExecutionResult] = []

    async def keep(result: ExecutionResult) -> None:
        results.append(result)

    request = ExecutionRequest(
        rollout.rollout_id,
        row.prompt,
        label=row.label,
        metadata=copy.deepcopy(row.metadata),
        grader_timeout_sec=timeout_seconds,
        judge_chat_completions_url="" if judge is None else judge.url,
        judge_api_key=None if judge is None else judge.key,
    )
    await backend.execute(request, keep, keep)
    return results[-1]


def _status(result: ExecutionResult) -> Status:
    if result.succeeded:
        return Status.GRADED
    timed_out = result.err_category is RolloutErrorCategory.TIMEOUT
    return Status.GRADER_TIMEOUT if timed_out else Status.GRADER_ERROR


def _sample(graded: RolloutSample, stored: Sample, *, rewarded: bool) -> Sample:
    """The grader's reward, metrics and removal; the conversation is the stored one, whatever it did to it."""
    reward = graded.reward if rewarded else None
    return replace(stored, reward=reward, removed=graded.remove_sample, metrics=dict(graded.metrics))


def _replay(stored: Mapping[str, list[Sample]]) -> type[AgentWorkflow[Any]]:
    """A workflow that hands over the stored samples of its rollout, without rewards and metrics."""

    class Replay(AgentWorkflow[Any]):
        async def run(self, ctx: AgentWorkflowContext[Any]) -> None:
            rollout = get_rollout_context()
            assert rollout is not None
            for sample in stored[rollout.rollout_id]:
                rollout.register_sample_source(sample.sample_id, _Stored(sample))

    return Replay


class _Stored(SampleSource):
    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    async def get_sample(self, name: str) -> RolloutSample:
        messages = copy.deepcopy(self._sample.messages)  # the store shares equal messages
        return RolloutSample(id=name, messages=messages, frozen=self._sample.frozen)
