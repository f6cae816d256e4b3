"""Kills, Ctrl-C and a second process: what was done is kept, once, and the rest goes on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e_bench import TABLES, Bench

DETERMINISTIC = TABLES.replace('path = "run:sft"', 'path = "run:sft"\ndeterministic = true')


def start(bench: Bench, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "osmosis_ai", *arguments, "--workspace", str(bench.workspace), "--json"]
    return subprocess.Popen(
        command, cwd=bench.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def final_state(bench: Bench, run: str, step: int) -> dict[str, bytes]:
    folder = bench.workspace / "runs" / run / "checkpoints" / f"step-{step:06d}"
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def kill_and_go_on(bench: Bench, kills: int, rng: random.Random) -> None:
    """Run `train run train.toml` to its end, killing it `kills` times at random moments of its work."""
    for _ in range(kills):
        process = start(bench, "train", "run", "train.toml", "--name", "killed")
        database_at = time.monotonic() + 30
        log = bench.workspace / "runs" / "killed" / "rollout-server.log"
        while not log.exists() and time.monotonic() < database_at:
            time.sleep(0.05)
        time.sleep(rng.uniform(2.0, 9.0))
        process.kill()  # SIGKILL: no chance to tidy up
        process.communicate()
    done = bench.osmosis("train", "run", "train.toml", "--name", "killed")
    assert done.returncode == 0


def compare_with_uninterrupted(bench: Bench, kills: int, seed: int) -> None:
    bench.write("train.toml", DETERMINISTIC)
    bench.osmosis("train", "run", "train.toml", "--name", "whole")
    kill_and_go_on(bench, kills, random.Random(seed))
    whole, killed = final_state(bench, "whole", 3), final_state(bench, "killed", 3)
    assert whole
    assert whole == killed  # weights and optimizer, byte for byte
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
    _, messages = process.communicate(timeout=60)
    assert first["step"] == 1
    assert process.returncode == 130
    assert "The same command goes on" in messages
    listed = {line["run"]["run_id"]: line for line in bench.lines("runs", "list")}
    assert listed["train"]["run"]["state"] == "interrupted"
    lines = bench.lines("train", "run", "train.toml")
    assert [line["step"] for line in lines[:-1]] == [2, 3]


def test_a_second_process_on_the_same_run_is_refused_and_the_first_goes_on(bench: Bench):
    bench.write("train.toml", TABLES)
    process = start(bench, "train", "run", "train.toml")
    lock = bench.workspace / "runs" / "train" / "lock"
    while not (lock.exists() and lock.read_text().strip()):
        time.sleep(0.05)
    second = bench.osmosis("train", "run", "train.toml", check=False)
    assert second.returncode == 4
    assert f"process {process.pid}" in second.stderr
    process.communicate(timeout=120)
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
    deadline = time.monotonic() + 15
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
