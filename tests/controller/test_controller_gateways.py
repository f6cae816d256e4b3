"""A run whose LLM calls are answered by several processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from controller_bench import AGENTS, configure, run_eval
from test_controller_misbehaviour import CASES

from osmosis_ai.controller.opening import open_rollouts, open_run
from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.run import evaluate_all
from osmosis_ai.gateway.fleet import Fleet
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Status


async def test_whatever_user_code_does_comes_to_the_same_with_two_gateway_processes(tmp_path: Path):
    config = configure(
        tmp_path,
        list(CASES),
        rollout__agent_timeout_seconds=1.5,
        rollout__grader_timeout_seconds=1.0,
        rollout__gateway_workers=2,
    )
    for does, rollout in zip(CASES, await run_eval(config, tmp_path), strict=True):
        status, reason = CASES[does]
        assert (rollout.status, reason in rollout.reason) == (status, True), (does, rollout.reason)


def kill(fleet: Fleet) -> None:
    for process in fleet.processes:
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)


async def test_a_run_goes_on_when_its_gateway_processes_are_killed(tmp_path: Path):
    config = configure(tmp_path, [("slow", "right")] * 12, rollout__gateway_workers=2)
    async with open_run(config, "eval", Workspace(tmp_path / "ws")) as run:
        async with open_rollouts(run, training=False, notify=lambda text: None) as parts:
            fleet = parts.dispatcher._deck.gateway
            assert isinstance(fleet, Fleet)
            asyncio.get_running_loop().call_later(0.3, kill, fleet)
            statuses = [r.status for r in await evaluate_all(parts.dispatcher, run.run_id, parts.rows)]
        await run.finish()
    assert statuses == [Status.GRADED] * 12
    assert all(process.pid is None for process in fleet.processes)
    assert [process.restarts for process in fleet.processes] == [1, 1]


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (
            '[policy]\npath = "p"',
            r"needs \[llm\]: a policy is sampled by the engine in the run's own process",
        ),
        (
            '[llm]\nmodel = "replay"\nreplay = "x"',
            "cannot answer a replay",
        ),
    ],
)
def test_who_cannot_answer_in_several_processes_is_said(tmp_path: Path, who: str, why: str):
    text = f'[rollout]\nentrypoint = "{AGENTS}"\n[dataset]\npath = "rows.jsonl"\n{who}\n'
    with pytest.raises(ConfigError, match=f"rollout.gateway_workers = 2 {why}"):
        configure(tmp_path, [], text, rollout__gateway_workers=2)
