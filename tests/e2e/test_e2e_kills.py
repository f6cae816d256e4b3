"""A run that is killed again and again ends with the very weights of one that was not."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
from contextlib import closing
from typing import Any

import pytest
import torch
from e2e_bench import TABLES, Bench, start
from safetensors.torch import load_file

STEPS, ROLLOUTS = 3, 8  # of a run, of a step: see TABLES
DETERMINISTIC = TABLES.replace('path = "run:sft"', 'path = "run:sft"\ndeterministic = true')


def final_state(bench: Bench, run: str, step: int) -> dict[str, Any]:
    """All that a later step depends on, by dotted names: weights, optimizer, torch's random state, state.

    Python's and numpy's random states are stored too, but nothing of a step draws from them; how often
    asyncio and the retries of HTTP clients do is chance.
    """
    folder = bench.workspace / "runs" / run / "checkpoints" / f"step-{step:06d}"
    state: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        state |= flat(load_file(file), f"{file.name}.")
    saved = torch.load(folder / "training" / "optimizer.pt", weights_only=True)
    state |= flat({"optimizer": saved["optimizer"], "random": saved["random"]["torch"]})
    state |= flat(json.loads((folder / "training" / "state.json").read_text()), "state.json.")
    return state


def flat(value: Any, name: str = "") -> dict[str, Any]:
    """{"a": [1, {"b": 2}]} -> {"a.0": 1, "a.1.b": 2}"""
    if not isinstance(value, dict | list | tuple):
        return {name.removesuffix("."): value}
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    return {key: leaf for k, inner in inside for key, leaf in flat(inner, f"{name}{k}.").items()}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Equal to the last bit: nothing about the two lives may show in what was learnt."""
    assert one.keys() == other.keys()
    different = [
        name
        for name, value in one.items()
        if not (torch.equal(value, other[name]) if torch.is_tensor(value) else value == other[name])
    ]
    assert different == []


# What came out of the workflow, and not of a kill.
RESULTS = """SELECT row_index, member, step FROM rollout WHERE run_id = 'killed'
    AND status NOT IN ('running', 'infrastructure', 'cancelled', 'superseded')"""


def stored(bench: Bench, query: str) -> list[tuple[int, ...]]:
    """Read without taking part: no checkpoint of the database, no recovery after a kill."""
    with closing(sqlite3.connect(f"file:{bench.workspace / 'osmosis.db'}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def recorded_steps(bench: Bench) -> list[int]:
    return [step for (step,) in stored(bench, "SELECT step FROM step WHERE run_id = 'killed' ORDER BY step")]


def results_of(bench: Bench, step: int) -> int:
    return sum(found == step for _, _, found in stored(bench, RESULTS))


def live_and_be_killed(bench: Bench, rng: random.Random) -> None:
    """Run until some of the rollouts of a step have results that the last life had not; then SIGKILL."""
    step = len(recorded_steps(bench)) + 1
    if results_of(bench, step) >= ROLLOUTS - 1:
        step += 1
    wanted = rng.randint(results_of(bench, step) + 1, ROLLOUTS - 1)
    process = start(bench, "train", "run", "train.toml", "--name", "killed")
    deadline = time.monotonic() + 120
    while results_of(bench, step) < wanted:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    if step < STEPS:
        time.sleep(rng.uniform(0, 0.3))  # in the rollouts that are left, in the update, in the checkpoint
    process.kill()  # no chance to tidy up
    shown, _ = process.communicate()
    recorded = recorded_steps(bench)
    assert process.returncode == -signal.SIGKILL
    assert step - 1 <= len(recorded) < STEPS
    assert {json.loads(line)["step"] for line in shown.splitlines()} <= set(recorded)


def kill_and_go_on(bench: Bench, kills: int, rng: random.Random) -> None:
    """Run `train run train.toml` to its end, killing it up to `kills` times in the midst of its work."""
    for life in range(kills):
        last = len(recorded_steps(bench)) + 1 == STEPS and results_of(bench, STEPS) >= ROLLOUTS - 1
        if life and last:
            break  # too near to its end to be killed once more
        live_and_be_killed(bench, rng)
    bench.osmosis("train", "run", "train.toml", "--name", "killed")
    results = stored(bench, RESULTS)
    assert len(results) == len(set(results)) == STEPS * ROLLOUTS  # nothing lost, nothing done twice


def compare_with_uninterrupted(bench: Bench, kills: int, seed: int) -> None:
    bench.write("train.toml", DETERMINISTIC)
    bench.here("train", "run", "train.toml", "--name", "whole")
    kill_and_go_on(bench, kills, random.Random(seed))
    whole, killed = final_state(bench, "whole", STEPS), final_state(bench, "killed", STEPS)
    kinds = {name.split(".")[0] for name in whole}
    assert kinds == {"model", "optimizer", "random", "state"}
    assert_same(whole, killed)
    steps = [line for line in bench.lines("runs", "show", "killed") if line["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3]


def test_a_killed_run_ends_with_the_very_weights_of_one_that_was_not(bench: Bench):
    compare_with_uninterrupted(bench, kills=1, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_end_with_the_very_weights_of_a_run_without(bench: Bench, seed: int):
    compare_with_uninterrupted(bench, kills=4, seed=seed)
