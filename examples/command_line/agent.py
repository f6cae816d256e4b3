"""A program that knows nothing of Osmosis, in a process of its own, evaluated and trained all the same."""

import asyncio
import os
import re
import sys
from pathlib import Path

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context

PROGRAM = Path(__file__).with_name("program.py")


class ProgramWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        messages = list(ctx.prompt)
        rollout.register_agent("main", messages)  # "main" is the sample of calls that name none
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(PROGRAM),
            ctx.prompt[-1]["content"],
            env={
                **os.environ,
                "OPENAI_BASE_URL": rollout.chat_completions_url,
                "OPENAI_API_KEY": rollout.api_key or "",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:  # the deadline passed
                process.kill()
        if process.returncode:
            raise RuntimeError(f"{PROGRAM.name} ended with status {process.returncode}: {errors.decode()}")
        messages.append({"role": "assistant", "content": output.decode()})


class LastNumber(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        numbers = re.findall(r"-?\d+", ctx.sample.messages[-1]["content"])
        ctx.set_reward(1.0 if numbers and numbers[-1] == ctx.label else 0.0)
