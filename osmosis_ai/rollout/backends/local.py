"""`LocalBackend`: user code in this process, one lane per rollout."""

from __future__ import annotations

import asyncio
import copy
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from osmosis_ai.errors import EntrypointError
from osmosis_ai.rollout.backends.base import (
    ExecutionBackend,
    ExecutionRequest,
    ExecutionResult,
    ResultCallback,
    RolloutErrorCategory,
    RolloutStatus,
)
from osmosis_ai.rollout.backends.failure import awaited, category, describe
from osmosis_ai.rollout.backends.lane import DeadlineExceeded, LanePool, WorkRaised
from osmosis_ai.rollout.config import AgentWorkflowConfig, GraderConfig
from osmosis_ai.rollout.context import RolloutContext
from osmosis_ai.rollout.debug_log import DebugLog
from osmosis_ai.rollout.grader import Grader, GraderContext, Judge, finite_reward
from osmosis_ai.rollout.messages import copied
from osmosis_ai.rollout.samples import RolloutSample
from osmosis_ai.rollout.workflow import AgentWorkflow, AgentWorkflowContext

T = TypeVar("T")
Samples = dict[str, RolloutSample]
COLLECT_SECONDS = 1.0  # to read what a workflow left behind when its deadline passed


@dataclass(slots=True)
class _Run:
    """How far a workflow came: its samples, and what it raised."""

    samples: Samples
    error: BaseException | None
    where: str


@dataclass(frozen=True, slots=True)
class _Given:
    """What a workflow may see of a request, and all that the frames above run() hold of it."""

    prompt: list[dict[str, Any]]
    metadata: dict[str, Any] | None
    artifacts_dir: Path | None


