"""Programs that know a base URL and a key, and nothing else: evaluated by a run, exact with the policy."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from gateway_parts import CALL_2_3, assert_one_exact_training_sample, in_turn

EXAMPLE = Path(__file__).parents[2] / "examples" / "any_agent"
CALL = CALL_2_3.replace("add", "multiply")


def why_not(program):
    """Why this machine cannot run the program; "" when it can."""
    if missing := [
        need for need in {"bash": ("bash", "curl")}.get(program[0], program[:1]) if not shutil.which(need)
    ]:
        return f"there is no {missing[0]} here"
    if program[0] == "node":
        found = subprocess.run(
            ["node", "-e", "import('openai').catch(() => process.exit(1))"], cwd=EXAMPLE, capture_output=True
        )
        if found.returncode:
            return f"the npm package openai is not installed: run npm install in {EXAMPLE.name}"
    return ""


@pytest.fixture(params=[["bash", "agent.sh"], ["node", "agent.mjs"]], ids=["shell", "node"])
def program(request):
    if reason := why_not(request.param):
        pytest.skip(reason)
    return request.param


async def test_a_program_s_conversation_with_the_policy_is_one_exact_training_sample(
    open_gateway, store, program
):
    g = await open_gateway(in_turn([CALL, "First " + CALL, "It is 6."]))
    known = {"OPENAI_BASE_URL": g.gateway.base_url + "/v1", "OPENAI_API_KEY": g.key, "PYTHON": sys.executable}
    process = await asyncio.create_subprocess_exec(
        *program,
        cwd=EXAMPLE,
        env={**os.environ, **known},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate(b"2 times 3?")
    assert (process.returncode, output.decode().strip()) == (0, "It is 6.")
    turns = store.turns["r1"]
    assert len(turns) == 3
    assert_one_exact_training_sample(g, turns)


def test_a_program_is_evaluated_by_a_run(tmp_path, program):
    config = {"bash": "shell.toml", "node": "node.toml"}[program[0]]
    command = [sys.executable, "-m", "osmosis_ai", "eval", "run", str(EXAMPLE / config)]
    done = subprocess.run(
        [*command, "--workspace", str(tmp_path), "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["graded"], report["failures"]) == (8, {}), report
