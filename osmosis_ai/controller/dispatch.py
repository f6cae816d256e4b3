"""Dispatch: a place in a run becomes a rollout with a result, whatever the user's code does.

A *place* is what a rollout is made for: one member of the group of a row at a step. A place is tried
again (next attempt, same seed) after a failure of ours or of the model, never after one of the user's.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from osmosis_ai import process
from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.deck import Deck, DispatchSettings
from osmosis_ai.controller.flight import Flight
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.judging import Judging
from osmosis_ai.controller.place import Place, is_result, place_key
from osmosis_ai.controller.rollout_server import RolloutServer
from osmosis_ai.controller.storm import Storm
from osmosis_ai.gateway.base import RolloutGateway
from osmosis_ai.lean_http import HttpPool
from osmosis_ai.store.base import Store
from osmosis_ai.types import RETRIED, Group, Rollout, Row

MANY = 256  # rollouts in flight, after which memory is given back
IDLE_SECONDS = 5.0  # before that: pools keep idle connections for a moment


@dataclass(slots=True)
class Attempts:
    """All attempts at one place: the one that counts, and those that it replaced."""

    place: Place
    rollout: Rollout
    replaced: list[Rollout] = field(default_factory=list)


class _Airspace:
    """Rollouts run side by side; a suspect runs alone.

    A server that dies takes along all rollouts that run in it, and nobody knows which of them ended it. They
    are tried again one at a time with nothing beside them: when it dies again, it is known.
    """

    def __init__(self) -> None:
        self.flying = 0
        self._suspects = 0  # that run, or wait to
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def taken(self, *, alone: bool) -> AsyncIterator[None]:
        self._suspects += alone
        try:
            while self.flying if alone else self._suspects:
                self._changed.clear()
                await self._changed.wait()
            self.flying += 1
            try:
                yield
            finally:
                self.flying -= 1
        finally:
            self._suspects -= alone
            self._changed.set()


class Dispatcher:
    """Runs rollouts on the user's server, at most `max_concurrent` at once."""

    def __init__(
        self,
        server: RolloutServer,
        gateway: RolloutGateway,
        callbacks: Callbacks,
        store: Store,
        settings: DispatchSettings,
        grading: Grading | None = None,
        judging: Judging | None = None,
        failing: Callable[[], str] = lambda: "",
    ) -> None:
        http = HttpPool()
        self._deck = Deck(server, gateway, callbacks, store, settings, grading, judging, http, failing)
        self._retries = settings.retries
        self._window = min(settings.max_concurrent, server.max_concurrent or settings.max_concurrent)
        self._airspace = _Airspace()
        self.stopped = ""  # why no further rollout begins; empty as long as some may
        self.storm: Storm | None = None  # who may stop it: None, where every place is tried to its end
        self.on_end: Callable[[Rollout], None] = lambda rollout: None  # the attempt that counts
        self.on_retry: Callable[[Rollout], None] = lambda rollout: None  # one that will be tried again

    @property
    def window(self) -> int:
        """How many rollouts are out at most."""
        return self._window

    def stop(self, why: str) -> None:
        """Begin no further rollout; those that are out come to their results, and are not tried again."""
        self.stopped = self.stopped or why

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
        """Every place to a result. Cancelling it cancels the rollouts that are out."""
        async with aclosing(self.stream(places, known)) as ended:
            return {place_key(attempts.place): attempts async for attempts in ended}

    async def stream(
        self, places: Iterable[Place], known: Iterable[Rollout] = ()
    ) -> AsyncGenerator[Attempts]:
        """Every place to a result, in a sliding window, in the order in which they end.

        A place is taken from `places` when a rollout may begin, so a long run holds only what is out. Closing
        the iterator (or cancelling who waits on it) cancels the rollouts that are out.
        """
        before: dict[tuple[str, int], list[Rollout]] = {}
        for rollout in known:
            before.setdefault((rollout.group_id, rollout.member), []).append(rollout)
        waiting = iter(places)
        out: set[asyncio.Task[Attempts]] = set()
        ended: asyncio.Queue[asyncio.Task[Attempts]] = asyncio.Queue()
        try:
            while True:
                while len(out) < self._window and not self.stopped:
                    if (place := next(waiting, None)) is None:
                        break
                    task = asyncio.create_task(self._place(place, before.pop(place_key(place), [])))
                    out.add(task)
                    task.add_done_callback(ended.put_nowait)
                if not out:
                    return
                task = await ended.get()
                out.remove(task)
                yield task.result()
        finally:
            await _cancel_all(out)
            if self._window >= MANY:
                asyncio.get_running_loop().call_later(IDLE_SECONDS, self._give_memory_back)

    def _give_memory_back(self) -> None:
        if not self._airspace.flying:
            process.give_memory_back()

    async def close(self) -> None:
        await self._deck.http.close()

    async def _place(self, place: Place, known: list[Rollout]) -> Attempts:
        replaced = [rollout for rollout in known if not is_result(rollout.status)]
        for rollout in known:
            if is_result(rollout.status):
                return Attempts(place, rollout, replaced)
        suspect = False
        for tries in range(self._retries + 1):
            rollout, server_died = await self._attempt(place, len(known) + tries, alone=suspect)
            suspect = suspect or server_died
            self._hear(rollout, server_died=server_died)
            if rollout.status not in RETRIED or tries == self._retries or self.stopped:
                break
            self.on_retry(rollout)
            replaced.append(rollout)
        self.on_end(rollout)
        return Attempts(place, rollout, replaced)

    def _hear(self, rollout: Rollout, *, server_died: bool) -> None:
        if self.storm is not None:
            self.storm.heard(rollout, server_died=server_died)
            if self.storm.verdict:
                self.stop(self.storm.verdict)

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
            await self._deck.store.start_rollout(rollout)
            flight = Flight(self._deck, place, rollout, alone=alone)
            return await flight.fly(), flight.server_died


async def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
