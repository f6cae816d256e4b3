"""An eval on bad days: rows that are poison, and an endpoint that is dead, or wants to be asked less."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from e2e_bench import Bench
from test_e2e_bad_inputs import EVAL, LEAN, rows

from osmosis_ai.cli import eval_session

DEAD = EVAL.replace('model = "scripted"\nscript = "{script}"', 'model = "gpt"\nbase_url = "{script}"')


def test_poisoned_rows_cost_their_own_results_and_nobody_elses(tmp_path: Path):
    """One ends its server, one hangs, one is 3 MB long, two have characters that are hardly any."""
    poison = ["exits", "blocks", "ok \x00", "ok " + "x" * 3_000_000, "ok \ud83d"]
    bench = Bench(tmp_path)
    lines = [{"user_prompt": prompt, "ground_truth": "right"} for prompt in ["ok", "ok", *poison, "ok", "ok"]]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    bench.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:answer")
    options = ("--set", "rollout.max_concurrent=4", "--set", "rollout.agent_timeout_seconds=2.0")
    *rollouts, report = bench.lines("eval", "run", "bad.toml", *options)
    failed = {line["row"]: line["status"] for line in rollouts if line["reward"] is None}
    assert failed == {2: "workflow_error", 3: "workflow_timeout", 6: "workflow_error"}
    assert (report["graded"], report["stopped"]) == (6, "")


def test_a_dead_endpoint_stops_the_run_early_with_its_name(tmp_path: Path):
    with socket.socket() as taken:  # bound and not listening: nobody else answers there
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        bench = Bench(tmp_path)
        rows(bench, [("ok", "right")] * 500)
        bench.write("bad.toml", DEAD, entrypoint=str(LEAN), script=url)
        dead = bench.osmosis("eval", "run", "bad.toml", "--set", "rollout.max_concurrent=4", check=False)
    assert dead.returncode == 4
    assert "Traceback" not in dead.stderr
    [stopped] = [line for line in dead.stdout.splitlines() if line.startswith("stopped early: ")]
    assert f"{url} is down: " in stopped
    assert "0 graded rollouts of" in dead.stdout
    run, *lines = bench.lines("runs", "show", "bad")
    assert (run["state"], run["error"].startswith(f"{url} is down")) == ("failed", True)
    statuses = [line["status"] for line in lines if line["event"] == "rollout"]
    assert set(statuses) == {"provider_error"}
    assert len(statuses) < 50  # of 500 rows, and each could be tried three times


ANSWER = {
    "id": "a", "object": "chat.completion", "created": 0, "model": "gpt",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "right"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}  # fmt: skip


class Busy(BaseHTTPRequestHandler):
    """Wants to be left alone six times, and answers from then on."""

    refused = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        full = Busy.refused < 6
        Busy.refused += full
        body = json.dumps({"error": {"message": "slow down"}} if full else ANSWER).encode()
        self.send_response(429 if full else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_too_many_requests_cost_no_result_and_are_said_while_they_last_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(eval_session, "WATCH_SECONDS", 0.02)
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        bench = Bench(tmp_path)
        rows(bench, [("ok", "right")] * 8)
        url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        bench.write("bad.toml", DEAD, entrypoint=str(LEAN), script=url)
        shown = bench.here("eval", "run", "bad.toml", "--set", "rollout.max_concurrent=4")
        server.shutdown()
    said = capsys.readouterr().err
    assert "run bad: 8 graded rollouts of 8 rows" in shown
    assert said.count("the endpoint says 'too many requests' (") == 1
    assert "note: 6 answers of the endpoint said 'too many requests'" in said


def test_a_dead_judge_stops_the_run_as_well(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        bench = Bench(tmp_path)
        rows(bench, [("ok", "judged")] * 200)
        judge = f'[judge]\nmodel = "gpt"\nbase_url = "{url}"\n'
        bench.write("bad.toml", EVAL + judge, entrypoint=str(LEAN), script=f"{LEAN}:answer")
        dead = bench.osmosis("eval", "run", "bad.toml", "--set", "rollout.max_concurrent=4", check=False)
    assert dead.returncode == 4
    [stopped] = [line for line in dead.stdout.splitlines() if line.startswith("stopped early: ")]
    assert f"{url} is down: " in stopped


def test_a_reader_that_has_seen_enough_interrupts_the_run_and_does_not_fail_it(tmp_path: Path):
    bench = Bench(tmp_path)
    rows(bench, [("ok", "right")] * 40)
    bench.write("bad.toml", EVAL, entrypoint=str(LEAN), script=f"{LEAN}:answer")
    where = ["--workspace", str(bench.workspace), "--set", "rollout.max_concurrent=1", "--json"]
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", "bad.toml", *where]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(60) == 0
    record, *_ = bench.lines("runs", "show", "bad")
    assert (record["state"], record["error"]) == ("interrupted", "")
    *_, report = bench.lines("eval", "run", "bad.toml")
    assert report["graded"] == 40
