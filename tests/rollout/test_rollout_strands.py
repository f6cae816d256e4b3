"""Strands, the real one, driven through the policy endpoint."""

import re

import pytest
from aiohttp import web
from rollout_stubs import completion, execute, refusal, text, tool_call
from strands import Agent as StrandsAgent
from strands import tool
from strands.models.litellm import LiteLLMModel
from strands.types.exceptions import MaxTokensReachedException

from osmosis_ai.rollout import AgentWorkflow, AgentWorkflowConfig, Grader, LocalBackend, RolloutContext
from osmosis_ai.rollout.integrations.agents.strands import (
    UNNAMED,
    OsmosisRolloutModel,
    OsmosisStrandsAgent,
    to_strands,
)

PROMPT = [
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": "What is 37 times 4?"},
]
RAN = []


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    RAN.append((a, b))
    return a * b


@tool
def now() -> str:
    """Needs no arguments, so nothing but the hook keeps a malformed call from running it."""
    RAN.append("now")
    return "12:00"


def agent(ctx=None, **options):
    options = {"messages": ctx.prompt if ctx else None, "tools": [multiply, now], **options}
    options.setdefault("model", OsmosisRolloutModel(params={"temperature": 1.0, "max_tokens": 64, "seed": 5}))
    return OsmosisStrandsAgent(name=options.pop("name", "solver"), callback_handler=None, **options)


class One(Grader):
    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


async def rollout(policy, body, **request):
    """Run `body(ctx)` as a workflow; the result of the grader."""

    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await body(ctx)

    RAN.clear()
    backend = LocalBackend(workflow=Workflow, grader=One)
    results = await execute(backend, policy, prompt=PROMPT, **request)
    await backend.close()
    return results.workflow[0], results.grader[0]


async def simple(ctx):
    await agent(ctx).invoke_async()


async def test_r18_a_tool_is_called_and_the_conversation_becomes_the_sample(policy):
    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    _, graded = await rollout(policy, simple)
    assert graded.samples["solver"].messages == [
        {"role": "user", "content": [{"text": "What is 37 times 4?"}]},
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "call_1", "name": "multiply", "input": {"a": 37, "b": 4}}}],
        },
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "call_1", "status": "success", "content": [{"text": "148"}]}}
            ],
        },
        {"role": "assistant", "content": [{"text": "148"}]},
    ]
    assert RAN == [(37, 4)]


async def test_r16_r29_every_call_carries_identity_key_and_all_parameters(policy):
    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    await rollout(policy, simple)
    for call in policy.calls:
        assert call.headers["x-rollout-id"] == "17"
        assert call.headers["x-sample-id"] == "solver"
        assert call.headers["Authorization"] == "Bearer llm-key"
        assert call.body["model"] == "openai/osmosis-rollout"
        assert (call.body["temperature"], call.body["max_tokens"], call.body["seed"]) == (1.0, 64, 5)
        assert {"stream", "stream_options"} & call.body.keys() == set()
    assert policy.calls[0].body["messages"] == PROMPT


async def test_the_history_repeats_the_policys_words_exactly(policy):
    said = {**tool_call("multiply", '{"a":37,  "b":4}'), "content": "  Let me see.\n"}
    policy.script = [said, text("148")]
    await rollout(policy, simple)
    assert policy.calls[1].body["messages"][2:] == [
        said,
        {"role": "tool", "tool_call_id": "call_1", "content": "148"},
    ]


@pytest.mark.parametrize("arguments", ['{"a": 37, "b"', "[1, 2]", "37 4", '{"a": NaN}x'])
@pytest.mark.parametrize("name", ["multiply", "now"])
async def test_malformed_arguments_run_no_tool_and_the_model_is_told(policy, name, arguments):
    policy.script = [tool_call(name, arguments), text("sorry")]
    ran, graded = await rollout(policy, simple)
    assert ran.succeeded
    assert RAN == []
    history = policy.calls[1].body["messages"]
    assert history[2]["tool_calls"][0]["function"]["arguments"] == arguments
    assert history[3]["content"].startswith(f"The arguments of tool '{name}' are not ")
    result = graded.samples["solver"].messages[2]["content"][0]["toolResult"]
    assert result["status"] == "error"
    assert graded.samples["solver"].messages[1]["content"][0]["toolUse"]["input"] == {
        "malformed_arguments": arguments
    }


async def test_empty_arguments_are_no_arguments(policy):
    policy.script = [tool_call("now", ""), text("noon")]
    await rollout(policy, simple)
    assert RAN == ["now"]


async def test_an_unknown_tool_is_answered_with_an_error(policy):
    policy.script = [tool_call("divide", '{"a": 1}'), text("sorry")]
    ran, _ = await rollout(policy, simple)
    assert ran.succeeded
    assert policy.calls[1].body["messages"][3]["content"] == "Unknown tool: divide"