class _Slots:
    """At most `limit` at once (None: no limit). Time in the queue is not time of the rollout."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.queued = 0
        self.running = 0
        self._semaphore = None if limit is None else asyncio.Semaphore(limit)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        if self._semaphore is not None:
            self.queued += 1
            try:
                await self._semaphore.acquire()
            finally:
                self.queued -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            if self._semaphore is not None:
                self._semaphore.release()


class LocalBackend(ExecutionBackend):
    """Runs each rollout in a lane of its own; see `backends/lane.py`.

    Each argument is the object itself or `"module:attr"`. The limit of concurrency is the one of the config;
    None, and no config, is unlimited. `debug_dir` is where `log_event` of a RolloutContext writes.
    """

    def __init__(
        self,
        *,
        workflow: type[AgentWorkflow[Any]] | str,
        workflow_config: AgentWorkflowConfig | str | None = None,
        grader: type[Grader[Any]] | str | None = None,
        grader_config: GraderConfig | str | None = None,
        debug_dir: str | Path | None = None,
    ) -> None:
        self._debug_log = None if debug_dir is None else DebugLog(debug_dir)
        self._workflow = _a_class(workflow, AgentWorkflow, "workflow")  # type: ignore[type-abstract]
        self._workflow_config = _a_config(workflow_config, AgentWorkflowConfig, "workflow_config")
        self._grader = None if grader is None else _a_class(grader, Grader, "grader")  # type: ignore[type-abstract]
        self._grader_config = _a_config(grader_config, GraderConfig, "grader_config")
        self._workflow_slots = _Slots(_limit(self._workflow_config))
        self._grader_slots = _Slots(_limit(self._grader_config))
        self._lanes = LanePool()

    @property
    def workflow_name(self) -> str:
        return self._workflow.__name__

    @property
    def grader_name(self) -> str | None:
        return None if self._grader is None else self._grader.__name__

    @property
    def max_concurrency(self) -> int:
        return self._workflow_slots.limit or 0

    def health(self) -> dict[str, Any]:
        slots = self._workflow_slots
        concurrency = {"max_concurrent": slots.limit, "queued": slots.queued, "running": slots.running}
        return {"status": "ok", "concurrency": concurrency, "lanes": self._lanes.lent}

    async def close(self) -> None:
        self._lanes.close()
        if self._debug_log is not None:
            self._debug_log.close()

    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> None:
        async with self._workflow_slots.taken():
            if request.on_start is not None:
                request.on_start()
            result = await self._run_workflow(request)
        await on_workflow_complete(result)  # outside of the slot: a slow callback holds up no rollout
        if on_grader_complete is not None:
            async with self._grader_slots.taken():
                graded = await self._grade(request, result)
            await on_grader_complete(graded)
        if self._debug_log is not None:
            self._debug_log.forget(request.id)

    # --- the workflow

    async def _run_workflow(self, request: ExecutionRequest) -> ExecutionResult:
        context = RolloutContext(
            request.chat_completions_url, request.api_key, request.id, debug_log=self._debug_log
        )
        work = partial(self._workflow_work, self._given(request), context)
        try:
            run = await self._lanes.run(work, timeout=request.agent_timeout_sec)
        except DeadlineExceeded:
            message = f"{self.workflow_name}.run exceeded its deadline of {request.agent_timeout_sec:g} s"
            return _failure(message, RolloutErrorCategory.TIMEOUT, await self._left_behind(context))
        except WorkRaised as raised:  # reading the samples failed: a source is user code too
            message = describe(raised.error, f"reading the samples of {self.workflow_name}")
            return _failure(message, RolloutErrorCategory.AGENT_ERROR)
        if run.error is not None:
            return _failure(describe(run.error, run.where), category(run.error), run.samples)
        return ExecutionResult(RolloutStatus.SUCCESS, run.samples)

    def _given(self, request: ExecutionRequest) -> _Given:
        metadata = request.metadata
        if self._workflow.row_in_metadata:
            index, label = request.row_index, request.label
            before = {} if index is None else {"row_index": index}
            metadata = {**before, **(metadata or {}), **({} if label is None else {"ground_truth": label})}
        return _Given(request.prompt, metadata, request.artifacts_dir)

    async def _workflow_work(self, given: _Given, context: RolloutContext) -> _Run:
        """Runs in the lane. What the workflow raises does not lose the samples that it has made."""
        where, error = f"{self.workflow_name}.__init__", None
        with context:
            try:
                config = copy.deepcopy(self._workflow_config)
                workflow = self._workflow(config)
                where = f"{self.workflow_name}.run"
                metadata = copied(given.metadata)  # the grader's stays as the dataset has it
                ctx = AgentWorkflowContext(given.prompt, config, metadata, given.artifacts_dir)
                await awaited(workflow.run(ctx), "run")
            # The boundary: whatever the workflow raises fails this rollout and no other.
            except BaseException as raised:
                error = raised
            return _Run(dict(await context.get_samples()), error, where)

    async def _left_behind(self, context: RolloutContext) -> Samples:
        """What the workflow had when its deadline passed, read in another lane: its own may be blocked."""

        async def collect() -> Samples:
            return dict(await context.get_samples())

        try:
            return await self._lanes.run(collect, timeout=COLLECT_SECONDS)
        except (DeadlineExceeded, WorkRaised):
            return {}  # the transcript of a failure is a help, not a promise

    # --- the grader

    async def _grade(self, request: ExecutionRequest, result: ExecutionResult) -> ExecutionResult:
        if not result.succeeded:
            message = f"not graded, the workflow failed: {result.err_message}"
            return _failure(message, result.err_category, result.samples)
        if self._grader is None:
            message = f"rollout {request.id} is ungraded: this server has no grader"
            return _failure(message, RolloutErrorCategory.VALIDATION_ERROR, result.samples)
        try:
            samples = await self._lanes.run(
                lambda: self._grader_work(request, result.samples), timeout=request.grader_timeout_sec
            )
        except DeadlineExceeded:
            message = f"{self.grader_name}.grade exceeded its deadline of {request.grader_timeout_sec:g} s"
            return _failure(message, RolloutErrorCategory.TIMEOUT, result.samples)
        except WorkRaised as raised:
            message = describe(raised.error, f"{self.grader_name}.grade")
            return _failure(message, category(raised.error), result.samples)
        problem = self._reward_problem(request.id, samples)
        if problem:
            return _failure(problem, RolloutErrorCategory.VALIDATION_ERROR, result.samples)
        return ExecutionResult(RolloutStatus.SUCCESS, samples)

    async def _grader_work(self, request: ExecutionRequest, samples: Samples) -> Samples:
        """Runs in the lane, inside a RolloutContext that leads to the judge and never to the policy.

        What agents built there say is no sample of the rollout.
        """
        assert self._grader is not None
        copies = {name: sample.model_copy(update=copied(sample.__dict__)) for name, sample in samples.items()}
        url, key = request.judge_chat_completions_url, request.judge_api_key
        ctx = GraderContext(
            request.label,
            copies,
            request.metadata,
            rollout_id=request.id,
            judge=Judge(url, key) if url else None,
            artifacts_dir=request.artifacts_dir,
        )
        context = RolloutContext(
            url, key if url else None, request.id, debug_log=self._debug_log, use_environment=False
        )
        with context:
            grader = self._grader(copy.deepcopy(self._grader_config))
            await awaited(grader.grade(ctx), "grade")
        return copies  # not ctx.samples: a grader rewards the samples, it cannot add or drop one

    def _reward_problem(self, rollout_id: str, samples: Samples) -> str:
        """Why these samples do not make a graded rollout; empty when they do."""
        if not samples:
            return (
                f"rollout {rollout_id} produced no sample: {self.workflow_name}.run built no Osmosis agent "
                "or session, so there is nothing to reward. Is the agent built inside run()?"
            )
        kept = [sample for sample in samples.values() if not sample.remove_sample]
        if not kept:
            return f"every sample of rollout {rollout_id} was removed, so there is nothing to reward"
        for sample in kept:
            if sample.reward is None:
                if sample.frozen:
                    continue  # it is not trained, so it may go without
                return (
                    f"{self.grader_name}.grade gave no reward to sample {sample.id!r} of rollout "
                    f"{rollout_id}; call ctx.set_sample_reward(...) or raise to fail the rollout."
                )
            try:
                finite_reward(sample.reward, sample.id, rollout_id)
            except ValueError as problem:
                return f"{self.grader_name}.grade: {problem}"
        if all(sample.reward is None for sample in kept):
            return (
                f"every sample of rollout {rollout_id} is frozen and none has a reward, so the rollout has "
                "none: reward at least one with ctx.set_sample_reward(...)"
            )
        return ""


def _failure(
    message: str, why: RolloutErrorCategory | None, samples: Samples | None = None
) -> ExecutionResult:
    return ExecutionResult(RolloutStatus.FAILURE, samples or {}, message, why)


def _limit(config: AgentWorkflowConfig | GraderConfig | None) -> int | None:
    return None if config is None else config.concurrency.max_concurrent


def _a_class(given: Any, base: type[T], argument: str) -> type[T]:
    found = _resolve(given, argument)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise EntrypointError(
            f"LocalBackend: {argument} must be a subclass of {base.__name__}, got {found!r}"
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise EntrypointError(f"{found.__name__} is abstract: implement {', '.join(missing)}")
    return found


def _a_config(given: Any, base: type[T], argument: str) -> T | None:
    found = _resolve(given, argument)
    if found is None:
        return None
    if not isinstance(found, base):
        raise EntrypointError(
            f"LocalBackend: {argument} must be an instance of {base.__name__}, got {found!r}"
        )
    try:
        copy.deepcopy(found)
    # The boundary to user-defined fields: said once here, at start-up, instead of failing every rollout.
    except Exception as error:
        raise EntrypointError(
            f"{type(found).__name__} cannot be copied, and every rollout gets a copy of its own: "
            f"{type(error).__name__}: {error}. Build what cannot be copied inside run()."
        ) from error
    return found


def _resolve(given: Any, argument: str) -> Any:
    """The object named by `"module:attr"`; anything that is no text is the object itself."""
    if not isinstance(given, str):
        return given
    module, _, attribute = given.partition(":")
    if not module or not attribute:
        raise EntrypointError(f"LocalBackend({argument}={given!r}): write it as 'module:attr'")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise EntrypointError(f"LocalBackend({argument}={given!r}): {error}") from error
    return found
