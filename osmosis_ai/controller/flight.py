"""One attempt at a place: from its admission at the gateway to its one terminal result in the store."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from osmosis_ai.controller.callbacks import OnCallback
from osmosis_ai.controller.deck import CALLBACK_GRACE_SECONDS, Deck
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.place import Place, place_seed
from osmosis_ai.controller.results import (
    INTERNAL,
    NO_REWARD,
    STATUS_OF,
    failed_status,
    finished_sample,
    read_samples,
    transcripts,
)
from osmosis_ai.controller.rollout_server import Body, Order, WorkflowRefusedError
from osmosis_ai.controller.user_server import KILLED_FROM_OUTSIDE, ServerDiedError
from osmosis_ai.errors import InfrastructureError, OsmosisError, StoreError
from osmosis_ai.gateway.base import Access
from osmosis_ai.gateway.capture import CallCounts, CallFailure
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.types import Rollout, Sample, Status

DEATH_NOTICE_SECONDS = 1.0  # after a broken connection, to see whether the server's process has ended


class Flight:
    """One attempt, from admission to its one terminal result."""

    def __init__(self, deck: Deck, place: Place, rollout: Rollout, *, alone: bool) -> None:
        self._deck = deck
        self._alone = alone
        self._finished = False  # the workflow has; a failure from now on is the grader's
        self.server_died = False
        self._place = place
        self._rollout = rollout
        self._started = time.monotonic()
        self._landed = False
        self._fault: Exception | None = None  # why its result could not be kept
        self._exit_status: int | None = None  # of the server that it ran in, once that has died
        self._over = asyncio.Event()  # it has landed, or its server has died
        self._samples: list[Sample] = []
        self._asked: Order

    async def fly(self) -> Rollout:
        rollout_id, server = self._rollout.rollout_id, self._deck.server
        try:
            access = await self._deck.gateway.admit(rollout_id, self._terms())
            await self._launch_and_wait(self._order(access, self._expect(access.key)))
        except asyncio.CancelledError:
            await self._land(Status.CANCELLED, "the run was stopped while the rollout was running")
            await server.cancel(self._deck.http, server.name_of(rollout_id))
            raise
        except StoreError:
            raise  # nothing can be kept any more: the run stops
        except WorkflowRefusedError as error:
            await self._land(Status.WORKFLOW_ERROR, str(error))
        except ServerDiedError as error:
            self.server_died = True
            await self._land(*self._verdict(error))
        except (InfrastructureError, OSError) as error:
            await self._land(Status.INFRASTRUCTURE, str(error) or type(error).__name__)
        finally:
            self._deck.callbacks.forget(rollout_id)
            if self._deck.judging is not None:
                await self._deck.judging.close(rollout_id)
        return self._rollout

    def _terms(self) -> Terms:
        settings, server = self._deck.settings, self._deck.server
        return Terms(
            seed=place_seed(settings.seed, self._place),
            sampling=settings.sampling,
            budget=settings.budget,
            expires_at=time.time() + settings.longest_seconds,
            sample_id=server.sample_id,
            alias=server.name_of(self._rollout.rollout_id),
            awaits_tools=server.one_result,
        )

    def _expect(self, llm_key: str) -> str:
        """Listen for the callbacks; returns their key."""
        rollout_id, callbacks = self._rollout.rollout_id, self._deck.callbacks
        if not self._deck.server.one_result:
            graded = self._attributed(self._on_graded)
            return callbacks.expect(rollout_id, self._attributed(self._on_completed), graded)
        callbacks.expect_finished(rollout_id, llm_key, self._attributed(self._on_finished))
        return llm_key

    async def _launch_and_wait(self, order: Order) -> None:
        self._asked = order
        life = await self._deck.server.ensure_running()
        life.watch(self._server_ended)
        try:
            tools = await self._deck.server.launch(self._deck.http, order)
            await self._deck.gateway.offer_tools(order.rollout_id, tools)
            await self._wait()
        except OSError:
            await self._until_over(DEATH_NOTICE_SECONDS)
            if self._exit_status is not None:
                raise self._deck.server.death(self._exit_status) from None
            raise
        finally:
            life.unwatch(self._server_ended)

    def _server_ended(self, status: int) -> None:
        self._exit_status = status
        self._over.set()

    async def _until_over(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def _wait(self) -> None:
        """Until the rollout has landed. Each server keeps the deadlines itself, but one with `one_result`."""
        settings = self._deck.settings
        grader_seconds = settings.grader_timeout_seconds + CALLBACK_GRACE_SECONDS
        deadline = settings.agent_timeout_seconds
        if self._deck.server.one_result:
            await self._until_over(deadline)
            if not (self._finished or self._over.is_set()):
                await self._land(*self._late(self._no_result(deadline)))
                return await self._deck.server.cancel(self._deck.http, self._asked.name)
            deadline = 0.0
        await self._until_over(deadline + grader_seconds)
        if self._fault is not None:
            raise self._fault
        if self._landed:
            self._deck.server.worked()
        elif self._exit_status is not None:
            raise self._deck.server.death(self._exit_status)
        else:
            raise InfrastructureError(f"no callback came within {deadline + grader_seconds:.0f} s")

    def _late(self, message: str) -> tuple[Status, str]:
        """A deadline that has passed is the workflow's own, unless its model's endpoint answers nobody."""
        if failing := self._deck.failing():
            return Status.PROVIDER_ERROR, f"the deadline passed while the endpoint did not answer: {failing}"
        return Status.WORKFLOW_TIMEOUT, message

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
        return status, f"{what}\n{self._deck.server.log_tail()}"

    def _order(self, access: Access, callback_key: str) -> Order:
        settings = self._deck.settings
        return Order(
            self._rollout.rollout_id,
            self._deck.server.name_of(self._rollout.rollout_id),
            self._place.row,
            access.base_url,
            access.key,
            callback_key,
            settings.agent_timeout_seconds,
            settings.grader_timeout_seconds,
            None if self._deck.judging is None else self._deck.judging.access(),
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
            self._samples = transcripts(body)
            await self._fail(failed_status(body, Status.WORKFLOW_ERROR, Status.WORKFLOW_TIMEOUT), message)
        else:
            await self._refuse_unanswered()
            self._open_judge()
        self._finished = True

    async def _refuse_unanswered(self) -> None:
        """A workflow that went on after its model had failed would be graded for our failure: it is not."""
        if self._counters().failure is not None or self._counters().over_budget is not None:
            await self._fail(Status.WORKFLOW_ERROR, "")
        elif not self._rollout.turns and self._counters().restarts:
            await self._fail(Status.WORKFLOW_ERROR, self._no_turns_reason())
        elif not self._rollout.turns:
            await self._land(Status.NO_TURNS, self._no_turns_reason())

    def _open_judge(self) -> None:
        """Only now: a workflow that came by the judge's key could not have used it."""
        if self._deck.judging is None or self._asked.judge is None or self._landed:
            return
        self._deck.judging.open(
            self._rollout.rollout_id,
            self._asked.judge.key,
            place=f"{self._place.step}/{self._place.group_id}/{self._place.member}",
            alias=self._asked.name,
            seconds=self._deck.settings.grader_timeout_seconds + CALLBACK_GRACE_SECONDS,
        )

    def _judge_failure(self, *, refusals: bool) -> CallFailure | None:
        judging = self._deck.judging
        return None if judging is None else judging.failure(self._rollout.rollout_id, refusals=refusals)

    async def _fail(self, status: Status, message: str) -> None:
        """The workflow failed: by itself, or because its model or who serves it did."""
        counts = self._counters()
        failure = counts.failure or counts.model_refusal
        if status in (Status.WORKFLOW_ERROR, Status.WORKFLOW_TIMEOUT) and counts.over_budget is not None:
            status, message = Status.OVER_BUDGET, counts.over_budget
        elif status is Status.WORKFLOW_ERROR and failure is not None:
            status, message = STATUS_OF[failure.kind], f"{failure.kind}: {failure.message}"
        elif status is Status.WORKFLOW_ERROR and counts.restarts:
            status, message = Status.INFRASTRUCTURE, f"its gateway was started again meanwhile: {message}"
        if status is Status.WORKFLOW_TIMEOUT:
            status, message = self._late(f"{message}. {self._calls_so_far()}")
        await self._land(status, message or "the workflow failed")

    async def _on_finished(self, body: Body) -> None:
        """The one result of a RolloutAgentLoop's server: what the two callbacks of a workflow say."""
        self._finished = True
        await self._seal()
        if body.get("status") != "COMPLETED":
            said = {"messages": body.get("final_messages")}
            self._samples = transcripts({"samples": {self._deck.server.sample_id: said}})
            ours = body.get("finish_reason") == INTERNAL
            status = Status.INFRASTRUCTURE if ours else Status.WORKFLOW_ERROR
            return await self._fail(status, str(body.get("error_message") or ""))
        await self._refuse_unanswered()
        if self._landed:
            return None
        given = finished_sample(body, self._rollout.turns)
        samples = {self._deck.server.sample_id: given}
        self._samples = transcripts({"samples": samples})
        if given["reward"] is not None:
            await self._on_graded({"status": "success", "samples": samples})
        elif self._deck.grading is None:
            await self._land(Status.GRADER_ERROR, NO_REWARD)
        else:
            await self._grade(self._deck.grading, given)

    async def _grade(self, grading: Grading, given: Body) -> None:
        self._open_judge()
        try:
            result = await grading.grade(self._deck.http, self._asked, given["messages"])
        except WorkflowRefusedError as error:
            return await self._land(Status.GRADER_ERROR, str(error))
        except InfrastructureError as error:
            return await self._land(Status.INFRASTRUCTURE, str(error))
        for sample in (result.get("samples") or {}).values():
            sample["metrics"] = {**given["metrics"], **(sample.get("metrics") or {})}
        await self._on_graded(result)

    async def _on_graded(self, body: Body) -> None:
        if self._landed:
            return
        self._samples = transcripts(body)
        failed = body.get("status") != "success"
        status = failed_status(body, Status.GRADER_ERROR, Status.GRADER_TIMEOUT)
        if (failure := self._judge_failure(refusals=failed)) is not None and status is Status.GRADER_ERROR:
            # Also when the grader gave a reward all the same: it would be one for a failure that is not its.
            return await self._land(STATUS_OF[failure.kind], f"the grader's judge: {failure.message}")
        if failed:
            return await self._land(status, str(body.get("err_message") or "the grader failed"))
        samples, problem = read_samples(body)
        self._samples = samples
        await self._land(Status.GRADER_ERROR if problem else Status.GRADED, problem)

    async def _land(self, status: Status, reason: str) -> None:
        """The one terminal result, in the store before anybody hears of it."""
        if self._landed:
            return
        rollout = self._rollout
        if not rollout.turns:
            await self._seal()
        rollout.duration_seconds = time.monotonic() - self._started
        try:
            first = await self._deck.store.end_rollout(
                rollout.rollout_id, status, reason, self._samples, rollout.duration_seconds
            )
        except Exception as error:  # the store is ours: whoever waits for the rollout must hear of it
            self._settle(error)
            raise
        if not first:
            self._settle(InfrastructureError(f"rollout {rollout.rollout_id} was ended by somebody else"))
        elif self._settle():
            rollout.status, rollout.reason = status, reason
            rollout.samples = {sample.sample_id: sample for sample in self._samples}

    def _settle(self, fault: Exception | None = None) -> bool:
        """False: it had landed before."""
        if self._landed:
            return False
        self._landed, self._fault = True, fault
        self._over.set()
        return True

    async def _seal(self) -> None:
        """Take the turns over. The gateway does not keep them for long: later it gives none."""
        turns = await self._deck.gateway.seal(self._rollout.rollout_id)
        self._rollout.turns = self._rollout.turns or turns

    def _counters(self) -> CallCounts:
        return self._deck.gateway.counters(self._rollout.rollout_id)

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