async def test_r18_invoking_again_goes_on_with_the_conversation(policy):
    async def run(ctx):
        solver = agent(ctx)
        await solver.invoke_async()
        await solver.invoke_async("And now?")

    policy.script = [text("148"), text("149")]
    _, graded = await rollout(policy, run)
    assert [message["role"] for message in policy.calls[1].body["messages"]] == [
        "system",
        "user",
        "assistant",
        "user",
    ]
    assert graded.samples["solver"].messages[-1]["content"] == [{"text": "149"}]


async def test_r18_the_synchronous_form_works_too(policy):
    async def run(ctx):
        agent(ctx)()

    policy.script = [text("148")]
    ran, _ = await rollout(policy, run)
    assert ran.succeeded, ran.err_message


async def test_two_agents_are_two_samples(policy):
    async def run(ctx):
        await agent(ctx).invoke_async()
        await agent(ctx, name="critic").invoke_async("Is it right?")

    policy.script = [text("148"), text("yes")]
    _, graded = await rollout(policy, run)
    assert sorted(graded.samples) == ["critic", "solver"]
    assert [call.headers["x-sample-id"] for call in policy.calls] == ["solver", "critic"]


async def test_r18_the_prompt_is_not_changed_by_the_agent(policy):
    seen = []

    async def run(ctx):
        await agent(ctx).invoke_async()
        seen.append(ctx.prompt)

    policy.script = [text("148")]
    await rollout(policy, run)
    assert seen == [
        [
            {"role": "system", "content": "You are a calculator."},
            {"role": "user", "content": "What is 37 times 4?"},
        ]
    ]


async def test_the_agents_own_system_prompt_comes_before_the_rows(policy):
    async def run(ctx):
        await agent(ctx, system_prompt="Be brief.").invoke_async()

    policy.script = [text("148")]
    await rollout(policy, run)
    assert policy.calls[0].body["messages"][0] == {
        "role": "system",
        "content": "Be brief.\n\nYou are a calculator.",
    }


async def test_a_model_on_the_config_serves_every_rollout(policy):
    class Config(AgentWorkflowConfig):
        name: str = "c"
        model: object = OsmosisRolloutModel(params={"temperature": 0.5})
        tools: list = [multiply]

    class Workflow(AgentWorkflow[Config]):
        async def run(self, ctx):
            await agent(ctx, model=ctx.config.model, tools=ctx.config.tools).invoke_async()

    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    backend = LocalBackend(workflow=Workflow, workflow_config=Config(), grader=One)
    for rollout_id in ("1", "2"):
        results = await execute(backend, policy, id=rollout_id)
        assert results.grader[0].succeeded
    assert [call.headers["x-rollout-id"] for call in policy.calls] == ["1", "1", "2", "2"]
    assert policy.calls[0].body["temperature"] == 0.5
    await backend.close()


async def test_a_cut_off_answer_raises_strands_own_exception_and_stays_in_the_sample(policy):
    raised = []

    async def run(ctx):
        try:
            await agent(ctx).invoke_async()
        except MaxTokensReachedException as error:
            raised.append(error)

    policy.script = [lambda request: web.json_response(completion(text("14"), "length"))]
    _, graded = await rollout(policy, run)
    assert len(raised) == 1
    assert graded.samples["solver"].messages[-1] == {"role": "assistant", "content": [{"text": "14"}]}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(500, "engine down"), "litellm.exceptions.APIError: .* answered HTTP 500: engine down"),
        (refusal(401, "no such key"), "AuthenticationError: .* answered HTTP 401: no such key"),
        (refusal(400, "bad"), "BadRequestError: .* answered HTTP 400: bad"),
        (
            refusal(400, "the prompt has 9 tokens more", "context_length_exceeded"),
            r"ContextWindowOverflowException: [\s\S]*HTTP 400: the prompt has 9 tokens more",
        ),
        (
            lambda request: web.Response(text="<html>"),
            "APIError: .* something that is no chat completion: '<html>'",
        ),
    ],
)
async def test_a_refusal_of_the_policy_is_an_http_error_asked_for_once(policy, answer, words):
    policy.script = [answer]
    ran, graded = await rollout(policy, simple)
    assert len(policy.calls) == 1
    assert (ran.err_category, graded.err_category) == ("http_error", "http_error")
    assert re.search(words, ran.err_message)


async def test_a_policy_that_is_not_there_is_an_http_error(policy):
    ran, _ = await rollout(policy, simple, chat_completions_url="http://127.0.0.1:9/v1")
    assert ran.err_category == "http_error"
    assert "the policy at http://127.0.0.1:9/v1/chat/completions gave no answer" in ran.err_message


async def test_a_connection_that_breaks_is_not_tried_again(policy):
    def hang_up(request):
        request.transport.close()
        return web.Response()

    policy.script = [hang_up]
    ran, _ = await rollout(policy, simple)
    assert ran.err_category == "http_error"
    assert len(policy.calls) == 1


async def test_structured_output_asks_with_a_schema(policy):
    from pydantic import BaseModel

    class Answer(BaseModel):
        value: int

    answers = []

    async def run(ctx):
        model = OsmosisRolloutModel().for_sample("solver", RolloutContext(policy.url, "k", "17"))
        async for event in model.structured_output(Answer, [{"role": "user", "content": [{"text": "?"}]}]):
            answers.append(event["output"])

    policy.script = [text('{"value": 148}')]
    await rollout(policy, run)
    assert answers == [Answer(value=148)]
    assert policy.calls[0].body["response_format"]["json_schema"]["name"] == "Answer"


