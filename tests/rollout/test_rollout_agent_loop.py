"""What authors of a RolloutAgentLoop write: base class, context, results, settings, registry, validator."""

from abc import abstractmethod

import pytest
from cluster_stub import ADD, OneCall

from osmosis_ai.errors import ConfigError
from osmosis_ai.rollout import (
    RolloutAgentLoop,
    RolloutClientSettings,
    RolloutContext,
    RolloutRequest,
    RolloutSettings,
    get_rollout_context,
    registry,
)
from osmosis_ai.rollout.config import configure, get_settings, reset_settings
from osmosis_ai.rollout.core.base import RolloutResult
from osmosis_ai.rollout.core.exceptions import AgentLoopNotFoundError
from osmosis_ai.rollout.core.llm_client import CompletionsResult, read_completion
from osmosis_ai.rollout.core.schemas import RolloutMetrics
from osmosis_ai.rollout.registry import get_agent_loop, list_agent_loops, register_agent_loop
from osmosis_ai.rollout.validator import AgentLoopValidationError, validate_agent_loop

REQUEST = RolloutRequest(
    rollout_id="r-1",
    server_url="http://localhost:9",
    messages=[{"role": "user", "content": "2 times 3?"}],
    completion_params={"temperature": 0.5},
    metadata={"ground_truth": "6"},
)


