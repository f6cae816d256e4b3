"""An eval: every row so many times through the workflow, whatever was done before taken as done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from osmosis_ai.controller.dispatch import Dispatcher, place_key
from osmosis_ai.controller.flight import Place
from osmosis_ai.eval.statistics import Estimate, PassEstimate, mean_reward, pass_rates
from osmosis_ai.types import Rollout, Row, Status


@dataclass(frozen=True, slots=True)
class EvalReport:
    """What may be said about the rewards of an eval."""

    rows: int
    attempts: int
    graded: int
    failures: dict[str, int]  # status -> rollouts without a reward
    first_failures: dict[str, str]  # status -> row and reason of the first of them
    mean: Estimate | None  # None when nothing was graded
    pass_rates: list[PassEstimate]  # for k = 1, 2, 4, ... up to the attempts per row
    completion_tokens: int
    turns: int
    malformed_tool_calls: int
    branches: dict[str, int]  # reason -> calls that do not continue the latest turn of their sample


def places_of(run_id: str, rows: Iterable[Row], attempts: int) -> list[Place]:
    """Row by row, attempt by attempt."""
    return [Place(run_id, 0, row, f"r{row.index}", attempt) for row in rows for attempt in range(attempts)]


async def evaluate(
    dispatcher: Dispatcher, run_id: str, rows: Iterable[Row], attempts: int, known: Iterable[Rollout]
) -> list[Rollout]:
    """The rollout that counts of every row and attempt, in that order."""
    places = places_of(run_id, rows, attempts)
    results = await dispatcher.run_all(places, known)
    return [results[place_key(place)].rollout for place in places]


def summarise(rollouts: Sequence[Rollout], attempts: int, pass_threshold: float) -> EvalReport:
    """Statistics over graded rollouts; a failure is counted, never taken for a reward of 0."""
    by_row: dict[int, list[float]] = {}
    failures: dict[str, int] = {}
    first_failures: dict[str, str] = {}
    for rollout in rollouts:
        if rollout.status is Status.GRADED and rollout.reward is not None:
            by_row.setdefault(rollout.row_index, []).append(rollout.reward)
        else:
            status = rollout.status.value
            failures[status] = failures.get(status, 0) + 1
            first_failures.setdefault(status, f"row {rollout.row_index}: {rollout.reason}")
    graded = sum(len(rewards) for rewards in by_row.values())
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    return EvalReport(
        rows=len({rollout.row_index for rollout in rollouts}),
        attempts=attempts,
        graded=graded,
        failures=failures,
        first_failures=first_failures,
        mean=mean_reward(by_row) if graded else None,
        pass_rates=_pass_rates(by_row, attempts, pass_threshold),
        completion_tokens=sum(turn.completion_tokens for turn in turns),
        turns=len(turns),
        malformed_tool_calls=sum(turn.malformed_tool_calls for turn in turns),
        branches=dict(sum((rollout.branches for rollout in rollouts), Counter())),
    )


def _pass_rates(by_row: dict[int, list[float]], attempts: int, threshold: float) -> list[PassEstimate]:
    """pass@1, pass@2, pass@4, ... over the rows whose attempts were all graded."""
    complete = {row: rewards for row, rewards in by_row.items() if len(rewards) == attempts}
    if not complete:
        return []
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= attempts]
    return [pass_rates(complete, k, threshold=threshold) for k in ks]