def test_r17_outside_of_a_rollout_an_agent_says_where_to_build_it():
    with pytest.raises(
        RuntimeError, match=r"no active RolloutContext: build it inside AgentWorkflow.run\(\)"
    ):
        agent()


def test_r16_the_placeholder_cannot_be_called_and_takes_no_model_id():
    model = OsmosisRolloutModel(params={})
    for call in (model.stream, model.structured_output, model.get_config, model.update_config):
        with pytest.raises(NotImplementedError, match="placeholder for the policy"):
            call()
    with pytest.raises(TypeError, match="takes no model_id"):
        OsmosisRolloutModel(model_id="openai/gpt-4o")


def test_r16_for_sample_gives_a_litellm_model_bound_to_endpoint_and_ids():
    context = RolloutContext("http://127.0.0.1:1/v1", "key", "r1")
    model = OsmosisRolloutModel(params={"temperature": 0.3}).for_sample("solver", context)
    assert isinstance(model, LiteLLMModel)
    assert model.config == {"model_id": "openai/osmosis-rollout", "params": {"temperature": 0.3}}
    assert model.client_args == {
        "api_base": "http://127.0.0.1:1/v1",
        "api_key": "key",
        "extra_headers": {"x-rollout-id": "r1", "x-sample-id": "solver"},
    }


def test_another_model_is_neither_routed_nor_registered():
    other = LiteLLMModel(model_id="openai/judge")
    with RolloutContext(rollout_id="r1") as context:
        judge = OsmosisStrandsAgent(model=other, name="judge", callback_handler=None)
    assert judge.model is other
    assert context.registered_agents == {}


def test_r17_the_agent_registers_under_name_or_id_or_the_order_of_creation():
    for _ in range(2):  # in every rollout of a group alike: only equal ids are compared
        with RolloutContext("http://127.0.0.1:1/v1", rollout_id="r1") as context:
            for named in (
                {"name": "n", "agent_id": "i"},
                {"agent_id": "i"},
                {},
                {"name": "agent-1"},
                UNNAMED,
                {"name": "", "agent_id": None},
            ):
                OsmosisStrandsAgent(OsmosisRolloutModel(), callback_handler=None, **named)
        assert list(context.registered_agents) == ["n", "i", "agent-0", "agent-1", "agent-2", "agent-3"]


def test_r17_context_then_id_then_model_then_registration_then_the_agent_of_strands():
    seen = []

    class Model(OsmosisRolloutModel):
        def for_sample(self, sample_id, rollout_ctx):
            seen.append(("model", sample_id, rollout_ctx.rollout_id))
            return super().for_sample(sample_id, rollout_ctx)

    class Context(RolloutContext):
        def register_agent(self, sample_id, agent):
            seen.append(("register", sample_id, hasattr(agent, "tool_registry")))  # not yet
            super().register_agent(sample_id, agent)

    with Context("http://127.0.0.1:1/v1", rollout_id="r1") as context:
        made = agent(model=Model(params={}), name="solver")
    assert seen == [("model", "solver", "r1"), ("register", "solver", False)]
    assert context.registered_agents == {"solver": made}
    assert made.tool_names == ["multiply", "now"]


def test_r15_the_names_at_the_top_are_those_of_strands():
    import osmosis_ai.rollout as top

    assert (top.OsmosisRolloutModel, top.OsmosisStrandsAgent) == (OsmosisRolloutModel, OsmosisStrandsAgent)


def test_what_strands_calls_an_agent_without_a_name_is_known():
    plain = StrandsAgent(model=LiteLLMModel(model_id="openai/judge"), callback_handler=None)
    assert UNNAMED == {"name": plain.name, "agent_id": plain.agent_id}


def test_openai_messages_become_strands_messages():
    system, turns = to_strands(
        [
            {"role": "system", "content": "A"},
            {"role": "developer", "content": [{"type": "text", "text": "B"}]},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"text": "there"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": tool_call("f", '{"x": 1}', "c1")["tool_calls"],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "one"},
            {"role": "tool", "tool_call_id": "c2", "content": "two"},
        ]
    )
    assert system == "A\n\nB"
    assert turns[0] == {"role": "user", "content": [{"text": "Hi"}, {"text": "there"}]}
    assert turns[1]["content"] == [{"toolUse": {"toolUseId": "c1", "name": "f", "input": {"x": 1}}}]
    assert [block["toolResult"]["toolUseId"] for block in turns[2]["content"]] == ["c1", "c2"]
    with pytest.raises(ValueError, match="message 1 has the role 'system'"):
        to_strands([{"role": "user", "content": "x"}, {"role": "system", "content": "y"}])
    with pytest.raises(ValueError, match="type 'image_url' cannot be given to Strands"):
        to_strands([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])
