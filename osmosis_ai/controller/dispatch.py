"""Dispatch: a place in a run becomes a rollout with a result, whatever the user's code does.

A *place* is what a rollout is made for: one member of the group of a row at a step. A place is tried
again (next attempt, same seed) after a failure of ours or of the model, never after one of the user's.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from osmosis_ai.controller.callbacks import Body, Callbacks
from osmosis_ai.controller.user_server import UserServer
from osmosis_ai.errors import InfrastructureError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.capture import CallCounts
from osmosis_ai.store.base import Store
from osmosis_ai.types import RETRIED, Group, Rollout, Row, Sample, Status

CALLBACK_GRACE_SECONDS = 60.0  # beyond both deadlines, for the server's own work and its callbacks


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


class Dispatcher:
    """Runs rollouts on the user's server, at most `max_concurrent` at once."""

    def __init__(
        self,
        server: UserServer,
        gateway: Gateway,
        callbacks: Callbacks,
        store: Store,
        settings: DispatchSettings,
        on_end: Callable[[Rollout], None] = lambda rollout: None,
    ) -> None:
        self._server = server
        self._gateway = gateway
        self._callbacks = callbacks
        self._store = store
        self._settings = settings
        self.on_end = on_end
        own_limit = server.max_concurrent or settings.max_concurrent
        self._slots = asyncio.Semaphore(min(settings.max_concurrent, own_limit))
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._running: dict[str, asyncio.Task[Rollout]] = {}

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
        replaced = [rollout for rollout in known if not _is_result(rollout)]
        for rollout in known:
            if _is_result(rollout):
                return Attempts(rollout, replaced)
        async with self._slots:
            for tries in range(self._settings.retries + 1):
                rollout = await self._attempt(place, attempt=len(known) + tries)
                self.on_end(rollout)
                if rollout.status not in RETRIED or tries == self._settings.retries:
                    break
                replaced.append(rollout)
        return Attempts(rollout, replaced)

    async def _attempt(self, place: Place, attempt: int) -> Rollout:
        rollout = Rollout(
            rollout_id=f"{place.run_id}.{place.group_id}.m{place.member}.a{attempt}",
            run_id=place.run_id,
            row_index=place.row.index,
            group_id=place.group_id,
            member=place.member,
            attempt=attempt,
            step=place.step,
            started_at=time.time(),
        )
        await self._store.start_rollout(rollout)
        return await _Flight(self, place, rollout).fly()


def place_key(place: Place) -> tuple[str, int]:
    return place.group_id, place.member


