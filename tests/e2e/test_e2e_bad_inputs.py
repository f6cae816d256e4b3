"""Bad days through the whole command line: a full disk, Ctrl-C, chatty code, models that write escapes."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, Bench

LEAN = Path(__file__).parents[1] / "controller" / "lean_agents.py"
EVAL = """
[run]
name = "bad"
[rollout]
entrypoint = "{entrypoint}"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "{script}"
"""
SGR = re.compile(r"\x1b\[[0-9;]*m")  # colours and weights


@pytest.fixture
def lean(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def rows(bench: Bench, does: Sequence[tuple[str, str]]) -> None:
    lines = [json.dumps({"user_prompt": prompt, "ground_truth": label}) + "\n" for prompt, label in does]
    (bench.folder / "rows.jsonl").write_text("".join(lines))


def command(bench: Bench, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "osmosis_ai", *arguments, "--workspace", str(bench.workspace)]


def test_user_code_that_prints_reaches_neither_the_data_nor_the_screen(lean: Bench):
    rows(lean, [("prints", "right"), ("ok", "right")])
    lean.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:answer")
    done = lean.osmosis("eval", "run", "bad.toml", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in lines] == ["rollout", "rollout", "report"]
    assert lines[-1]["run_id"] == "bad"
    assert "below Python" not in done.stdout + done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_ctrl_c_in_an_eval_keeps_what_is_done_and_the_same_command_does_the_rest(lean: Bench):
    rows(lean, [("ok", "right"), *[("slow", "right")] * 7])
    lean.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:answer")
    process = subprocess.Popen(
        command(lean, "eval", "run", "bad.toml", "--set", "rollout.max_concurrent=1", "--json"),
        cwd=lean.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    rest, messages = process.communicate(timeout=180)
    assert process.returncode == 130
    assert messages.rstrip().endswith("interrupted; what has a result is kept. The same command goes on.")
    done = {first["rollout_id"], *(json.loads(line)["rollout_id"] for line in rest.splitlines())}
    lines = lean.lines("eval", "run", "bad.toml")
    again = {line["rollout_id"] for line in lines[:-1]}
    assert not done & again
    assert len(done) + len(again) == lines[-1]["graded"] == 8


def test_a_full_disk_stops_the_run_with_its_name_and_the_same_command_goes_on(lean: Bench):
    """No file may grow beyond 600 kB: what a disk without room does to the database."""
    rows(lean, [("ok", "right")] * 60)
    lean.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:long_winded")
    eval_run = command(lean, "eval", "run", "bad.toml", "--json", "--set", "rollout.max_concurrent=4")
    full = subprocess.run(
        eval_run,
        cwd=lean.folder,
        capture_output=True,
        text=True,
        timeout=180,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000)),
    )
    assert full.returncode == 4
    assert "Traceback" not in full.stderr
    last = full.stderr.splitlines()[-1]
    assert last.startswith(f"error: {lean.workspace / 'osmosis.db'}: SQLite says")
    assert last.endswith("then start the same command again.")
    kept = {line["rollout_id"] for line in map(json.loads, full.stdout.splitlines())}
    lines = lean.lines("eval", "run", "bad.toml", "--set", "rollout.max_concurrent=64")
    assert 0 < len(kept) < 60
    assert not kept & {line["rollout_id"] for line in lines[:-1]}
    assert lines[-1]["graded"] == 60


def test_a_conversation_with_escapes_is_shown_and_not_obeyed(lean: Bench):
    rows(lean, [("ok [bold]x[/nothing] \x1b[31m", "right")])
    lean.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:escapes")
    lean.osmosis("eval", "run", "bad.toml")
    shown = lean.osmosis("runs", "show", "bad", "--row", "0").stdout
    assert "assistant | \\x1b[2J\\x1b[31mred\\x07 [bold]loud[/bold] [/nothing]" in shown
    assert "user | ok [bold]x[/nothing] \\x1b[31m" in shown
    assert shown.replace("\n", "").isprintable()
    [rollout] = lean.lines("runs", "show", "bad", "--row", "0")
    assert rollout["turns"][0]["response"]["content"].startswith("\x1b[2J")  # kept as it was
    pipe = subprocess.run(
        f"{' '.join(command(lean, 'runs', 'show', 'bad', '--row', '0'))} | head -n 1",
        shell=True,
        cwd=lean.folder,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (pipe.stdout.count("\n"), pipe.stderr) == (1, "")


def test_on_a_terminal_there_is_a_bar_and_with_no_color_it_has_no_colours(lean: Bench):
    rows(lean, [("slow", "right"), ("raises", "right")])
    lean.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:answer")
    coloured = on_a_terminal(lean, "eval", "run", "bad.toml")
    plain = on_a_terminal(lean, "eval", "run", "bad.toml", "--fresh", NO_COLOR="1")
    assert "━" in coloured
    assert "━" in plain
    assert {code for code in SGR.findall(coloured) if code != "\x1b[0m"}
    assert not {code for code in SGR.findall(plain) if re.search(r"[;\[](3|4|9|10)\d", code)}
    assert "row 1: workflow_error: Lean.run raised ValueError: no soup today" in plain


def on_a_terminal(bench: Bench, *arguments: str, **environment: str) -> str:
    """What the command writes to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command(bench, *arguments),
        cwd=bench.folder,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment},
    )
    os.close(follower)
    written = b""
    while True:
        try:
            chunk = os.read(leader, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        written += chunk
    os.close(leader)
    assert process.wait(timeout=180) == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("agent", ["strands", "openai_agents"])
def test_a_malformed_tool_call_is_answered_with_an_error_and_the_rollout_goes_on(lean: Bench, agent: str):
    (lean.folder / "rows.jsonl").write_text('{"user_prompt": "What is 3 times 4?", "ground_truth": "12"}\n')
    lean.write(
        "bad.toml", EVAL, entrypoint=str(CALCULATOR / f"{agent}_agent.py"), script=f"{LEAN}:forgets_a_brace"
    )
    report = lean.lines("eval", "run", "bad.toml")[-1]
    [rollout] = lean.lines("runs", "show", "bad", "--row", "0")
    assert (report["graded"], rollout["status"], len(rollout["turns"])) == (1, "graded", 2)
    assert report["malformed_tool_calls"] == 1
    first, second = rollout["turns"]
    assert first["response"]["tool_calls"][0]["function"]["arguments"] == '{"a": 3, "b": '
    assert second["messages"][-1]["role"] == "tool"
    assert "JSON" in str(second["messages"][-1]["content"])
    assert rollout["samples"]["calculator"]["reward"] == 1.0
