"""Any program as an agent: it gets the question on stdin, a base URL and a key, and prints its answer.

The program knows nothing of Osmosis. What it asks the model is recorded by the gateway; the workflow only
starts the program and says which text was its answer.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    Grader,
    GraderContext,
    RolloutContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)

HERE = Path(__file__).parent


class ProgramConfig(AgentWorkflowConfig):
    name: str = "any-agent"
    program: list[str] = ["bash", "agent.sh"]  # [workflow] program in the TOML


class Program(AgentWorkflow[ProgramConfig]):
    """Runs `program` once; its output is the sample "main", the one of calls that name none."""

    async def run(self, ctx: AgentWorkflowContext[ProgramConfig]) -> None:
        rollout = get_rollout_context()
        assert rollout is not None
        program = (ctx.config or ProgramConfig()).program
        question = ctx.prompt[-1]["content"]
        answer = await run_program(program, question, rollout)
        rollout.register_sample_source(
            "main", Spoken([*ctx.prompt, {"role": "assistant", "content": answer}])
        )


class Spoken(SampleSource):
    def __init__(self, messages: list[dict[str, Any]]) -> None:
        self._messages = messages

    async def get_sample(self, name: str) -> RolloutSample:
        return RolloutSample(id=name, messages=self._messages)


async def run_program(program: list[str], question: str, rollout: RolloutContext) -> str:
    """What the program prints. It and all that it has started end with the rollout, whatever happens."""
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": rollout.chat_completions_url,
        "OPENAI_API_KEY": rollout.api_key or "",
        "PYTHON": sys.executable,
    }
    process = subprocess.Popen(  # noqa: ASYNC220  it starts in a moment
        program,
        cwd=HERE,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # Waited for in a thread: uvloop cannot start processes from several loops, and each rollout has one.
        output, errors = await asyncio.to_thread(process.communicate, question)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(program)} ended with status {process.returncode}: {errors[-2000:]}")
    return output.strip()


class LastNumber(Grader):
    """1.0 when the last number of the answer is the label."""

    async def grade(self, ctx: GraderContext) -> None:
        for sample_id, sample in ctx.samples.items():
            numbers = re.findall(r"-?\d+", sample.messages[-1]["content"])
            ctx.set_sample_reward(sample_id, float(bool(numbers) and numbers[-1] == ctx.label))
