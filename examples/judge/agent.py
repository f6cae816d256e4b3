"""A grader that asks a judge: half of the reward for the number, half for saying it in a sentence."""

import re

from openai import AsyncOpenAI

from osmosis_ai import evaluate_rubric
from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowContext, Grader, GraderContext, get_rollout_context

RUBRIC = "1 if the answer is a whole sentence that names the number, 0 if it is the bare number or more talk."


class AnswerWorkflow(AgentWorkflow):
    async def run(self, ctx: AgentWorkflowContext) -> None:
        rollout = get_rollout_context()
        client = AsyncOpenAI(base_url=rollout.chat_completions_url, api_key=rollout.api_key, max_retries=0)
        messages = list(ctx.prompt)
        rollout.register_agent("main", messages)
        answer = await client.chat.completions.create(model="osmosis-rollout", messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})


class JudgedGrader(Grader):
    async def grade(self, ctx: GraderContext) -> None:
        text = ctx.sample.messages[-1]["content"]
        right = re.findall(r"-?\d+", text)[-1:] == [ctx.label]
        verdict = await evaluate_rubric(RUBRIC, text or "(nothing)", judge=ctx.judge)
        ctx.sample.metrics["style"] = verdict.score
        ctx.set_reward(0.5 * right + 0.5 * verdict.score)
