"""A workflow that ends the whole process: the others are tried again, and the culprit is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from controller_bench import configure, run_eval

from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Status


async def test_a_workflow_that_exits_fails_alone_and_the_others_are_run_again(tmp_path: Path):
    does = [("slow", "right"), ("exits", "right"), ("slow", "wrong"), ("slow", "right")]
    first, killer, third, fourth = await run_eval(configure(tmp_path, does), tmp_path)
    assert [first.reward, third.reward, fourth.reward] == [1.0, 0.0, 1.0]
    assert killer.status is Status.WORKFLOW_ERROR
    assert killer.reason.startswith("the workflow ended the process that it ran in, with status 7;")
    store = SqliteStore(Workspace(tmp_path / "ws").database)
    attempts = await store.rollouts(RolloutFilter("bad"))
    await store.close()
    assert Counter(a.status.value for a in attempts) == {
        "infrastructure": 4,
        "graded": 3,
        "workflow_error": 1,
    }
    assert all("ended with status 7" in a.reason for a in attempts if a.status is Status.INFRASTRUCTURE)


async def test_a_server_that_does_nothing_but_die_is_given_up(tmp_path: Path):
    rollouts = await run_eval(configure(tmp_path, [("exits", "right")] * 6), tmp_path)
    assert Counter(r.status.value for r in rollouts) == {"workflow_error": 4, "infrastructure": 2}
    given_up = [r for r in rollouts if r.status is Status.INFRASTRUCTURE]
    assert all("died 5 times without a rollout that came to a result" in r.reason for r in given_up)
