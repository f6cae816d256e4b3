"""An eval: every row so many times through the workflow, whatever was done before taken as done.

Rollouts are taken one by one as they end, added to a `Tally`, and let go: ten thousand rows need no more
memory than those that are out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Container, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from osmosis_ai.controller.dispatch import Dispatcher, is_result, place_key
from osmosis_ai.controller.flight import Place
from osmosis_ai.eval.stored import counted
from osmosis_ai.eval.tally import EvalReport, Tally
from osmosis_ai.store.base import RolloutFilter, Store
from osmosis_ai.types import Outcome, Rollout, Row


@dataclass(slots=True)
class Earlier:
    """What earlier lives of a run left behind."""

    results: list[Outcome] = field(default_factory=list)  # one of each place that has a result: it stands
    unfinished: list[Rollout] = field(default_factory=list)  # attempts at the other places, without turns

    @property
    def done(self) -> set[tuple[str, int]]:
        """The places that need no rollout."""
        return {(outcome.group_id, outcome.member) for outcome in self.results}


async def read_earlier(store: Store, run_id: str) -> Earlier:
    """A run that was stopped, as light as it can be held."""
    outcomes = await store.outcomes(RolloutFilter(run_id))
    results = counted(outcome for outcome in outcomes if is_result(outcome.status))
    done = {(outcome.group_id, outcome.member) for outcome in results}
    again = [o.rollout_id for o in outcomes if (o.group_id, o.member) not in done]
    if not again:
        return Earlier(results)
    return Earlier(results, await store.rollouts(RolloutFilter(run_id, rollout_ids=again), turns=False))


def places_of(run_id: str, rows: Iterable[Row], attempts: int) -> Iterator[Place]:
    """Row by row, attempt by attempt."""
    for row in rows:
        for attempt in range(attempts):
            yield Place(run_id, 0, row, f"r{row.index}", attempt)


async def evaluate(
    dispatcher: Dispatcher,
    run_id: str,
    rows: Iterable[Row],
    attempts: int,
    earlier: Earlier | None = None,
) -> AsyncGenerator[Rollout]:
    """The rollout that counts of every place without a result, as they end; each is in the store by then.

    Closing the iterator cancels the rollouts that are out.
    """
    earlier = earlier or Earlier()
    done: Container[tuple[str, int]] = earlier.done
    places = (place for place in places_of(run_id, rows, attempts) if place_key(place) not in done)
    async with aclosing(dispatcher.stream(places, earlier.unfinished)) as ended:
        async for tries in ended:
            yield tries.rollout


async def evaluate_all(
    dispatcher: Dispatcher, run_id: str, rows: Iterable[Row], attempts: int = 1
) -> list[Rollout]:
    """A small eval at once: the rollout that counts of every place, with its turns, row by row."""
    ended = evaluate(dispatcher, run_id, rows, attempts)
    return sorted([rollout async for rollout in ended], key=lambda r: (r.row_index, r.member))


def summarise(rollouts: Iterable[Rollout], attempts: int, pass_threshold: float) -> EvalReport:
    """Statistics over graded rollouts; a failure is counted, never taken for a reward of 0."""
    tally = Tally(attempts, pass_threshold)
    for rollout in rollouts:
        tally.add(rollout.outcome)
    return tally.report()