class Scripted:
    """An LLM for tests of one's own loop: the seam is two methods."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def chat_completions(self, messages, **kwargs):
        self.asked.append((list(messages), kwargs))
        return CompletionsResult({"role": "assistant", "content": self.answers.pop(0)})

    def get_metrics(self):
        return RolloutMetrics(num_llm_calls=len(self.asked))


def context(**more):
    return RolloutContext(request=REQUEST, tools=[ADD], use_environment=False, **more)


# --- R1: the base class


def test_r01_a_loop_needs_a_name_unless_it_is_abstract():
    with pytest.raises(TypeError, match="Nameless needs a name"):

        class Nameless(RolloutAgentLoop):
            def get_tools(self, request): ...
            async def run(self, ctx): ...

    class Base(RolloutAgentLoop):  # run is left to implement
        def get_tools(self, request):
            return []

    class AlsoAbstract(Base):
        async def run(self, ctx): ...

        @abstractmethod
        def solve(self): ...

    class Solver(AlsoAbstract):
        name = "solver"

        def solve(self): ...

    assert Solver().name == "solver"


def test_r01_default_tools_are_those_of_a_request_about_nothing():
    assert OneCall().get_default_tools() == [ADD]


def test_r01_the_documents_base_class_stands():
    from importlib import util
    from pathlib import Path

    path = Path(__file__).parents[1] / "seeds" / "seed_003_base_class.py"
    spec = util.spec_from_file_location("seed_003_base_class", path)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.MyAgent().name == "my_agent"


# --- R2, R3: the context


async def test_r02_one_context_has_the_request_the_tools_and_the_rollouts_own_things():
    llm = Scripted("6")
    ctx = context(llm=llm)
    with ctx:
        assert get_rollout_context() is ctx
        result = await ctx.chat(list(ctx.request.messages), **ctx.request.completion_params)
    assert (ctx.rollout_id, ctx.tools, ctx.request.max_turns, ctx.request.max_tokens_total) == (
        "r-1", [ADD], 10, 8192,
    )  # fmt: skip
    assert llm.asked == [([{"role": "user", "content": "2 times 3?"}], {"temperature": 0.5})]
    assert (result.message["content"], result.has_tool_calls, result.tool_calls) == ("6", False, [])
    ctx.register_agent("other", type("Agent", (), {"messages": [{"role": "user", "content": "x"}]})())
    assert list(ctx.get_samples()) == ["other"]


@pytest.mark.parametrize(
    "call",
    [
        lambda ctx, m: ctx.complete(m, "stop", 1),
        lambda ctx, m: ctx.complete(messages=m, reward=1.0),
        lambda ctx, m: ctx.complete(final_messages=m, finish_reason="stop", reward=True),
    ],
)
def test_r02_complete_takes_the_messages_under_both_names(call):
    messages = [{"role": "assistant", "content": "6"}]
    result = call(context(llm=Scripted()), messages)
    assert (result.status, result.final_messages, result.finish_reason, result.reward) == (
        "COMPLETED", messages, "stop", 1.0,
    )  # fmt: skip


def test_r02_complete_without_messages_or_with_both_names_is_a_mistake():
    with pytest.raises(TypeError, match="messages= or final_messages="):
        context().complete(finish_reason="stop")
    with pytest.raises(TypeError, match="once"):
        context().complete([], final_messages=[])


def test_r02_metrics_hold_the_tool_calls_and_the_calls_of_the_model():
    ctx = context(llm=Scripted())
    ctx.record_tool_call(latency_ms=2.5)
    ctx.record_tool_call()
    metrics = ctx.complete([]).metrics
    assert (metrics.num_tool_calls, metrics.tool_latency_ms, metrics.num_llm_calls) == (2, 2.5, 0)
    assert 0 < metrics.total_latency_ms < 10_000


def test_r02_an_error_keeps_its_cause_and_has_no_reward():
    ctx = context(llm=Scripted())
    try:
        raise KeyError("x")
    except KeyError as raised:
        result, cause = ctx.error("it broke"), raised
    assert (result.status, result.error_message, result.final_messages) == ("ERROR", "it broke", [])
    assert (result.finish_reason, result.reward) == ("error", None)
    assert result.cause is cause


def test_r02_a_context_of_a_workflow_says_that_it_has_no_request():
    ctx = RolloutContext("http://localhost/v1", "key", "17")
    assert not hasattr(ctx, "request")
    with pytest.raises(AttributeError, match=r"RolloutContext.tools exists in the run\(ctx\)"):
        ctx.tools


def test_r03_an_answer_is_read_so_that_the_documents_loop_can_use_it():
    answer = {"role": "assistant", "content": None, "tool_calls": None}
    result = read_completion({"choices": [{"message": answer}], "usage": None, "logprobs": None})
    assert result.message["content"] == ""  # `ground_truth in content` must not raise
    assert (result.tool_calls, result.has_tool_calls, result.usage, result.finish_reason) == (
        [], False, {}, "stop",
    )  # fmt: skip
    usage = read_completion({"choices": [{"message": {}}], "usage": {"completion_tokens": 5}}).usage
    assert usage.get("completion_tokens", 0) == 5
    with pytest.raises(ValueError, match="no chat completion"):
        read_completion({"error": "x"})


# --- R10: rewards


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1.0"])
def test_r10_a_reward_is_a_finite_number_or_none(reward):
    assert context(llm=Scripted()).complete([], reward=None).reward is None
    with pytest.raises(ValueError, match="the reward of rollout r-1 must be a finite number or None"):
        context(llm=Scripted()).complete([], reward=reward)


def test_r10_a_result_made_by_hand_has_no_reward_unless_it_says_so():
    assert RolloutResult("COMPLETED", [], "stop").reward is None


# --- R8: settings


def test_r08_the_seven_client_settings_have_the_documents_defaults():
    assert RolloutClientSettings().model_dump() == {
        "timeout_seconds": 300.0,
        "max_retries": 3,
        "complete_rollout_retries": 2,
        "retry_base_delay": 1.0,
        "retry_max_delay": 30.0,
        "max_connections": 100,
        "max_keepalive_connections": 20,
    }


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("TIMEOUT_SECONDS", "120", "timeout_seconds", 120.0),
        ("MAX_RETRIES", "5", "max_retries", 5),
        ("COMPLETE_ROLLOUT_RETRIES", "0", "complete_rollout_retries", 0),
        ("RETRY_BASE_DELAY", "0.1", "retry_base_delay", 0.1),
        ("RETRY_MAX_DELAY", "300", "retry_max_delay", 300.0),
        ("MAX_CONNECTIONS", "1000", "max_connections", 1000),
        ("MAX_KEEPALIVE_CONNECTIONS", "1", "max_keepalive_connections", 1),
    ],
)
def test_r08_each_client_setting_has_its_environment_variable(monkeypatch, variable, text, field, value):
    monkeypatch.setenv(f"OSMOSIS_ROLLOUT_CLIENT_{variable}", text)
    assert getattr(RolloutSettings().client, field) == value
    assert getattr(RolloutClientSettings(**{field: 7}), field) == 7  # what the code says wins


def test_r08_a_variable_out_of_its_range_is_named(monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES", "11")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_CLIENT_TIMEOUT_SECONDS", "soon")
    with pytest.raises(ConfigError) as caught:
        RolloutSettings()
    assert sorted(caught.value.findings) == [
        "OSMOSIS_ROLLOUT_CLIENT_MAX_RETRIES=11: Input should be less than or equal to 10",
        "OSMOSIS_ROLLOUT_CLIENT_TIMEOUT_SECONDS=soon: Input should be a valid number, "
        "unable to parse string as a number",
    ]


def test_r08_settings_of_the_process_can_be_set_and_forgotten():
    configure(RolloutSettings(client=RolloutClientSettings(max_retries=9)))
    assert get_settings().client.max_retries == 9
    reset_settings()
    assert get_settings().client.max_retries == 3


def test_the_limit_of_metadata_is_a_setting_that_holds(monkeypatch):
    monkeypatch.setenv("OSMOSIS_ROLLOUT_MAX_METADATA_SIZE_BYTES", "1024")
    reset_settings()
    with pytest.raises(ValueError, match="is 1033 bytes of JSON, the limit is 1024"):
        RolloutRequest(
            rollout_id="r",
            server_url="http://x",
            messages=[],
            completion_params={},
            metadata={"text": "x" * 1021},
        )
    reset_settings()


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("rollout_id", "  ", "must not be blank"),
        ("rollout_id", "x" * 257, "at most 256"),
        ("server_url", "ftp://x", "http:// or https:// URL with a host"),
        ("server_url", "http://", "URL with a host"),
        ("metadata", {"x": object()}, "must be JSON"),
    ],
)
def test_a_request_that_cannot_be_served_says_why(field, value, text):
    with pytest.raises(ValueError, match=text):
        RolloutRequest(**{**REQUEST.model_dump(), field: value})


# --- registry


def test_loops_can_be_registered_by_name_once():
    loop = OneCall()
    register_agent_loop(loop)
    try:
        assert (get_agent_loop("one-call"), list_agent_loops()) == (loop, ["one-call"])
        with pytest.raises(ValueError, match="'one-call' is registered already"):
            register_agent_loop(OneCall())
        with pytest.raises(
            AgentLoopNotFoundError, match="no agent loop 'two' is registered; registered: one-call"
        ):
            get_agent_loop("two")
    finally:
        registry.unregister_agent_loop("one-call")
    assert list_agent_loops() == []


# --- R12: the validator


def function(**fields):
    return {"type": "function", "function": {"name": "f", "description": "d", **fields}}


def with_tools(tools):
    class Loop(OneCall):
        def get_tools(self, request):
            if isinstance(tools, BaseException):
                raise tools
            return tools

    return Loop()


def without(loop, **attributes):
    for name, value in attributes.items():
        setattr(loop, name, value)
    return loop


class NotEvenALoop:
    def get_default_tools(self):
        return []


@pytest.mark.parametrize(
    ("loop", "code"),
    [
        (NotEvenALoop(), "MISSING_NAME"),
        (NotEvenALoop(), "MISSING_RUN_METHOD"),
        (without(OneCall(), name=7), "INVALID_NAME_TYPE"),
        (without(OneCall(), name=" "), "EMPTY_NAME"),
        (with_tools(KeyError("city")), "GET_TOOLS_EXCEPTION"),
        (with_tools(SystemExit(3)), "GET_TOOLS_EXCEPTION"),
        (with_tools(None), "GET_TOOLS_RETURNS_NONE"),
        (with_tools({}), "GET_TOOLS_INVALID_TYPE"),
        (with_tools(["add"]), "INVALID_TOOL_TYPE"),
        (with_tools([{"function": function()["function"]}]), "MISSING_TOOL_TYPE"),
        (with_tools([{"type": "function"}]), "MISSING_FUNCTION"),
        (with_tools([{"type": "function", "function": "add"}]), "INVALID_FUNCTION_TYPE"),
        (with_tools([{"type": "function", "function": {"description": "d"}}]), "MISSING_FUNCTION_NAME"),
        (with_tools([function(name="no spaces")]), "INVALID_FUNCTION_NAME"),
        (with_tools([function(parameters=[])]), "INVALID_PARAMETERS_TYPE"),
        (without(OneCall(), run=7), "RUN_NOT_CALLABLE"),
        (without(OneCall(), run=lambda ctx: None), "RUN_NOT_ASYNC"),
    ],
)
def test_r12_the_validator_has_a_code_for_each_mistake(loop, code):
    result = validate_agent_loop(loop)
    assert code in [error.code for error in result.errors]
    assert not result
    with pytest.raises(AgentLoopValidationError, match=code):
        result.raise_if_invalid()


@pytest.mark.parametrize(
    ("tool", "code"),
    [
        ({**function(), "type": "retrieval"}, "UNKNOWN_TOOL_TYPE"),
        (function(description=""), "MISSING_FUNCTION_DESCRIPTION"),
        (function(parameters={"type": "array"}), "PARAMETERS_TYPE_NOT_OBJECT"),
    ],
)
def test_r12_some_findings_are_warnings(tool, code):
    result = validate_agent_loop(with_tools([tool]))
    assert result
    assert [warning.code for warning in result.warnings] == [code]


def test_r12_a_good_loop_is_counted():
    result = validate_agent_loop(OneCall(), REQUEST)
    assert (result.valid, result.agent_name, result.tool_count, result.warnings) == (True, "one-call", 1, [])
    result.raise_if_invalid()