def _is_result(rollout: Rollout) -> bool:
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

    def __init__(self, dispatcher: Dispatcher, place: Place, rollout: Rollout) -> None:
        self._d = dispatcher
        self._place = place
        self._rollout = rollout
        self._started = time.monotonic()
        self._landed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._samples: list[Sample] = []

    async def fly(self) -> Rollout:
        rollout_id = self._rollout.rollout_id
        callback_key = self._d._callbacks.expect(rollout_id, self._on_completed, self._on_graded)
        llm_key = self._d._gateway.admit(
            rollout_id,
            seed=place_seed(self._d._settings.seed, self._place),
            sampling=self._d._settings.sampling,
        )
        try:
            await self._launch_and_wait(llm_key, callback_key)
        except asyncio.CancelledError:
            await self._land(Status.CANCELLED, "the run was stopped while the rollout was running")
            await self._cancel_on_server()
            raise
        except (InfrastructureError, aiohttp.ClientError, TimeoutError) as error:
            await self._land(Status.INFRASTRUCTURE, str(error) or type(error).__name__)
        finally:
            self._d._callbacks.forget(rollout_id)
        return self._rollout

    async def _launch_and_wait(self, llm_key: str, callback_key: str) -> None:
        settings = self._d._settings
        await self._d._server.ensure_running()
        body = self._request(llm_key, callback_key)
        headers = {"Authorization": f"Bearer {self._d._server.api_key}"}
        url = f"{self._d._server.url}/rollout"
        timeout = aiohttp.ClientTimeout(total=30.0)
        async with self._d._session.post(url, json=body, headers=headers, timeout=timeout) as response:
            if response.status >= 300:
                text = (await response.text())[:500]
                raise InfrastructureError(f"{url} answered {response.status}: {text}")
        deadline = settings.agent_timeout_seconds + settings.grader_timeout_seconds + CALLBACK_GRACE_SECONDS
        died = asyncio.ensure_future(self._d._server.died())
        either: set[asyncio.Future[Any]] = {self._landed, died}
        try:
            await asyncio.wait(either, timeout=deadline, return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
        if self._landed.done():
            self._landed.result()
        elif died.done() and not died.cancelled():
            raise InfrastructureError(
                f"the rollout server ended with status {died.result()} while the rollout was running.\n"
                + self._d._server.log_tail()
            )
        else:
            raise InfrastructureError(f"no callback came within {deadline:.0f} s")

    def _request(self, llm_key: str, callback_key: str) -> dict[str, Any]:
        row, rollout_id, settings = self._place.row, self._rollout.rollout_id, self._d._settings
        base = f"{self._d._gateway.base_url}/v1"
        return {
            "rollout_id": rollout_id,
            "initial_messages": row.prompt,
            "label": row.label,
            "metadata": row.metadata,
            "chat_completions_url": base,
            "llm_api_key": llm_key,
            "controller_api_key": callback_key,
            "completion_callback_url": f"{base}/rollouts/{rollout_id}/completed",
            "grader_callback_url": f"{base}/rollouts/{rollout_id}/graded",
            "agent_timeout_sec": settings.agent_timeout_seconds,
            "grader_timeout_sec": settings.grader_timeout_seconds,
        }

    async def _on_completed(self, body: Body) -> None:
        """The workflow ended: no further LLM call counts. A failure is the rollout's result."""
        self._rollout.turns = await self._d._gateway.seal(self._rollout.rollout_id)
        message = str(body.get("err_message") or "")
        if body.get("status") != "success":
            status = _workflow_failure(body)
            if status is Status.WORKFLOW_ERROR and (failure := self._counters().failure) is not None:
                status, message = Status.MODEL_ERROR, f"{failure.kind}: {failure.message}"
            await self._land(status, message or "the workflow failed")
        elif not self._rollout.turns:
            await self._land(Status.NO_TURNS, self._no_turns_reason())

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
            rollout.turns = await self._d._gateway.seal(rollout.rollout_id)
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

    def _counters(self) -> CallCounts:
        return self._d._gateway.counters(self._rollout.rollout_id)

    def _no_turns_reason(self) -> str:
        return (
            f"rollout {self._rollout.rollout_id} (row {self._place.row.index}) produced no turn: run() made "
            "no LLM call that was answered through the rollout's URL. Is the agent built inside run(), with "
            "OsmosisRolloutModel or with the URL and key of the RolloutContext? " + self._counters().explain()
        ).strip()

    async def _cancel_on_server(self) -> None:
        headers = {"Authorization": f"Bearer {self._d._server.api_key}"}
        body = {"ids": [self._rollout.rollout_id]}
        timeout = aiohttp.ClientTimeout(total=2.0)
        url = f"{self._d._server.url}/rollout/cancel"
        try:
            async with self._d._session.post(url, json=body, headers=headers, timeout=timeout):
                pass
        except (aiohttp.ClientError, TimeoutError):
            pass  # the server is being stopped anyway; the rollout has its result


def _workflow_failure(body: Body) -> Status:
    return Status.WORKFLOW_TIMEOUT if body.get("err_category") == "timeout" else Status.WORKFLOW_ERROR


def read_samples(body: Body) -> tuple[list[Sample], str]:
    """Samples of a grader callback, and what is wrong with them ("" when nothing is).

    The rollout server checks the same; a server that somebody else wrote may not.
    """
    samples, problems = [], []
    for sample_id, raw in (body.get("samples") or {}).items():
        reward, removed = raw.get("reward"), bool(raw.get("remove_sample"))
        finite = isinstance(reward, int | float) and not isinstance(reward, bool) and math.isfinite(reward)
        if not removed and not finite:
            problems.append(f"sample {sample_id!r} has reward {reward!r}, which is not a finite number")
        metrics = {
            str(k): float(v) for k, v in (raw.get("metrics") or {}).items() if isinstance(v, int | float)
        }
        samples.append(
            Sample(sample_id, raw.get("messages") or [], float(reward) if finite else None, removed, metrics)
        )
    if not any(not sample.removed for sample in samples):
        problems.append("no sample was left after grading")
    return samples, "; ".join(problems)
