"""`osmosis serve`: without an account, on loopback unless there is a key, until it is told to stop."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from osmosis_ai.rollout import ServeError, serve_agent_loop
from osmosis_ai.rollout.validator import AgentLoopValidationError

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "tests" / "seeds" / "seed_003_calculator.py"
WORKFLOW = ROOT / "tests" / "controller" / "lean_agents.py"


WAITS = """
import asyncio, pathlib
from osmosis_ai.rollout import AgentWorkflow, Grader, get_rollout_context

class Waits(AgentWorkflow):
    async def run(self, ctx):
        get_rollout_context().register_agent("main", [{{"role": "assistant", "content": "148"}}])
        while not pathlib.Path("{go_on}").exists():
            await asyncio.sleep(0.01)

class Ones(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""


def start(*arguments: str, folder: Path = ROOT, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "osmosis_ai", "serve", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, text=True, env=os.environ | environment, **pipes)


@contextmanager
def serving(*arguments: str, folder: Path = ROOT, **environment: str) -> Iterator[str]:
    with start(*arguments, "--port", "0", folder=folder, **environment) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        try:
            assert line, server.stderr.read()
            yield line.split()[-1]
        finally:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 130


def test_with_json_the_server_says_where_it_listens_in_one_line():
    server = start("-m", f"{LOOP}:agent_loop", "--port", "0", "--json")
    try:
        line = json.loads(server.stdout.readline())
        jsonschema.validate(line, json.loads((ROOT / "docs/schemas/serve.schema.json").read_text()))
        assert ask(f"{line['url']}/health")[0] == 200
    finally:
        server.send_signal(signal.SIGINT)
        assert (server.communicate(timeout=60)[0], server.returncode) == ("", 130)


def ask(url: str, body: Any = None, key: str = "") -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def init(url: str, **more: Any) -> dict[str, Any]:
    asked = {"rollout_id": "r1", "server_url": "http://127.0.0.1:1", "messages": [], "completion_params": {}}
    return {**asked, **more}


def test_r12_an_agent_loop_is_served_by_module_and_attribute(tmp_path: Path):
    (tmp_path / "server.py").write_text(LOOP.read_text())
    settings = {"OSMOSIS_ROLLOUT_SERVER_MAX_CONCURRENT_ROLLOUTS": "3"}
    with serving("-m", "server:agent_loop", folder=tmp_path, **settings) as url:
        status, health = ask(f"{url}/health")
        assert (status, health["agent_loop"], health["concurrency"]["max_concurrent"]) == (
            200,
            "calculator",
            3,
        )
        status, opened = ask(f"{url}/v1/rollout/init", init(url))
        assert (status, len(opened["tools"])) == (202, 2)


@pytest.mark.parametrize("block", ["environment", "log"])
def test_r08_r12_the_shell_blocks_of_seed_003_serve(tmp_path: Path, block: str):
    (tmp_path / "server.py").write_text(LOOP.read_text())
    command = tmp_path / "bin" / "osmosis"  # the one of this tree, on a port that is free
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m osmosis_ai "$@" --port 0\n')
    command.chmod(0o755)
    lines = (LOOP.parent / f"seed_003_{block}.sh").read_text()
    script = f"\n{lines}".replace("\nosmosis", "\nexec osmosis")  # so that ending it ends the server
    environment = os.environ | {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path, env=environment, **pipes) as server:
        try:
            line = server.stdout.readline()
            assert line.startswith("agent loop calculator at http://127.0.0.1:"), server.stderr.read()
            status, answer = ask(f"{line.split()[-1]}/v1/rollout/init", init("", server_url=""))
            assert (status, answer["detail"][0]["loc"]) == (422, ["body", "server_url"])
        finally:
            server.terminate()


def test_r12_events_of_the_rollouts_are_in_the_folder_of_log(tmp_path: Path):
    with serving(str(LOOP), "--log", str(tmp_path / "logs")) as url:
        ask(f"{url}/v1/rollout/init", init(url, messages=[{"role": "user", "content": "hi"}]))
    [file] = (tmp_path / "logs").glob("*/r1.jsonl")
    first = json.loads(file.read_text().splitlines()[0])
    assert (first["event"], first["turn"], first["seq"]) == ("pre_llm", 0, 0)


def test_r30_a_workflow_is_served_too_and_its_key_is_asked_for():
    with serving(str(WORKFLOW), "--api-key", "sesame") as url:
        assert ask(f"{url}/health")[1]["status"] == "ok"
        assert ask(f"{url}/rollout/none/status")[0] == 401
        assert ask(f"{url}/rollout/none/status", key="sesame")[0] == 404


def test_a_server_that_is_told_to_stop_listens_until_the_result_of_its_rollout_was_fetched(tmp_path: Path):
    go_on = tmp_path / "go_on"
    (tmp_path / "agent.py").write_text(WAITS.format(go_on=str(go_on)))
    with start("agent.py", "--port", "0", folder=tmp_path) as server:
        url = server.stdout.readline().split()[-1]
        asked = {"rollout_id": "r1", "initial_messages": [], "chat_completions_url": "http://127.0.0.1:1/v1"}
        assert ask(f"{url}/rollout", asked)[0] == 202
        server.send_signal(signal.SIGINT)
        while ask(f"{url}/health")[1]["accepting"]:
            time.sleep(0.01)
        assert ask(f"{url}/rollout", {**asked, "rollout_id": "r2"})[0] == 503
        go_on.touch()
        status, result = ask(f"{url}/rollout/r1/result?wait=30")
        assert (status, result["samples"]["main"]["reward"]) == (200, 1.0)
        assert server.wait(60) == 130


def refused(*arguments: str) -> tuple[int, str]:
    with start(*arguments) as server:
        _, error = server.communicate(timeout=60)
    return server.returncode, error


def test_r12_off_loopback_a_key_is_needed_and_the_error_says_how():
    code, error = refused(str(LOOP), "--host", "0.0.0.0")
    assert code == 2
    assert "a server on '0.0.0.0' can be reached from other machines" in error
    assert "--api-key" in error


def test_r12_what_is_not_valid_is_not_served_unless_it_is_asked_for(tmp_path: Path):
    source = LOOP.read_text().replace('"name": "add"', '"name": "add up"')
    (tmp_path / "invalid_loop.py").write_text(source)
    code, error = refused(str(tmp_path / "invalid_loop.py"))
    assert (code, "INVALID_FUNCTION_NAME" in error) == (2, True)
    with serving(str(tmp_path / "invalid_loop.py"), "--no-validate") as url:
        assert ask(f"{url}/health")[0] == 200


def test_a_port_that_is_taken_is_named_with_the_way_out():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, error = refused(str(LOOP), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "Choose another with --port; 0 takes a free one" in error


def test_r12_serve_agent_loop_refuses_what_there_is_not():
    class Nameless:
        pass

    with pytest.raises(ServeError, match="reload=True is not supported"):
        serve_agent_loop(Nameless(), reload=True)
    with pytest.raises(ServeError, match="no platform is configured"):
        serve_agent_loop(Nameless(), skip_register=False)
    with pytest.raises(AgentLoopValidationError, match="MISSING_NAME"):
        serve_agent_loop(Nameless())
