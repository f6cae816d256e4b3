"""Kills, Ctrl-C and a second process: what was done is kept, once, and the rest goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_bench import TABLES, Bench
from safetensors.torch import load_file

STEPS, ROLLOUTS = 3, 8  # of a run, of a step: see TABLES
DETERMINISTIC = TABLES.replace('path = "run:sft"', 'path = "run:sft"\ndeterministic = true')


def start(bench: Bench, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "osmosis_ai", *arguments, "--workspace", str(bench.workspace), "--json"]
    return subprocess.Popen(
        command, cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


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
    bench.osmosis("train", "run", "train.toml", "--name", "whole")
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


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(bench: Bench):
    bench.write("train.toml", TABLES)
    process = start(bench, "train", "run", "train.toml")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, messages = process.communicate(timeout=180)
    assert first["step"] == 1
    taken = [first["step"], *(json.loads(line)["step"] for line in rest.splitlines())]
    assert process.returncode == 130
    assert "The same command goes on" in messages
    listed = {line["run"]["run_id"]: line for line in bench.lines("runs", "list")}
    assert listed["train"]["run"]["state"] == "interrupted"
    lines = bench.lines("train", "run", "train.toml")
    assert [*taken, *(line["step"] for line in lines[:-1])] == [1, 2, 3]


def test_the_audit_stops_the_run_with_exit_code_4_and_the_gate_may_be_set_knowingly(bench: Bench):
    """In bfloat16 sampler and trainer round differently, which a gate of 1e-9 does not allow."""
    bench.write("train.toml", TABLES.replace("steps = 3", "steps = 1"))
    command = ["train", "run", "train.toml", "--set", "policy.dtype=bfloat16", "--set"]
    stopped = bench.osmosis(*command, "train.audit_gate=1e-9", check=False)
    assert stopped.returncode == 4, stopped.stderr
    assert "error: policy version 0: sampler and trainer differ by " in stopped.stderr
    assert "train.audit_gate allows 1e-09 (mean 8e-11). The weights were not updated." in stopped.stderr
    assert "Traceback" not in stopped.stderr
    listed = {line["run"]["run_id"]: line for line in bench.lines("runs", "list")}
    assert listed["train"]["run"]["state"] == "failed"
    assert listed["train"]["last_step"] == 0
    assert not (bench.workspace / "runs" / "train" / "checkpoints").exists()
    [step, done] = bench.lines(*command, "train.audit_gate=0.25")
    assert (step["step"], done["event"]) == (1, "done")
    assert 1e-9 < step["audit"]["max_difference"] < 0.25


def test_a_second_process_on_the_same_run_is_refused_and_the_first_goes_on(bench: Bench):
    bench.write("train.toml", TABLES)
    process = start(bench, "train", "run", "train.toml")
    lock = bench.workspace / "runs" / "train" / "lock"
    while not (lock.exists() and lock.read_text().strip()):
        time.sleep(0.05)
    second = bench.osmosis("train", "run", "train.toml", check=False)
    assert second.returncode == 4
    assert f"process {process.pid}" in second.stderr
    process.communicate(timeout=180)
    assert process.returncode == 0


def test_a_finished_run_is_not_done_twice_and_a_changed_one_is_refused_naming_the_change(bench: Bench):
    before = bench.lines("eval", "run", "record.toml")
    assert [line["event"] for line in before] == ["report"]  # no rollout was run again
    changed = bench.osmosis("eval", "run", "record.toml", "--set", "eval.attempts=9", check=False)
    assert changed.returncode == 2
    assert "eval.attempts: was 8, is 9" in changed.stderr
    assert "--fresh" in changed.stderr


def test_no_process_is_left_behind_after_a_kill(bench: Bench):
    bench.write("train.toml", TABLES)
    process = start(bench, "train", "run", "train.toml")
    assert process.stdout is not None
    process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 60
    while any(is_running(int(child)) for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children
    assert not any(is_running(int(child)) for child in children)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
