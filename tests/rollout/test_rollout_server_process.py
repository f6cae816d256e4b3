"""`python -m osmosis_ai.rollout.server`: user code as a child process of the controller."""

import asyncio
import json
import os
import sys

import aiohttp
import pytest

NOISY = """
import os
from osmosis_ai.rollout import (
    AgentWorkflow, AgentWorkflowConfig, Grader, GraderConfig, RolloutSample, SampleSource, get_rollout_context
)

print("a print at import")
os.write(1, b"a write below Python\\n")


class Said(SampleSource):
    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[{"role": "assistant", "content": "148"}])


class Config(AgentWorkflowConfig):
    name: str = "noisy"
    answer: int = 1


class Noisy(AgentWorkflow[Config]):
    async def run(self, ctx):
        print("a print in run")
        get_rollout_context().register_sample_source("solver", Said())
        if ctx.config.answer == 0:
            os._exit(9)


class Exact(Grader):
    async def grade(self, ctx):
        ctx.set_reward(1.0)
"""


async def start(**line):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "osmosis_ai.rollout.server",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    process.stdin.write(json.dumps(line).encode() + b"\n")
    await process.stdin.drain()
    return process, json.loads(await asyncio.wait_for(process.stdout.readline(), 60))


async def end(process):
    process.stdin.close()
    async with asyncio.timeout(60):
        out = await process.stdout.read()
        err = await process.stderr.read()
        return await process.wait(), out, err


@pytest.fixture
def entrypoint(tmp_path):
    path = tmp_path / "noisy_agent.py"
    path.write_text(NOISY)
    return str(path)


async def test_the_child_serves_and_ends_when_its_stdin_does(entrypoint, controller):
    process, ready = await start(
        entrypoint=entrypoint, workflow_overrides={"answer": 2}, require_grader=True, api_key="k"
    )
    names = {"workflow": "Noisy", "grader": "Exact"}
    assert ready == {"ready": True, "port": ready["port"], **names, "max_concurrent": None}
    request = {
        "rollout_id": "17",
        "initial_messages": [],
        "chat_completions_url": f"{controller.url}/v1",
        "completion_callback_url": f"{controller.url}/completed",
        "grader_callback_url": f"{controller.url}/graded",
    }
    async with aiohttp.ClientSession(f"http://127.0.0.1:{ready['port']}") as client:
        reply = await client.post("/rollout", json=request, headers={"Authorization": "Bearer k"})
        assert reply.status == 202
        received = await controller.wait_for(2)
    assert [body["status"] for _, body, _ in received] == ["success", "success"]
    code, out, err = await end(process)
    assert (code, out) == (0, b"")
    for text in (b"a print at import", b"a write below Python", b"a print in run"):
        assert text in err


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        ({"entrypoint": "nothing.py"}, "EntrypointError", "no such entrypoint: 'nothing.py'"),
        ({"workflow": "Missing"}, "EntrypointError", "workflow 'Missing' is not in"),
        (
            {"workflow_overrides": {"answer": "x"}},
            "ConfigError",
            "workflow.answer: Input should be a valid integer",
        ),
        ({"host": "0.0.0.0"}, "UsageError", "can be reached from other machines: give it an api_key"),
        ({"entrypiont": "x"}, "ValidationError", "entrypiont"),
    ],
)
async def test_what_is_wrong_comes_back_as_one_line(entrypoint, line, kind, text):
    process, answer = await start(**{"entrypoint": entrypoint, **line})
    assert (answer["ready"], answer["error_type"]) == (False, kind)
    assert text in answer["error"]
    assert (await end(process))[0] == 2


async def test_a_grader_can_be_required(tmp_path):
    path = tmp_path / "ungraded_agent.py"
    path.write_text(NOISY.split("class Exact")[0])
    process, answer = await start(entrypoint=str(path), require_grader=True)
    assert answer["error"].startswith("no Grader found in")
    await end(process)
