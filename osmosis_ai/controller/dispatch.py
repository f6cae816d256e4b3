"""Dispatch: a place in a run becomes a rollout with a result, whatever the user's code does.

A *place* is what a rollout is made for: one member of the group of a row at a step. A place is tried
again (next attempt, same seed) after a failure of ours or of the model, never after one of the user's.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from osmosis_ai.controller.callbacks import Callbacks, OnCallback
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.rollout_server import Body, Order, RolloutServer, WorkflowRefusedError
from osmosis_ai.controller.user_server import KILLED_FROM_OUTSIDE, ServerDiedError
from osmosis_ai.errors import InfrastructureError, OsmosisError, StoreError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.capture import CallCounts
from osmosis_ai.store.base import Store
from osmosis_ai.types import RETRIED, Group, Rollout, Row, Sample, Status, Turn

CALLBACK_GRACE_SECONDS = 60.0  # beyond both deadlines, for the server's own work and its callbacks
DEATH_NOTICE_SECONDS = 1.0  # after a broken connection, to see whether the server's process has ended


@dataclass(frozen=True, slots=True)
class Place:
    """What a rollout is made for."""

    run_id: str
    step: int
    row: Row
    group_id: str
    member: int


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """How rollouts are run."""

    seed: int
    max_concurrent: int
    agent_timeout_seconds: float
    grader_timeout_seconds: float
    retries: int
    sampling: SamplingDefaults


@dataclass(slots=True)
class Attempts:
    """All attempts at one place: the one that counts, and those that it replaced."""

    rollout: Rollout
    replaced: list[Rollout] = field(default_factory=list)


def place_seed(seed: int, place: Place) -> int:
    """A seed that depends on the place only: another attempt, or a resumed run, samples the same."""
    name = f"{seed}/{place.step}/{place.group_id}/{place.member}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")


class _Airspace:
    """Rollouts run side by side; a suspect runs alone.

    A server that dies takes along all rollouts that run in it, and nobody knows which of them ended it. They
    are tried again one at a time with nothing beside them: when it dies again, it is known.
    """

    def __init__(self) -> None:
        self._flying = 0
        self._suspects = 0  # that run, or wait to
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, *, alone: bool) -> AsyncIterator[None]:
        self._suspects += alone
        try:
            while self._flying if alone else self._suspects:
                self._changed.clear()
                await self._changed.wait()
            self._flying += 1
            try:
                yield
            finally:
                self._flying -= 1
        finally:
            self._suspects -= alone
            self._changed.set()


class Dispatcher:
    """Runs rollouts on the user's server, at most `max_concurrent` at once."""

    def __init__(
        self,
        server: RolloutServer,
        gateway: Gateway,
        callbacks: Callbacks,
        store: Store,
        settings: DispatchSettings,
        grading: Grading | None = None,
    ) -> None:
        self._server = server
        self._grading = grading  # of what a server with `one_result` gives no reward
        self._gateway = gateway
        self._callbacks = callbacks
        self._store = store
        self._settings = settings
        self.on_end: Callable[[Rollout], None] = lambda rollout: None  # the attempt that counts
        self.on_retry: Callable[[Rollout], None] = lambda rollout: None  # one that will be tried again
        own_limit = server.max_concurrent or settings.max_concurrent
        self._slots = asyncio.Semaphore(min(settings.max_concurrent, own_limit))
        self._airspace = _Airspace()
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))

    async def groups(
        self, run_id: str, step: int, rows: Sequence[Row], size: int, known: Iterable[Rollout] = ()
    ) -> tuple[list[Group], list[Rollout]]:
        """The group of each row, and all attempts that were replaced.

        `known` are rollouts of this step that an earlier life of the run left behind: what has a result
        is taken as it is, so that nothing is done twice.
        """
        places = [
            [Place(run_id, step, row, f"s{step}.g{position}", member) for member in range(size)]
            for position, row in enumerate(rows)
        ]
        attempts = await self.run_all([place for group in places for place in group], known)
        groups = [
            Group(of_row[0].group_id, of_row[0].row, [attempts[place_key(p)].rollout for p in of_row])
            for of_row in places
        ]
        return groups, [rollout for a in attempts.values() for rollout in a.replaced]

    async def run_all(
        self, places: Sequence[Place], known: Iterable[Rollout] = ()
    ) -> Mapping[tuple[str, int], Attempts]:
        """Every place to a result, in a sliding window. Cancelling it cancels the rollouts that are out."""
        before: dict[tuple[str, int], list[Rollout]] = {}
        for rollout in known:
            before.setdefault((rollout.group_id, rollout.member), []).append(rollout)
        tasks = {
            place_key(place): asyncio.create_task(self._place(place, before.get(place_key(place), [])))
            for place in places
        }
        try:
            await asyncio.gather(*tasks.values())
        finally:
            await _cancel_all(tasks.values())
        return {key: task.result() for key, task in tasks.items()}

    async def close(self) -> None:
        await self._session.close()

    async def _place(self, place: Place, known: list[Rollout]) -> Attempts:
        replaced = [rollout for rollout in known if not is_result(rollout)]
        for rollout in known:
            if is_result(rollout):
                return Attempts(rollout, replaced)
        async with self._slots:
            suspect = False
            for tries in range(self._settings.retries + 1):
                rollout, server_died = await self._attempt(place, len(known) + tries, alone=suspect)
                suspect = suspect or server_died
                if rollout.status not in RETRIED or tries == self._settings.retries:
                    break
                self.on_retry(rollout)
                replaced.append(rollout)
            self.on_end(rollout)
        return Attempts(rollout, replaced)

    async def _attempt(self, place: Place, attempt: int, *, alone: bool) -> tuple[Rollout, bool]:
        """The rollout, ended, and whether the server died under it."""
        rollout = Rollout(
            rollout_id=f"{place.run_id}.{place.group_id}.m{place.member}.a{attempt}",
            run_id=place.run_id,
            row_index=place.row.index,
            group_id=place.group_id,
            member=place.member,
            attempt=attempt,
            step=place.step,
        )
        async with self._airspace.taken(alone=alone):
            rollout.started_at = time.time()
            await self._store.start_rollout(rollout)
            flight = _Flight(self, place, rollout, alone=alone)
            return await flight.fly(), flight.server_died


