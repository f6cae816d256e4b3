"""Contexts, samples and rewards: what user code touches."""

import asyncio

import pytest

from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    AgentWorkflowContext,
    ConcurrencyConfig,
    Grader,
    GraderContext,
    RolloutContext,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)


class Agent:
    def __init__(self, *texts):
        self.messages = [{"role": "assistant", "content": text, "tracking_id": "x"} for text in texts]


def test_a_nested_context_restores_the_outer_one():
    with RolloutContext(rollout_id="outer") as outer:
        with RolloutContext(rollout_id="inner") as inner:
            assert get_rollout_context() is inner
        assert get_rollout_context() is outer
        with pytest.raises(KeyError), RolloutContext(rollout_id="third"):
            raise KeyError
        assert get_rollout_context() is outer
    assert get_rollout_context() is None


def test_the_same_context_can_be_entered_twice():
    context = RolloutContext()
    with context, context:
        assert get_rollout_context() is context
    assert get_rollout_context() is None


def test_empty_values_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("OSMOSIS_CHAT_COMPLETIONS_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OSMOSIS_API_KEY", "key")
    monkeypatch.setenv("OSMOSIS_ROLLOUT_ID", "r1")
    context = RolloutContext()
    assert (context.chat_completions_url, context.api_key, context.rollout_id) == (
        "http://127.0.0.1:1/v1",
        "key",
        "r1",
    )
    assert RolloutContext("http://other", "mine", "r2").rollout_id == "r2"
    assert RolloutContext(use_environment=False).api_key is None


def test_the_key_is_not_shown_in_the_context():
    assert "secret" not in repr(RolloutContext("http://x", "secret", "r1"))


def test_two_agents_with_one_name_are_an_error_that_names_it():
    context = RolloutContext(rollout_id="17")
    context.register_agent("solver", Agent())
    with pytest.raises(ValueError, match=r"sample id 'solver' is taken in rollout 17"):
        context.register_agent("solver", Agent())


async def test_samples_can_be_read_with_and_without_await_and_are_copies():
    context, agent = RolloutContext(), Agent("one")
    context.register_agent("solver", agent)
    plain = context.get_samples()
    awaited = await context.get_samples()
    agent.messages[0]["content"] = "edited"
    agent.messages.append({"role": "user", "content": "later"})
    for samples in (plain, awaited):
        assert samples["solver"].messages == [{"role": "assistant", "content": "one"}]


async def test_a_source_that_waits_is_read_by_awaiting():
    class Slow(SampleSource):
        async def get_sample(self, name):
            await asyncio.sleep(0)
            return RolloutSample(id=name, messages=[{"role": "assistant", "content": "slow"}])

    context = RolloutContext()
    context.register_sample_source("slow", Slow())
    samples = context.get_samples()
    with pytest.raises(KeyError, match="await ctx"):
        samples["slow"]
    assert (await samples)["slow"].messages[0]["content"] == "slow"


def grader_context():
    samples = {name: RolloutSample(id=name) for name in ("solver", "critic")}
    return GraderContext("4", samples, rollout_id="17")


def test_r21_rewards_are_set_by_sample():
    ctx = grader_context()
    ctx.set_sample_reward("solver", 1)
    ctx.set_sample_reward("critic", False)
    assert [sample.reward for sample in ctx.get_samples().values()] == [1.0, 0.0]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1.0", None])
def test_r21_a_reward_that_is_no_finite_number_names_sample_value_and_rollout(reward):
    with pytest.raises(ValueError, match=r"sample 'solver' of rollout 17 .* got (nan|inf|'1.0'|None)"):
        grader_context().set_sample_reward("solver", reward)


def test_r21_a_reward_for_an_unknown_sample_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"no sample 'solvr'; its samples: 'solver', 'critic'"):
        grader_context().set_sample_reward("solvr", 1.0)


def test_the_only_sample_can_be_rewarded_without_its_name():
    ctx = GraderContext("4", {"solver": RolloutSample(id="solver")})
    ctx.set_reward(0.5)
    assert ctx.sample.reward == 0.5
    with pytest.raises(ValueError, match="has 2: 'solver', 'critic'"):
        grader_context().set_reward(0.5)


def test_r23_configs_take_extra_and_arbitrary_fields_and_check_what_they_know():
    config = AgentWorkflowConfig(name="search", model=object(), tools=[print])
    assert config.tools == [print]
    assert config.description is None
    assert config.concurrency.max_concurrent is None
    with pytest.raises(ValueError, match="name"):
        AgentWorkflowConfig()
    with pytest.raises(ValueError, match="max_concurrent"):
        ConcurrencyConfig(max_concurrent=0)


def test_r14_workflow_and_grader_are_abstract_and_keep_their_config():
    class Workflow(AgentWorkflow[AgentWorkflowConfig]):
        async def run(self, ctx: AgentWorkflowContext) -> None: ...

    config = AgentWorkflowConfig(name="w")
    assert Workflow(config).config is config
    assert Workflow().config is None
    for base in (AgentWorkflow, Grader):
        with pytest.raises(TypeError, match="abstract"):
            base()
