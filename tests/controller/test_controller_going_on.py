"""A run that goes on: what counts, what is made again, and what a change of its inputs leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from controller_bench import configure

from osmosis_ai.cli.eval import run
from osmosis_ai.config import Config
from osmosis_ai.controller.dispatch import is_result
from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import open_rollouts
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.run import RETRY, evaluate, read_earlier
from osmosis_ai.eval.stored import lineage_note, read_run
from osmosis_ai.eval.tally import Tally
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.export.jsonl import import_run, run_lines
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Outcome, Status

ROWS = [("ok", "right"), ("ok", "wrong"), ("ok", "needs_service"), ("raises", "right"), ("ok", "right")]


async def go_on(config: Config, **how: Any) -> tuple[list[str], Tally]:
    """One life of the run: the rollouts that it made, and all that counts."""
    made, tally = [], Tally(1, 1.0)
    async with open_run(config, "eval", Workspace(config.source.parent / "ws"), **how) as run:
        async with open_rollouts(run, training=False, notify=lambda text: None) as parts:
            earlier = await read_earlier(run.store, run.run_id)
            for outcome in earlier.among(parts.rows.indices, 1):
                tally.add(outcome)
            async for rollout in evaluate(parts.dispatcher, run.run_id, parts.rows, 1, earlier):
                tally.add(rollout.outcome)
                made.append(rollout.rollout_id)
        await run.finish()
    return sorted(made), tally


async def stored(folder: Path) -> list[Outcome]:
    store = SqliteStore(Workspace(folder / "ws").database)
    outcomes = await store.outcomes(RolloutFilter("bad"))
    await store.close()
    return sorted(outcomes, key=lambda o: (o.row_index, o.attempt))


def test_a_low_reward_is_no_failure_to_run_again_and_every_other_result_is_one():
    results = {status for status in Status if is_result(status)}
    assert RETRY["failed"] == RETRY["errors"] | RETRY["timeouts"] == results - {Status.GRADED}


async def test_a_retry_makes_its_class_again_and_counts_every_place_once(tmp_path: Path):
    """Superseded at once: when the life that was to do it is stopped, the next knows what is missing."""
    config = configure(tmp_path, ROWS)
    made, tally = await go_on(config)
    assert len(made) == 5
    assert tally.report().failures == {"grader_error": 1, "workflow_error": 1}

    (tmp_path / "told-2.up").write_text("the service is up")
    async with open_run(config, "eval", Workspace(tmp_path / "ws")) as run:
        await read_earlier(run.store, run.run_id, RETRY["errors"], rows=[0, 1, 2])
    made, tally = await go_on(config)
    assert made == ["bad.r2.m0.a1"]
    report = tally.report()
    assert (report.rows, report.graded, report.failures) == (5, 4, {"workflow_error": 1})

    attempts = [(o.rollout_id[4:], o.status, o.reward) for o in await stored(tmp_path) if o.row_index == 2]
    assert attempts == [("r2.m0.a0", "superseded", None), ("r2.m0.a1", "graded", 1.0)]
    assert (await stored(tmp_path))[2].reason.startswith("ended as grader_error, then another took its place")


async def test_a_change_is_refused_by_name_or_goes_on_and_is_on_record(tmp_path: Path):
    await go_on(configure(tmp_path, ROWS[:2], dataset__limit=1))
    warmer = configure(tmp_path, ROWS[:2], sampling__temperature=0.5, eval__attempts=1)
    with pytest.raises(UsageError) as refused:
        await go_on(warmer)
    lines = str(refused.value).splitlines()
    assert lines[1:-1] == ["  sampling.temperature: was 1.0, is 0.5"]
    assert "go on with what has changed (--accept-changes)" in lines[-1]

    made, tally = await go_on(warmer, accept_changes=True)
    assert (made, tally.report().graded) == (["bad.r1.m0.a0"], 2)
    with pytest.raises(UsageError, match=r"temperature: was 0\.5, is 1\.0"):  # its own from now on
        await go_on(configure(tmp_path, ROWS[:2]))

    hotter = configure(tmp_path, ROWS[:2], sampling__temperature=2.0, eval__attempts=1)
    async with open_run(hotter, "eval", Workspace(tmp_path / "ws"), accept_changes=True) as nothing_to_do:
        assert nothing_to_do.stays()
        await nothing_to_do.begin()

    store = SqliteStore(Workspace(tmp_path / "ws").database)
    run = await read_run(store, "bad")
    [amendment] = run.record.lineage
    assert amendment.changes == {"sampling.temperature": [1.0, 0.5]}
    assert run.record.config["sampling"]["temperature"] == 0.5
    assert [run.record.lineage_at(rollout.started_at) for rollout in run.rollouts] == [0, 1]
    assert lineage_note(run.record, [rollout.started_at for rollout in run.rollouts]) == (
        "bad is of mixed lineage: 1 of its rollouts were made before a change that was accepted "
        "(sampling.temperature), 1 after the last one"
    )
    (tmp_path / "bad.jsonl").write_text("".join([f"{line}\n" async for line in run_lines(store, run.record)]))
    await store.close()
    elsewhere = SqliteStore(tmp_path / "elsewhere.db")
    await import_run(elsewhere, tmp_path / "bad.jsonl")
    assert await elsewhere.get_run("bad") == run.record
    await elsewhere.close()


def test_the_command_offers_every_kind_of_retry_that_there_is():
    option = next(option for option in run.params if option.name == "retry")
    assert list(option.type.choices) == list(RETRY)