def place_key(place: Place) -> tuple[str, int]:
    return place.group_id, place.member


def is_result(rollout: Rollout) -> bool:
    """A result of the user's code or of the grader; what failed for another reason is tried again."""
    return rollout.status.is_terminal and rollout.status not in RETRIED | {
        Status.CANCELLED,
        Status.SUPERSEDED,
    }


async def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


class _Flight:
    """One attempt, from admission to its one terminal result."""

    def __init__(self, dispatcher: Dispatcher, place: Place, rollout: Rollout, *, alone: bool) -> None:
        self._d = dispatcher
        self._alone = alone
        self._finished = False  # the workflow has; a failure from now on is the grader's
        self.server_died = False
        self._place = place
        self._rollout = rollout
        self._started = time.monotonic()
        self._landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples: list[Sample] = []
        self._asked: Order

    async def fly(self) -> Rollout:
        rollout_id, server = self._rollout.rollout_id, self._d._server
        llm_key = self._d._gateway.admit(
            rollout_id,
            seed=place_seed(self._d._settings.seed, self._place),
            sampling=self._d._settings.sampling,
            sample_id=server.sample_id,
            alias=server.name_of(rollout_id),
            awaits_tools=server.one_result,
        )
        try:
            await self._launch_and_wait(self._order(llm_key, self._expect(llm_key)))
        except asyncio.CancelledError:
            await self._land(Status.CANCELLED, "the run was stopped while the rollout was running")
            await server.cancel(self._d._session, server.name_of(rollout_id))
            raise
        except StoreError:
            raise  # nothing can be kept any more: the run stops
        except WorkflowRefusedError as error:
            await self._land(Status.WORKFLOW_ERROR, str(error))
        except ServerDiedError as error:
            self.server_died = True
            await self._land(*self._verdict(error))
        except (InfrastructureError, aiohttp.ClientError, TimeoutError) as error:
            await self._land(Status.INFRASTRUCTURE, str(error) or type(error).__name__)
        finally:
            self._d._callbacks.forget(rollout_id)
            if self._landed.done():
                self._landed.exception()  # seen: when the flight was cancelled, nobody else looks
        return self._rollout

    def _expect(self, llm_key: str) -> str:
        """Listen for the callbacks; returns their key."""
        rollout_id, callbacks = self._rollout.rollout_id, self._d._callbacks
        if not self._d._server.one_result:
            graded = self._attributed(self._on_graded)
            return callbacks.expect(rollout_id, self._attributed(self._on_completed), graded)
        callbacks.expect_finished(rollout_id, llm_key, self._attributed(self._on_finished))
        return llm_key

    async def _launch_and_wait(self, order: Order) -> None:
        self._asked = order
        await self._d._server.ensure_running()
        died = asyncio.ensure_future(self._d._server.died())
        try:
            tools = await self._d._server.launch(self._d._session, order)
            self._d._gateway.offer_tools(order.rollout_id, tools)
            await self._wait(died)
        except aiohttp.ClientError:
            await asyncio.wait((died,), timeout=DEATH_NOTICE_SECONDS)
            if died.done():
                raise self._d._server.death(died.result()) from None
            raise
        finally:
            died.cancel()

    async def _wait(self, died: asyncio.Future[int]) -> None:
        """Until the rollout has landed. Each server keeps the deadlines itself, but one with `one_result`."""
        settings = self._d._settings
        either: set[asyncio.Future[Any]] = {self._landed, died}
        grader_seconds = settings.grader_timeout_seconds + CALLBACK_GRACE_SECONDS
        deadline = settings.agent_timeout_seconds
        if self._d._server.one_result:
            await asyncio.wait(either, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
            if not (self._finished or self._landed.done() or died.done()):
                return await self._land(Status.WORKFLOW_TIMEOUT, self._no_result(deadline))
            deadline = 0.0
        await asyncio.wait(either, timeout=deadline + grader_seconds, return_when=asyncio.FIRST_COMPLETED)
        if self._landed.done():
            self._landed.result()
            self._d._server.worked()
        elif died.done():
            raise self._d._server.death(died.result())
        else:
            raise InfrastructureError(f"no callback came within {deadline + grader_seconds:.0f} s")

    def _no_result(self, seconds: float) -> str:
        return (
            f"the rollout server gave no result within rollout.agent_timeout_seconds = {seconds:g} s of the "
            f"request, the time in its queue included. {self._calls_so_far()}"
        )

    def _verdict(self, error: ServerDiedError) -> tuple[Status, str]:
        """Ours to try again, unless the rollout was alone in the server: then its own code has ended it."""
        if not self._alone or error.status in KILLED_FROM_OUTSIDE:
            return Status.INFRASTRUCTURE, str(error)
        status, who = Status.WORKFLOW_ERROR, "the workflow"
        if self._finished:
            status, who = Status.GRADER_ERROR, "the grader"
        what = f"{who} ended the process that it ran in, with status {error.status}; nothing else ran there."
        return status, f"{what}\n{self._d._server.log_tail()}"

    def _order(self, llm_key: str, callback_key: str) -> Order:
        settings = self._d._settings
        return Order(
            self._rollout.rollout_id,
            self._d._server.name_of(self._rollout.rollout_id),
            self._place.row,
            self._d._gateway.base_url,
            llm_key,
            callback_key,
            settings.agent_timeout_seconds,
            settings.grader_timeout_seconds,
        )

    def _attributed(self, on_callback: OnCallback) -> OnCallback:
        """What a callback's work raises becomes the rollout's result; else it would wait for its deadline."""

        async def heard(body: Body) -> None:
            try:
                await on_callback(body)
            except OsmosisError:
                raise
            # Everything else is a fault of ours, or of a rollout server that says what cannot be read.
            except Exception as error:
                what = f"the callback could not be used: {type(error).__name__}: {error}"
                await self._land(Status.INFRASTRUCTURE, what)

        return heard

    async def _on_completed(self, body: Body) -> None:
        """The workflow ended: no further LLM call counts. A failure is the rollout's result."""
        await self._seal()
        message = str(body.get("err_message") or "")
        if body.get("status") != "success":
            timed_out = body.get("err_category") == "timeout"
            await self._fail(Status.WORKFLOW_TIMEOUT if timed_out else Status.WORKFLOW_ERROR, message)
        else:
            await self._refuse_unanswered()
        self._finished = True

    async def _refuse_unanswered(self) -> None:
        """A workflow that went on after its model had failed would be graded for our failure: it is not."""
        if self._counters().failure is not None:
            await self._fail(Status.WORKFLOW_ERROR, "")
        elif not self._rollout.turns:
            await self._land(Status.NO_TURNS, self._no_turns_reason())

    async def _fail(self, status: Status, message: str) -> None:
        """The workflow failed: by itself, or because its model did."""
        if status is Status.WORKFLOW_ERROR and (failure := self._counters().failure) is not None:
            status, message = Status.MODEL_ERROR, f"{failure.kind}: {failure.message}"
        if status is Status.WORKFLOW_TIMEOUT:
            message += f". {self._calls_so_far()}"
        await self._land(status, message or "the workflow failed")

    async def _on_finished(self, body: Body) -> None:
        """The one result of a RolloutAgentLoop's server: what the two callbacks of a workflow say."""
        self._finished = True
        await self._seal()
        if body.get("status") != "COMPLETED":
            return await self._fail(Status.WORKFLOW_ERROR, str(body.get("error_message") or ""))
        await self._refuse_unanswered()
        if self._landed.done():
            return None
        given = finished_sample(body, self._rollout.turns)
        if given["reward"] is not None:
            samples = {self._d._server.sample_id: given}
            await self._on_graded({"status": "success", "samples": samples})
        elif self._d._grading is None:
            await self._land(Status.GRADER_ERROR, NO_REWARD)
        else:
            await self._grade(self._d._grading, given)

    async def _grade(self, grading: Grading, given: Body) -> None:
        try:
            result = await grading.grade(self._d._session, self._asked, given["messages"])
        except InfrastructureError as error:
            return await self._land(Status.INFRASTRUCTURE, str(error))
        for sample in (result.get("samples") or {}).values():
            sample["metrics"] = {**given["metrics"], **(sample.get("metrics") or {})}
        await self._on_graded(result)

    async def _on_graded(self, body: Body) -> None:
        if self._landed.done():
            return
        message = str(body.get("err_message") or "the grader failed")
        if body.get("status") != "success":
            timed_out = body.get("err_category") == "timeout"
            await self._land(Status.GRADER_TIMEOUT if timed_out else Status.GRADER_ERROR, message)
            return
        samples, problem = read_samples(body)
        self._samples = samples
        await self._land(Status.GRADER_ERROR if problem else Status.GRADED, problem)

    async def _land(self, status: Status, reason: str) -> None:
        """The one terminal result, in the store before anybody hears of it."""
        if self._landed.done():
            return
        rollout = self._rollout
        if not rollout.turns:
            await self._seal()
        rollout.duration_seconds = time.monotonic() - self._started
        try:
            first = await self._d._store.end_rollout(
                rollout.rollout_id, status, reason, self._samples, rollout.duration_seconds
            )
        except Exception as error:  # the store is ours: whoever waits for the rollout must hear of it
            if not self._landed.done():
                self._landed.set_exception(error)
            raise
        if self._landed.done():
            return
        if not first:
            self._landed.set_exception(
                InfrastructureError(f"rollout {rollout.rollout_id} was ended by somebody else")
            )
            return
        rollout.status, rollout.reason = status, reason
        rollout.samples = {sample.sample_id: sample for sample in self._samples}
        self._landed.set_result(None)

    async def _seal(self) -> None:
        """Take the turns over. The gateway does not keep them for long: later it gives none."""
        turns = await self._d._gateway.seal(self._rollout.rollout_id)
        self._rollout.turns = self._rollout.turns or turns

    def _counters(self) -> CallCounts:
        return self._d._gateway.counters(self._rollout.rollout_id)

    def _no_turns_reason(self) -> str:
        return (
            f"run() made no LLM call that was answered ({self._counters().explain()}), so rollout "
            f"{self._rollout.rollout_id} (row {self._place.row.index}) produced no turn. Is the agent built "
            "inside run(), with OsmosisRolloutModel, or any client with base_url=chat_completions_url and "
            "api_key=api_key of get_rollout_context()? What goes to a provider directly is not recorded."
        )

    def _calls_so_far(self) -> str:
        counts = self._counters()
        others = "" if counts.explain() == CallCounts().explain() else f"; {counts.explain()}"
        return f"It had made {counts.answered} LLM calls that were answered{others}"


NO_REWARD = (
    "the rollout server gave no reward (ctx.complete(..., reward=None)), and nothing here computes one: name "
    'a file with a Grader or a function with @osmosis_reward, rollout.grader_entrypoint = "reward.py"'
)


def finished_sample(body: Body, turns: Sequence[Turn]) -> Body:
    """The sample in the result of a RolloutAgentLoop's server; without messages that of the last call."""
    messages, metrics = body.get("final_messages"), body.get("metrics")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        messages = [*turns[-1].messages, turns[-1].response]
    return {
        "messages": messages,
        "reward": body.get("reward"),
        "metrics": metrics if isinstance(metrics, dict) else {},
    }


def read_samples(body: Body) -> tuple[list[Sample], str]:
    """Samples of a grader callback, and what is wrong with them ("" when nothing is).

    The rollout server checks the same; a server that somebody else wrote may not.
    """
    samples, problems = [], []
    given = body.get("samples") or {}
    if not isinstance(given, dict) or not all(isinstance(raw, dict) for raw in given.values()):
        return [], f"samples must be an object of objects, got {str(given)[:200]}"
    for sample_id, raw in given.items():
        reward, removed = raw.get("reward"), bool(raw.get("remove_sample"))
        frozen = bool(raw.get("frozen"))
        finite = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        if not removed and not finite and not (frozen and reward is None):
            problems.append(f"sample {sample_id!r} has reward {reward!r}, which is not a finite number")
        metrics = {
            str(k): float(v) for k, v in (raw.get("metrics") or {}).items() if isinstance(v, int | float)
        }
        samples.append(
            Sample(
                sample_id,
                raw.get("messages") or [],
                float(reward) if finite else None,
                removed,
                metrics,
                frozen,
            )
        )
    left = [sample for sample in samples if not sample.removed]
    if not left:
        problems.append("no sample was left after grading")
    elif not problems and all(sample.reward is None for sample in left):
        problems.append("every sample is frozen and none has a reward")
    return samples, "; ".join(problems)
