"""Outcomes: what a rollout came to, added up by the database."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_nouns import RUN, rollout, turn

from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Sample, Status

TOOL_RESULTS = [
    {"role": "tool", "tool_call_id": "a", "content": "Error: no such file"},
    {"role": "tool", "tool_call_id": "b", "content": "0 Errors: fine"},
]


@pytest.mark.parametrize(
    ("result", "errors"),
    [
        ({"content": "Error: no such file"}, 1),
        ({"content": "An error occurred while running the tool. Please try again."}, 1),
        ({"content": "broken", "is_error": True}, 1),
        ({"content": "error: in lower case, as a compiler writes"}, 0),
        ({"content": "4"}, 0),
    ],
)
async def test_a_tool_result_that_says_it_is_an_error_is_counted_once(tmp_path: Path, result, errors):
    store = SqliteStore(tmp_path / "osmosis.db")
    await store.create_run(RUN)
    await store.start_rollout(rollout("r"))
    for ordinal in range(2):
        messages = [{"role": "tool", "tool_call_id": "a", **result}]
        await store.append_turn(turn(rollout_id="r", ordinal=ordinal, messages=messages))
    [outcome] = await store.outcomes(RolloutFilter("run-1"))
    [whole] = await store.rollouts(RolloutFilter("run-1"))
    assert (outcome.tool_errors, whole.tool_errors) == (errors, errors)
    await store.close()


async def test_an_outcome_is_what_its_rollout_says_with_turns_and_without(tmp_path: Path):
    store = SqliteStore(tmp_path / "osmosis.db")
    await store.create_run(RUN)
    for name in ("busy", "idle", "runs"):
        await store.start_rollout(rollout(name))
    for ordinal, reason in enumerate([None, "edited_history", "edited_history"]):
        sampling = {"temperature": 1.0} | ({"cached_tokens": 7} if ordinal else {})
        messages = [{"role": "user", "content": "Error: mine"}, *TOOL_RESULTS[:ordinal]]
        await store.append_turn(
            turn(
                rollout_id="busy",
                ordinal=ordinal,
                branch_reason=reason,
                sampling=sampling,
                messages=messages,
            )
        )
    samples = [Sample("a", reward=1.0), Sample("b", reward=0.5), Sample("c", reward=9.0, removed=True)]
    await store.end_rollout("busy", Status.GRADED, "", samples, 2.5)
    await store.end_rollout("idle", Status.NO_TURNS, "no call", [], 0.5)

    outcomes = await store.outcomes(RolloutFilter("run-1"))
    assert outcomes == [r.outcome for r in await store.rollouts(RolloutFilter("run-1"))]
    assert [o.cached_tokens for o in outcomes] == [14, 0, 0]
    assert [o.tool_errors for o in outcomes] == [1, 0, 0]
    assert [o.model_seconds for o in outcomes] == [outcomes[0].model_seconds, 0, 0]
    assert [(o.status, o.reward, o.turns, dict(o.branches)) for o in outcomes] == [
        ("graded", 0.75, 3, {"edited_history": 2}),
        ("no_turns", None, 0, {}),
        ("running", None, 0, {}),
    ]
    [idle] = await store.outcomes(RolloutFilter("run-1", rollout_ids=["idle"]))
    assert (idle.reason, idle.duration_seconds) == ("no call", 0.5)
    await store.close()
