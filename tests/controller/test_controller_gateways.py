"""A run whose LLM calls are answered by several processes."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from controller_bench import AGENTS, configure, run_eval
from test_controller_misbehaviour import CASES

from osmosis_ai.controller.opening import open_run
from osmosis_ai.controller.rollouts import open_rollouts
from osmosis_ai.errors import ConfigError
from osmosis_ai.eval.run import evaluate_all
from osmosis_ai.gateway.fleet import Fleet
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Status

KILLS_ITSELF = """
import os, signal

def answer(messages, tools, random):
    try:
        os.close(os.open("{flag}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return {{"content": "The answer is 42."}}
    os.kill(os.getpid(), signal.SIGKILL)
"""


async def test_whatever_user_code_does_comes_to_the_same_with_two_gateway_processes(tmp_path: Path):
    cases = [does if "blocks" not in does else ("ok", "right") for does in CASES]  # no deadlines to wait for
    config = configure(tmp_path, cases, rollout__gateway_workers=2)
    for does, rollout in zip(cases, await run_eval(config, tmp_path), strict=True):
        status, reason = CASES[does]
        assert (rollout.status, reason in rollout.reason) == (status, True), (does, rollout.reason)


async def test_a_workflow_that_failed_because_its_gateway_died_is_tried_again(tmp_path: Path):
    """The first call of all ends the process that answers it; this agent's client asks once."""
    (tmp_path / "model.py").write_text(KILLS_ITSELF.format(flag=tmp_path / "flag"))
    config = configure(
        tmp_path, [("ok", "right")], rollout__gateway_workers=2, llm__script=f"{tmp_path / 'model.py'}:answer"
    )
    [rollout] = await run_eval(config, tmp_path)
    assert (rollout.status, rollout.attempt) == (Status.GRADED, 1)
    store = SqliteStore(Workspace(tmp_path / "ws").database)
    [failed] = await store.rollouts(RolloutFilter(rollout.run_id, statuses=[Status.INFRASTRUCTURE]))
    await store.close()
    assert failed.reason.startswith("its gateway was started again meanwhile: Lean.run raised")


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
