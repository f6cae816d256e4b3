"""Several gateway processes that share one store: each rollout is answered by one of them, without a hop.

    controller ── admit ──> store <── first call ── gateway 1 <── agents of rollouts 1, 3, ...
        └────── seal ─────────────────────────────> gateway 2 <── agents of rollouts 2, 4, ...

The rollout's URL is that of its own process. What a process must know of a rollout is in the store before
anybody calls, so a process that dies is started again and goes on where it was: `restoring.py`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai.errors import InfrastructureError
from osmosis_ai.gateway.app import listen
from osmosis_ai.gateway.base import Access
from osmosis_ai.gateway.capture import CallCounts, CallFailure
from osmosis_ai.gateway.identity import new_key
from osmosis_ai.gateway.process import GatewayProcess, Recipe
from osmosis_ai.gateway.terms import Terms
from osmosis_ai.store.base import AdmissionRecord, Store
from osmosis_ai.types import ToolSchema, Turn

REMEMBERED = 10_000  # rollouts that were sealed


@dataclass(slots=True)
class _Admitted:
    """A rollout, and the process that answers it."""

    process: GatewayProcess
    restarts_before: int  # of the process
    sealed: bool = False
    counts: CallCounts = field(default_factory=CallCounts)


class Fleet:
    """Implements `RolloutGateway` with `count` processes."""

    def __init__(self, store: Store, recipe: Recipe, count: int) -> None:
        self._store = store
        self._recipe = recipe
        self._count = count
        self._admitted: OrderedDict[str, _Admitted] = OrderedDict()
        self.processes: list[GatewayProcess] = []
        self.provider_reports: dict[str, dict[str, Any]] = {}  # by process, the latest

    async def start(self, host: str = "127.0.0.1") -> None:
        """Raises InfrastructureError when one cannot listen or does not start; then none is left."""
        shown = "127.0.0.1" if host in ("0.0.0.0", "") else host
        try:
            for number in range(self._count):
                name = f"{number + 1}/{self._count}"
                process = GatewayProcess(name, listen(host, 0), shown, self._recipe)
                self.processes.append(process)
            started = [process.start() for process in self.processes]
            for failure in await asyncio.gather(*started, return_exceptions=True):
                if failure is not None:
                    raise failure
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Safe to call twice."""
        for process in self.processes:
            await process.stop()

    async def admit(self, rollout_id: str, terms: Terms) -> Access:
        process = min(self.processes, key=lambda process: process.open_rollouts)
        process.check()
        process.open_rollouts += 1  # before anybody else asks who is least busy
        key, digest = new_key()
        record = AdmissionRecord(rollout_id, digest, process.name, terms.as_json())
        try:
            await self._store.admissions.add(record)
        except BaseException:
            process.open_rollouts -= 1
            raise
        self._admitted[rollout_id] = _Admitted(process, process.restarts)
        while len(self._admitted) > REMEMBERED and next(iter(self._admitted.values())).sealed:
            self._admitted.popitem(last=False)
        return Access(process.base_url, key)

    async def offer_tools(self, rollout_id: str, tools: list[ToolSchema]) -> None:
        await self._store.admissions.offer_tools(rollout_id, tools)
        await self._admitted[rollout_id].process.ask({"offer_tools": rollout_id, "tools": tools})

    async def seal(self, rollout_id: str) -> list[Turn]:
        admitted = self._admitted.get(rollout_id)
        if admitted is None:
            return []
        await self._store.admissions.seal(rollout_id)  # from now on no process takes it up to go on
        if not admitted.sealed:
            admitted.counts = await self._final_counts(rollout_id, admitted)
            admitted.sealed = True
            admitted.process.open_rollouts -= 1
        return [turn for turn, _ in await self._store.admissions.answered(rollout_id)]

    def counters(self, rollout_id: str) -> CallCounts:
        admitted = self._admitted.get(rollout_id)
        return CallCounts() if admitted is None else admitted.counts

    async def _final_counts(self, rollout_id: str, admitted: _Admitted) -> CallCounts:
        process = admitted.process
        try:
            answer = await process.ask({"seal": rollout_id})
        except InfrastructureError as error:  # it is gone for good, so nothing is added to the rollout
            return CallCounts(failures={"": CallFailure("gateway", str(error))})
        self.provider_reports[process.name] = answer["provider"]
        return _read_counts(answer["counts"], process.restarts - admitted.restarts_before)


def _read_counts(counts: dict[str, Any], restarts: int) -> CallCounts:
    failures = {sample: CallFailure(**failure) for sample, failure in counts["failures"].items()}
    return CallCounts(**{**counts, "failures": failures, "restarts": restarts})
