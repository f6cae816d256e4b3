"""Ctrl-C, an audit that fails, a second process: what was done is kept, once, and the rest goes on."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from e2e_bench import TABLES, Bench, start


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
    bench.write("train.toml", TABLES.replace("steps = 3", "steps = 1"))
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
