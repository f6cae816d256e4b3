"""An eval: every row so many times through the workflow, whatever was done before taken as done.

Rollouts are taken one by one as they end, added to a `Tally`, and let go: ten thousand rows need no more
memory than those that are out.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.controller.place import Place, is_result, place_key
from osmosis_ai.eval.budget import usage_of_outcome
from osmosis_ai.eval.stored import counted
from osmosis_ai.eval.tally import EvalReport, Tally
from osmosis_ai.providers.prices import NOTHING, Usage
from osmosis_ai.store.base import RolloutFilter, Store
from osmosis_ai.types import Outcome, Rollout, Row, Status

if TYPE_CHECKING:  # what only looks at a run has none
    from osmosis_ai.controller.dispatch import Dispatcher

TIMEOUTS = frozenset({Status.WORKFLOW_TIMEOUT, Status.GRADER_TIMEOUT})
ERRORS = frozenset(
    {
        Status.WORKFLOW_ERROR,
        Status.GRADER_ERROR,
        Status.NO_TURNS,
        Status.MODEL_ERROR,
        Status.OVER_BUDGET,
    }
)
# What `--retry` names. What failed by nobody's fault (`RETRIED`) is tried again anyway. A low reward is a
# result: tried again until it is high, it would say nothing.
RETRY = {"errors": ERRORS, "timeouts": TIMEOUTS, "failed": ERRORS | TIMEOUTS}


@dataclass(frozen=True, slots=True)
class Earlier:
    """What earlier lives of a run left behind."""

    results: Sequence[Outcome] = ()  # one of each place that has a result: it stands
    unfinished: Sequence[Rollout] = ()  # attempts at the other places, without turns
    usage: Usage = NOTHING  # of all its rollouts, also those that count no more

    def among(self, indices: Collection[int], attempts: int) -> list[Outcome]:
        """The results at places of an eval of these rows, so many attempts at each."""
        wanted = indices if isinstance(indices, range) else set(indices)
        return [o for o in self.results if o.row_index in wanted and o.member < attempts]


async def read_earlier(
    store: Store, run_id: str, retry: Collection[Status] = (), rows: Collection[int] | None = None
) -> Earlier:
    """The state of a run that goes on, as light as it can be held.

    Results (of `rows`) whose status is in `retry` are superseded first, all at once: the run has none of them
    any more, whatever becomes of this life of it.
    """
    outcomes = await store.outcomes(RolloutFilter(run_id))
    chosen = rows if rows is None or isinstance(rows, range) else set(rows)
    again = {
        o.rollout_id for o in outcomes if o.status in retry and (chosen is None or o.row_index in chosen)
    }
    if again:
        await store.supersede(sorted(again))
    results = counted(o for o in outcomes if is_result(o.status) and o.rollout_id not in again)
    done = {(o.group_id, o.member) for o in results}
    unfinished = [o.rollout_id for o in outcomes if (o.group_id, o.member) not in done]
    usage = sum(map(usage_of_outcome, outcomes), NOTHING)
    if not unfinished:
        return Earlier(results, usage=usage)
    attempts = await store.rollouts(RolloutFilter(run_id, rollout_ids=unfinished), turns=False)
    return Earlier(results, attempts, usage)


def places_of(run_id: str, rows: Iterable[Row], attempts: int) -> Iterator[Place]:
    """Row by row, attempt by attempt."""
    for row in rows:
        for attempt in range(attempts):
            yield Place(run_id, 0, row, f"r{row.index}", attempt)


def waiting(run_id: str, rows: Iterable[Row], attempts: int, earlier: Earlier) -> Iterator[Place]:
    """The places that have no result yet."""
    done = {(outcome.group_id, outcome.member) for outcome in earlier.results}
    return (place for place in places_of(run_id, rows, attempts) if place_key(place) not in done)


async def run_places(
    dispatcher: Dispatcher, places: Iterable[Place], earlier: Earlier
) -> AsyncGenerator[Rollout]:
    """The rollout that counts of every place, as they end; each is in the store by then.

    Closing the iterator cancels the rollouts that are out.
    """
    async with aclosing(dispatcher.stream(places, earlier.unfinished)) as ended:
        async for tries in ended:
            yield tries.rollout


async def evaluate(
    dispatcher: Dispatcher,
    run_id: str,
    rows: Iterable[Row],
    attempts: int,
    earlier: Earlier | None = None,
) -> AsyncGenerator[Rollout]:
    """The rollout that counts of every place without a result, as `run_places`."""
    earlier = earlier or Earlier()
    places = waiting(run_id, rows, attempts, earlier)
    async with aclosing(run_places(dispatcher, places, earlier)) as ended:
        async for rollout in ended:
            yield rollout


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
