"""The OpenAI Agents SDK, the real one, driven through the policy endpoint."""

import asyncio
import re

import pytest
from agents import Agent, ModelSettings, Runner, SQLiteSession, function_tool
from agents.exceptions import MaxTurnsExceeded
from agents.extensions.models.litellm_model import LitellmModel
from agents.retry import ModelRetrySettings
from aiohttp import web
from rollout_stubs import completion, execute, refusal, text, tool_call

from osmosis_ai.rollout import AgentWorkflow, Grader, LocalBackend, RolloutContext, get_rollout_context
from osmosis_ai.rollout.integrations.agents.openai_agents import (
    OsmosisAgent,
    OsmosisLitellmModel,
    OsmosisMemorySession,
    OsmosisRolloutModel,
    SessionSampleSource,
    current_sample_id,
)

PROMPT = [
    {"role": "system", "content": "You are a calculator."},
    {"role": "user", "content": "What is 37 times 4?"},
]
RAN = []


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two integers."""
    RAN.append((a, b))
    return a * b


def agent(**options):
    options = {"name": "solver", "model": OsmosisRolloutModel(), "tools": [multiply], **options}
    options.setdefault("model_settings", ModelSettings(temperature=1.0, max_tokens=64))
    return OsmosisAgent(**options)


class One(Grader):
    async def grade(self, ctx):
        for sample_id in ctx.samples:
            ctx.set_sample_reward(sample_id, 1.0)


async def rollout(policy, body, **request):
    class Workflow(AgentWorkflow):
        async def run(self, ctx):
            await body(ctx)

    RAN.clear()
    backend = LocalBackend(workflow=Workflow, grader=One)
    results = await execute(backend, policy, **{"prompt": PROMPT, **request})
    await backend.close()
    return results.workflow[0], results.grader[0]


async def simple(ctx):
    await Runner.run(agent(), ctx.prompt, session=OsmosisMemorySession(name="solver"))


async def test_r19_r20_a_tool_is_called_and_the_session_becomes_the_sample(policy):
    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    _, graded = await rollout(policy, simple)
    messages = graded.samples["solver"].messages
    assert messages[:2] == PROMPT
    assert (messages[2]["type"], messages[2]["arguments"]) == ("function_call", '{"a": 37, "b": 4}')
    assert (messages[3]["type"], messages[3]["output"]) == ("function_call_output", "148")
    assert (messages[4]["role"], messages[4]["content"][0]["text"]) == ("assistant", "148")
    assert RAN == [(37, 4)]


async def test_r19_r20_r29_every_call_carries_identity_key_and_all_settings(policy):
    settings = ModelSettings(
        temperature=0.7,
        top_p=0.9,
        max_tokens=32,
        frequency_penalty=0.1,
        tool_choice="auto",
        extra_args={"seed": 3, "stop": ["x"]},
        extra_body={"top_k": 5},
        extra_headers={"x-extra": "1", "x-sample-id": "forged"},
    )

    async def run(ctx):
        solver = agent(model_settings=settings, model=OsmosisRolloutModel(params={"min_p": 0.1}))
        await Runner.run(solver, ctx.prompt, session=OsmosisMemorySession(name="solver"))

    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    ran, _ = await rollout(policy, run)
    assert ran.succeeded, ran.err_message
    for call in policy.calls:
        assert call.headers["x-rollout-id"] == "17"
        assert call.headers["x-sample-id"] == "solver"
        assert call.headers["x-extra"] == "1"
        assert call.headers["Authorization"] == "Bearer llm-key"
        sent = {k: v for k, v in call.body.items() if k not in ("messages", "tools", "tool_choice")}
        assert sent == {
            "model": "openai/osmosis-rollout",
            "temperature": 0.7,
            "top_p": 0.9,
            "max_tokens": 32,
            "frequency_penalty": 0.1,
            "seed": 3,
            "stop": ["x"],
            "top_k": 5,
            "min_p": 0.1,
        }
    assert policy.calls[0].body["messages"] == PROMPT
    assert policy.calls[0].body["tool_choice"] == "auto"  # the SDK itself resets it after a tool call


async def test_the_history_repeats_the_policys_words_exactly(policy):
    said = {**tool_call("multiply", '{"a":37,  "b":4}'), "content": "  Let me see.\n"}
    policy.script = [said, text("148")]
    await rollout(policy, simple)
    history = policy.calls[1].body["messages"]
    assert history[2]["content"] == "  Let me see.\n"
    assert history[2]["tool_calls"] == said["tool_calls"]
    assert history[3] == {"role": "tool", "tool_call_id": "call_1", "content": "148"}


@pytest.mark.parametrize("arguments", ['{"a": 37, "b"', "[1, 2]", '{"a": "x", "b": 4}'])
async def test_malformed_arguments_run_no_tool_and_the_model_is_told(policy, arguments):
    policy.script = [tool_call("multiply", arguments), text("sorry")]
    ran, _ = await rollout(policy, simple)
    assert ran.succeeded, ran.err_message
    assert RAN == []
    history = policy.calls[1].body["messages"]
    assert history[2]["tool_calls"][0]["function"]["arguments"] == arguments
    assert "An error occurred while" in history[3]["content"]


async def test_an_unknown_tool_is_answered_with_an_error(policy):
    policy.script = [tool_call("divide", '{"a": 1}'), text("sorry")]
    ran, _ = await rollout(policy, simple)
    assert ran.succeeded, ran.err_message
    assert policy.calls[1].body["messages"][3]["content"] == "Tool 'divide' not found."


async def test_r20_streaming_gives_the_same_conversation(policy):
    deltas = []

    async def run(ctx):
        result = Runner.run_streamed(agent(), ctx.prompt, session=OsmosisMemorySession(name="solver"))
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                deltas.append(event.data.delta)
        assert result.final_output == "148"
        assert result.context_wrapper.usage.total_tokens == 30

    policy.script = [tool_call("multiply", '{"a": 37, "b": 4}'), text("148")]
    ran, graded = await rollout(policy, run)
    assert ran.succeeded, ran.err_message
    assert deltas == ["148"]
    assert RAN == [(37, 4)]
    assert [item.get("type", item.get("role")) for item in graded.samples["solver"].messages] == [
        "system",
        "user",
        "function_call",
        "function_call_output",
        "message",
    ]


async def test_r20_a_handoff_stays_in_the_sample_of_the_session(policy):
    async def run(ctx):
        expert = agent(name="expert", instructions="You multiply.")
        triage = agent(name="triage", tools=[], handoffs=[expert])
        result = await Runner.run(triage, ctx.prompt, session=OsmosisMemorySession(name="talk"))
        assert result.last_agent.name == "expert"

    policy.script = [tool_call("transfer_to_expert", "{}"), text("148")]
    ran, graded = await rollout(policy, run)
    assert ran.succeeded, ran.err_message
    assert [call.headers["x-sample-id"] for call in policy.calls] == ["talk", "talk"]
    assert list(graded.samples) == ["talk"]


async def test_two_sessions_at_once_keep_their_own_calls(policy):
    async def run(ctx):
        policy.script = [text("148")]
        await asyncio.gather(
            *(
                Runner.run(agent(), f"I am {name}", session=OsmosisMemorySession(name=name))
                for name in ("a", "b", "c")
            )
        )

    _, graded = await rollout(policy, run)
    assert sorted(graded.samples) == ["a", "b", "c"]
    for call in policy.calls:
        assert call.body["messages"] == [{"role": "user", "content": f"I am {call.headers['x-sample-id']}"}]


async def test_an_agent_that_never_answers_can_be_bounded_and_graded(policy):
    calls = iter(range(100))

    def again(request):
        return web.json_response(completion(tool_call("multiply", '{"a": 1, "b": 2}', f"c{next(calls)}")))

    async def run(ctx):
        with pytest.raises(MaxTurnsExceeded):
            await Runner.run(agent(), ctx.prompt, session=OsmosisMemorySession(name="solver"), max_turns=3)

    policy.script = [again]
    _, graded = await rollout(policy, run)
    assert len(policy.calls) == 3
    assert [item.get("type") for item in graded.samples["solver"].messages[2:]] == [
        "function_call",
        "function_call_output",
    ] * 3


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (refusal(500, "engine down"), "openai.InternalServerError: .* answered HTTP 500: engine down"),
        (refusal(429, "later"), "openai.RateLimitError: .* answered HTTP 429: later"),
        (refusal(401, "no such key"), "openai.AuthenticationError: .* answered HTTP 401: no such key"),
        (
            refusal(400, "too long", "context_length_exceeded"),
            "openai.BadRequestError: .* HTTP 400: too long",
        ),
        (refusal(418, "tea"), "openai.APIStatusError: .* HTTP 418: tea"),
    ],
)
async def test_a_refusal_of_the_policy_is_an_http_error_asked_for_once(policy, answer, words):
    policy.script = [answer]
    ran, graded = await rollout(policy, simple)
    assert len(policy.calls) == 1
    assert (ran.err_category, graded.err_category) == ("http_error", "http_error")
    assert re.search(words, ran.err_message)
    assert graded.samples["solver"].messages == PROMPT


async def test_a_broken_connection_is_not_tried_again_even_when_the_user_asks_for_retries(policy):
    def hang_up(request):
        request.transport.close()
        return web.Response()

    async def run(ctx):
        settings = ModelSettings(retry=ModelRetrySettings(max_retries=3, policy=lambda context: True))
        await Runner.run(
            agent(model_settings=settings), ctx.prompt, session=OsmosisMemorySession(name="solver")
        )

    policy.script = [hang_up]
    ran, _ = await rollout(policy, run)
    assert ran.err_category == "http_error"
    assert len(policy.calls) == 1


async def test_a_call_without_a_session_says_what_to_pass(policy):
    async def run(ctx):
        await Runner.run(agent(), ctx.prompt)

    ran, _ = await rollout(policy, run)
    assert policy.calls == []
    assert "no session is active" in ran.err_message
    assert ran.err_category == "agent_error"


async def test_a_run_without_a_session_is_not_charged_to_the_run_before(policy):
    async def run(ctx):
        session = OsmosisMemorySession(name="solver")
        await Runner.run(agent(), ctx.prompt, session=session)
        await session.get_items()  # looking at it is no run either
        await Runner.run(agent(name="other"), ctx.prompt)

    policy.script = [text("148")]
    ran, _ = await rollout(policy, run)
    assert [call.headers["x-sample-id"] for call in policy.calls] == ["solver"]
    assert "RuntimeError: no session is active, so this call belongs to no sample" in ran.err_message


async def test_a_streamed_run_without_a_session_is_not_charged_to_the_run_before(policy):
    async def run(ctx):
        session = OsmosisMemorySession(name="solver")
        async for _ in Runner.run_streamed(agent(), ctx.prompt, session=session).stream_events():
            assert current_sample_id.get() is None
        await Runner.run(agent(), ctx.prompt, session=session)
        async for _ in Runner.run_streamed(agent(name="other"), ctx.prompt).stream_events():
            pass

    policy.script = [text("148")]
    ran, _ = await rollout(policy, run)
    assert [call.headers["x-sample-id"] for call in policy.calls] == ["solver", "solver"]
    assert "no session is active, so this call belongs to no sample" in ran.err_message


@pytest.mark.parametrize("its_own", [True, False])
async def test_an_agent_as_a_tool_has_its_own_session_or_none_and_the_outer_run_goes_on(policy, its_own):
    said = []

    async def run(ctx):
        @function_tool
        async def ask_expert(question: str) -> str:
            session = OsmosisMemorySession(name="expert") if its_own else None
            try:
                result = await Runner.run(agent(name="expert", tools=[]), question, session=session)
            except RuntimeError as error:
                said.append(str(error))
                return "no expert"
            finally:
                said.append(current_sample_id.get())
            return result.final_output

        session = OsmosisMemorySession(name="solver")
        await Runner.run(agent(tools=[ask_expert]), ctx.prompt, session=session)
        said.append(current_sample_id.get())

    policy.script = [tool_call("ask_expert", '{"question": "37 * 4?"}'), text("148")]
    ran, graded = await rollout(policy, run)
    assert ran.succeeded, ran.err_message
    calls = [call.headers["x-sample-id"] for call in policy.calls]
    assert calls == (["solver", "expert", "solver"] if its_own else ["solver", "solver"])
    assert said[-2:] == ["solver", None]
    assert its_own or said[0].startswith("no session is active")
    assert list(graded.samples) == (["solver", "expert"] if its_own else ["solver"])


async def test_a_sample_id_set_by_hand_stays_for_a_session_of_another_class(policy):
    async def run(ctx):
        session = SQLiteSession("mine")
        get_rollout_context().register_sample_source("mine", SessionSampleSource(session))
        current_sample_id.set("mine")
        for question in ("37 * 4?", "and 38 * 4?"):
            await Runner.run(agent(), question, session=session)

    policy.script = [text("148")]
    ran, graded = await rollout(policy, run)
    assert ran.succeeded, ran.err_message
    assert [call.headers["x-sample-id"] for call in policy.calls] == ["mine", "mine"]
    assert len(graded.samples["mine"].messages) == 4


async def test_r19_a_session_of_outside_cannot_be_used_in_a_rollout(policy):
    outside = OsmosisMemorySession(name="solver")

    async def run(ctx):
        await Runner.run(agent(), ctx.prompt, session=outside)

    ran, _ = await rollout(policy, run)
    assert "session 'solver' was made outside of rollout 17" in ran.err_message


async def test_sessions_without_a_name_have_the_same_ids_in_every_rollout(policy):
    async def run(ctx):
        for session in (OsmosisMemorySession(), OsmosisMemorySession(name="judge"), OsmosisMemorySession()):
            await Runner.run(agent(), ctx.prompt, session=session)

    for _ in range(2):
        policy.script = [text("148")]
        _, graded = await rollout(policy, run)
        assert list(graded.samples) == ["agent-0", "judge", "agent-1"]


async def test_outside_of_any_rollout_a_session_is_a_plain_one():
    session = OsmosisMemorySession()
    items = [{"role": "user", "content": str(n)} for n in range(3)]
    await session.add_items(items)
    assert await session.get_items() == items
    assert await session.get_items(limit=2) == items[1:]
    assert await session.get_items(limit=0) == []
    assert await session.pop_item() == items[2]
    (await session.get_items())[0]["content"] = "edited"
    assert (await SessionSampleSource(session).get_sample("s")).messages == items[:2]
    await session.clear_session()
    assert await session.pop_item() is None


def test_outside_of_a_rollout_an_agent_says_where_to_build_it():
    with pytest.raises(RuntimeError, match=r"build the agent inside AgentWorkflow.run\(\)"):
        agent()


def test_r19_the_model_of_an_agent_is_a_litellm_model_and_any_other_stays():
    with RolloutContext("http://127.0.0.1:1/v1", "key", "r1"):
        model = agent().model
        assert isinstance(model, OsmosisLitellmModel)
        assert isinstance(model, LitellmModel)
        assert (model.model, model.base_url, model.api_key) == (
            "openai/osmosis-rollout",
            "http://127.0.0.1:1/v1",
            "key",
        )
        assert agent(model="gpt-4o").model == "gpt-4o"
        assert agent().clone(name="copy").name == "copy"


async def test_r19_the_placeholder_cannot_be_called():
    with pytest.raises(NotImplementedError, match="placeholder for the policy"):
        await OsmosisRolloutModel().get_response()
    with pytest.raises(NotImplementedError, match="placeholder for the policy"):
        OsmosisRolloutModel().stream_response()
    assert Agent(name="plain").model is None


async def test_a_frozen_agent_makes_its_session_a_frozen_sample(policy):
    async def run(ctx):
        await Runner.run(agent(), ctx.prompt, session=OsmosisMemorySession(name="solver"))
        checker = agent(name="checker", model=OsmosisRolloutModel(trainable=False))
        await Runner.run(checker, ctx.prompt, session=OsmosisMemorySession(name="checker"))

    policy.script = [text("148")]
    _, graded = await rollout(policy, run)
    assert {name: sample.frozen for name, sample in graded.samples.items()} == {
        "solver": False,
        "checker": True,
    }


async def test_half_of_a_sample_cannot_be_frozen(policy):
    async def run(ctx):
        session = OsmosisMemorySession(name="shared")
        await Runner.run(agent(), ctx.prompt, session=session)
        frozen = agent(name="checker", model=OsmosisRolloutModel(trainable=False))
        await Runner.run(frozen, "And now?", session=session)

    policy.script = [text("148")]
    ran, _ = await rollout(policy, run)
    assert (
        "session 'shared' is shared by a frozen agent (trainable=False) and a trained one" in ran.err_message
    )
