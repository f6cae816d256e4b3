"""Deadlines, isolation, attribution: what user code may do to its own rollout and to no other."""

import asyncio
import inspect
import threading

import pytest
from rollout_stubs import Results, execute, strings_above, text
from waiting import SECONDS, until

from osmosis_ai.errors import EntrypointError
from osmosis_ai.rollout import (
    AgentWorkflow,
    AgentWorkflowConfig,
    ConcurrencyConfig,
    Grader,
    GraderConfig,
    LocalBackend,
    RolloutSample,
    SampleSource,
    get_rollout_context,
)
from osmosis_ai.rollout.backends import lane
from osmosis_ai.rollout.integrations.agents.strands import OsmosisRolloutModel, OsmosisStrandsAgent


class Said(SampleSource):
    def __init__(self, text):
        self.text = text

    async def get_sample(self, name):
        return RolloutSample(id=name, messages=[{"role": "assistant", "content": self.text}])


def say(text: str, sample_id: str = "solver") -> None:
    get_rollout_context().register_sample_source(sample_id, Said(text))


def workflow(body, init=None):
    """A workflow class around `async def body(ctx)`."""

    class Made(AgentWorkflow):
        def __init__(self, config=None):
            super().__init__(config)
            if init:
                init()

        async def run(self, ctx):
            await body(ctx)

    return Made


class Exact(Grader):
    async def grade(self, ctx):
        for sample_id, sample in ctx.samples.items():
            ctx.set_sample_reward(sample_id, 1.0 if sample.messages[-1]["content"] == ctx.label else 0.0)


def grader(body):
    class Exact(Grader):
        async def grade(self, ctx):
            await body(ctx)

    return Exact


async def answers(ctx):
    say("148")


@pytest.fixture
async def backends():
    made = []

    def make(body=answers, init=None, **arguments):
        arguments.setdefault("grader", Exact)
        made.append(LocalBackend(workflow=workflow(body, init), **arguments))
        return made[-1]

    yield make
    for backend in made:
        await backend.close()


def one(results: Results):
    assert len(results.workflow) == 1
    assert len(results.grader) == 1
    return results.workflow[0], results.grader[0]


async def test_a_rollout_is_run_and_graded(backends):
    ran, graded = one(await execute(backends()))
    assert ran.succeeded
    assert graded.succeeded
    assert graded.samples["solver"].reward == 1.0
    assert ran.samples["solver"].reward is None


async def test_a_workflow_that_sleeps_through_its_deadline_hurts_itself_only(backends):
    woken = threading.Event()

    async def run(ctx):
        say("partial")
        if ctx.metadata["blocks"]:
            woken.wait(SECONDS)

    backend = backends(run)
    free = {"metadata": {"blocks": False}, "label": "partial", "agent_timeout_sec": SECONDS}
    results = await asyncio.gather(
        execute(backend, id="b", metadata={"blocks": True}, agent_timeout_sec=0.3),
        *(execute(backend, **free) for _ in range(8)),
    )
    (ran, graded), *others = map(one, results)
    woken.set()  # all have ended while the one still blocked
    assert ran.err_category == "timeout"
    assert ran.err_message == "Made.run exceeded its deadline of 0.3 s"
    assert ran.samples["solver"].messages == [{"role": "assistant", "content": "partial"}]
    assert graded.err_category == "timeout"
    assert all(graded.succeeded for _, graded in others)


async def lanes_in_use(backend, number):
    """Wait until so many are: a lane is given back just after its rollout's result."""
    await until(lambda: backend.health()["lanes"] == number)


async def test_a_late_result_is_ignored_and_the_lane_is_used_again(backends):
    woken = threading.Event()

    async def run(ctx):
        say("148")
        woken.wait(SECONDS)

    backend = backends(run)
    ran, _ = one(await execute(backend, agent_timeout_sec=0.05))
    assert ran.err_category == "timeout"
    await lanes_in_use(backend, 1)  # the lane that read what was left behind comes back
    woken.set()
    await lanes_in_use(backend, 0)
    assert one(await execute(backend))[1].succeeded


async def test_a_workflow_that_swallows_its_cancellation_still_ends_in_time(backends):
    released = threading.Event()

    async def run(ctx):
        while not released.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass

    ran, _ = one(await execute(backends(run), agent_timeout_sec=0.1))
    released.set()  # it was not waited for
    assert ran.err_category == "timeout"


async def test_a_grader_that_blocks_ends_as_a_timeout_of_the_grader(backends):
    woken, done = threading.Event(), threading.Event()

    async def grade(ctx):
        woken.wait(SECONDS)
        ctx.set_sample_reward("solver", 1.0)
        done.set()

    ran, graded = one(await execute(backends(grader=grader(grade)), grader_timeout_sec=0.1))
    assert ran.succeeded
    assert graded.err_category == "timeout"
    assert graded.err_message == "Exact.grade exceeded its deadline of 0.1 s"
    woken.set()
    assert await asyncio.to_thread(done.wait, SECONDS)
    assert graded.samples["solver"].reward is None


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, ValueError, GeneratorExit]
)
async def test_whatever_a_workflow_raises_fails_its_own_rollout_and_no_other(backends, error):
    async def run(ctx):
        say("148")
        if ctx.metadata:
            raise error("boom")

    backend = backends(run)
    ran, graded = one(await execute(backend, metadata={"fail": 1}))
    assert ran.err_category == "agent_error"
    assert ran.err_message.startswith("Made.run raised ")
    assert f"{error.__name__}: boom\n" in ran.err_message
    assert 'raise error("boom")' in ran.err_message
    assert ran.samples["solver"].messages[0]["content"] == "148"
    assert graded.err_message.startswith("not graded, the workflow failed: Made.run raised")
    assert one(await execute(backend))[1].succeeded


async def test_a_task_that_raises_system_exit_does_not_end_the_lane(backends):
    async def run(ctx):
        async def leave():
            raise SystemExit(3)

        task = asyncio.create_task(leave())
        await asyncio.sleep(0.01)
        assert isinstance(task.exception(), SystemExit)
        say("148")

    backend = backends(run)
    assert one(await execute(backend))[1].succeeded
    assert one(await execute(backend))[1].succeeded


async def test_an_error_in_the_constructor_is_the_workflows(backends):
    def init():
        raise RuntimeError("no index file")

    ran, graded = one(await execute(backends(init=init)))
    assert ran.err_message.startswith("Made.__init__ raised RuntimeError: no index file")
    assert graded.err_category == "agent_error"


async def test_a_grader_that_raises_fails_its_own_rollout_and_no_other(backends):
    async def grade(ctx):
        if ctx.metadata:
            raise SystemExit("no judge")
        ctx.set_reward(1.0)

    backend = backends(grader=grader(grade))
    bad, good = await asyncio.gather(execute(backend, id="1", metadata={"x": 1}), execute(backend, id="2"))
    assert one(bad)[1].err_message.startswith("Exact.grade raised SystemExit: no judge")
    assert one(good)[1].samples["solver"].reward == 1.0


async def test_a_grade_that_is_not_asynchronous_says_how_to_write_it(backends):
    class Plain(Grader):
        def grade(self, ctx):
            ctx.set_reward(1.0)

    _, graded = one(await execute(backends(grader=Plain)))
    said = "Plain.grade raised TypeError: it is not asynchronous: write `async def grade(self, ctx)`"
    assert graded.err_message == said


async def test_a_sample_without_a_reward_fails_the_grading_and_is_named(backends):
    async def run(ctx):
        say("148")
        say("149", "critic")

    async def grade(ctx):
        ctx.set_sample_reward("critic", 1.0)

    _, graded = one(await execute(backends(run, grader=grader(grade))))
    assert graded.err_category == "validation_error"
    assert graded.err_message == (
        "Exact.grade gave no reward to sample 'solver' of rollout 17; "
        "call ctx.set_sample_reward(...) or raise to fail the rollout."
    )


async def test_a_removed_sample_needs_no_reward(backends):
    async def run(ctx):
        say("148")
        say("149", "critic")

    async def grade(ctx):
        ctx.samples["critic"].remove_sample = True
        ctx.set_sample_reward("solver", 1.0)

    _, graded = one(await execute(backends(run, grader=grader(grade))))
    assert graded.succeeded
    assert graded.samples["critic"].remove_sample


async def test_nan_written_past_the_check_is_found(backends):
    async def grade(ctx):
        ctx.samples["solver"].reward = float("nan")

    _, graded = one(await execute(backends(grader=grader(grade))))
    assert "sample 'solver' of rollout 17 must be a finite number, got nan" in graded.err_message


async def test_a_rollout_without_a_sample_is_no_success(backends):
    async def run(ctx):
        pass

    ran, graded = one(await execute(backends(run)))
    assert ran.succeeded
    assert "rollout 17 produced no sample" in graded.err_message


async def test_without_a_grader_a_rollout_is_ungraded_and_says_so(backends):
    ran, graded = one(await execute(backends(grader=None)))
    assert ran.succeeded
    assert graded.err_message == "rollout 17 is ungraded: this server has no grader"
    assert graded.samples["solver"].messages[0]["content"] == "148"


async def test_a_grader_has_a_context_but_no_policy_and_no_key(backends):
    seen = []

    async def grade(ctx):
        seen.append(get_rollout_context())
        ctx.set_reward(1.0)

    await execute(backends(grader=grader(grade)), chat_completions_url="http://127.0.0.1:1/v1")
    assert (seen[0].rollout_id, seen[0].chat_completions_url, seen[0].api_key) == ("17", "", None)


async def test_the_label_is_nowhere_in_what_the_workflow_sees(backends):
    seen = []

    async def run(ctx):
        seen.append(repr((ctx, get_rollout_context().__dict__)))
        say("148")

    await execute(backends(run), label="the-label")
    assert "the-label" not in seen[0]


async def test_neither_label_nor_judges_key_is_in_the_frames_above_the_workflow(backends):
    seen = set()

    async def run(ctx):
        seen.update(strings_above(inspect.currentframe()))
        say("148")

    given = {"label": "the-label", "judge_chat_completions_url": "http://127.0.0.1:1/v1"}
    results = await execute(backends(run), judge_api_key="judge-key", metadata={"a": "from-the-row"}, **given)
    assert results.workflow[0].succeeded
    assert {"from-the-row", "llm-key", "What is 37 times 4?"} <= seen  # the walk finds what is there
    assert seen.isdisjoint({"the-label", "judge-key", "http://127.0.0.1:1/v1"})


async def test_r23_each_rollout_has_its_own_copy_of_the_config_and_its_own_context(backends):
    async def run(ctx):
        ctx.config.seen.append(get_rollout_context().rollout_id)
        await asyncio.sleep(0.01)
        say(",".join(ctx.config.seen))

    backend = backends(run, workflow_config=AgentWorkflowConfig(name="w", seen=[]))
    runs = await asyncio.gather(*(execute(backend, id=str(n), label=str(n)) for n in range(20)))
    assert [one(results)[1].samples["solver"].reward for results in runs] == [1.0] * 20


async def test_r22_what_a_workflow_does_to_the_metadata_does_not_reach_the_grader(backends):
    async def run(ctx):
        ctx.metadata["steps"] = 0
        say("148")

    async def grade(ctx):
        ctx.set_reward(ctx.metadata["steps"])

    _, graded = one(await execute(backends(run, grader=grader(grade)), metadata={"steps": 2}))
    assert graded.samples["solver"].reward == 2.0


@pytest.mark.parametrize("metadata", [{"kind": "easy"}, None])
async def test_r22_workflow_and_grader_see_the_metadata_of_the_row(backends, metadata):
    seen = []

    async def run(ctx):
        seen.append(ctx.metadata)
        say("148")

    async def grade(ctx):
        seen.append(ctx.metadata)
        ctx.set_reward(1.0)

    await execute(backends(run, grader=grader(grade)), metadata=metadata)
    assert seen == [metadata, metadata]


async def test_tasks_that_a_rollout_leaves_behind_are_ended(backends):
    ended = threading.Event()

    async def run(ctx):
        async def forever():
            try:
                await asyncio.sleep(100)
            finally:
                ended.set()

        ctx.config.task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        say("148")

    await execute(backends(run, workflow_config=AgentWorkflowConfig(name="w")))
    assert await asyncio.to_thread(ended.wait, SECONDS)


async def test_r24_the_limit_of_concurrency_holds_and_queueing_does_not_eat_the_deadline(backends):
    running, most, gate = [], [], threading.Event()

    async def run(ctx):
        running.append(1)
        most.append(len(running))
        await until(gate.is_set)
        running.pop()
        say("148")

    config = AgentWorkflowConfig(name="w", concurrency=ConcurrencyConfig(max_concurrent=2))
    backend = backends(run, workflow_config=config)
    deadlines = [SECONDS, SECONDS, 1.0, 1.0, 1.0, 1.0]
    tasks = [asyncio.create_task(execute(backend, agent_timeout_sec=seconds)) for seconds in deadlines]
    full = {"max_concurrent": 2, "queued": 4, "running": 2}
    await until(lambda: backend.health()["concurrency"] == full)
    await asyncio.sleep(1.1)  # longer than the deadline of those that queue
    gate.set()
    assert all(one(results)[1].succeeded for results in await asyncio.gather(*tasks))
    assert max(most) == 2
    assert backend.max_concurrency == 2


async def test_r24_without_a_limit_many_rollouts_wait_at_once(backends):
    running = []

    async def run(ctx):
        running.append(1)
        while len(running) < 200:  # noqa: ASYNC110  lanes share no event
            await asyncio.sleep(0.05)
        say("148")

    backend = backends(run)
    runs = await asyncio.gather(*(execute(backend, id=str(n)) for n in range(200)))
    assert all(one(results)[1].succeeded for results in runs)
    assert backend.max_concurrency == 0


async def test_a_cancelled_rollout_stops_the_users_code(backends):
    started, stopped = threading.Event(), threading.Event()

    async def run(ctx):
        started.set()
        try:
            await asyncio.sleep(100)
        finally:
            stopped.set()

    task = asyncio.create_task(execute(backends(run)))
    assert await asyncio.to_thread(started.wait, SECONDS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(stopped.wait, SECONDS)


def test_a_backend_takes_names_of_objects():
    backend = LocalBackend(
        workflow=f"{__name__}:NamedWorkflow", workflow_config=f"{__name__}:NAMED", grader=f"{__name__}:Exact"
    )
    assert (backend.workflow_name, backend.grader_name) == ("NamedWorkflow", "Exact")


class NamedWorkflow(AgentWorkflow):
    async def run(self, ctx):
        say("148")


NAMED = AgentWorkflowConfig(name="named")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"workflow": "nothing"}, "write it as 'module:attr'"),
        ({"workflow": "no.such.module:X"}, "No module named"),
        ({"workflow": f"{__name__}:Nothing"}, "Nothing"),
        ({"workflow": Exact}, "workflow must be a subclass of AgentWorkflow"),
        ({"workflow": AgentWorkflow}, "AgentWorkflow is abstract: implement run"),
        ({"workflow": NamedWorkflow, "grader_config": NAMED}, "must be an instance of GraderConfig"),
        (
            {"workflow": NamedWorkflow, "grader_config": GraderConfig(name="g", lock=threading.Lock())},
            "GraderConfig cannot be copied",
        ),
    ],
)
def test_what_is_wrong_with_a_backend_is_said_when_it_is_made(arguments, message):
    with pytest.raises(EntrypointError, match=message):
        LocalBackend(**arguments)


async def test_lanes_are_not_kept_beyond_the_pool(backends, monkeypatch):
    monkeypatch.setattr(lane, "EXTRA_IDLE_SECONDS", 0.1)

    async def run(ctx):
        await asyncio.sleep(0.1)
        say("148")

    backend = backends(run)
    await asyncio.gather(*(execute(backend, id=str(n)) for n in range(150)))

    def lanes():
        return sum(thread.name == "osmosis-lane" for thread in threading.enumerate())

    await until(lambda: lanes() <= 64 + 2)


async def test_where_the_system_gives_no_further_thread_a_rollout_waits_for_one(backends, monkeypatch):
    made = []

    class Scarce(lane.Lane):
        def __init__(self, *arguments, **options):
            if len(made) == 2:
                raise RuntimeError("can't start new thread")
            made.append(self)
            super().__init__(*arguments, **options)

    monkeypatch.setattr(lane, "Lane", Scarce)

    async def run(ctx):
        await asyncio.sleep(0.05)
        say("148")

    backend = backends(run)
    runs = await asyncio.gather(*(execute(backend, id=str(n)) for n in range(7)))
    assert all(one(results)[1].succeeded for results in runs)
    await lanes_in_use(backend, 0)


async def test_a_grader_asks_its_judge_and_never_the_policy(backends, policy):
    policy.script = [text("Yes.")]
    seen = []

    async def run(ctx):
        say("148")

    async def grade(ctx):
        context = get_rollout_context()
        seen.append((context.chat_completions_url, context.api_key, ctx.judge.chat_completions_url))
        judge = OsmosisStrandsAgent(name="judge", model=OsmosisRolloutModel(), callback_handler=None)
        verdict = str(await judge.invoke_async(f"Is {ctx.sample.messages[0]['content']} right?"))
        ctx.set_reward(1.0 if verdict.startswith("Yes") else 0.0)

    _, graded = one(
        await execute(
            backends(run, grader=grader(grade)),
            chat_completions_url="http://127.0.0.1:1/v1",
            api_key="policy-key",
            judge_chat_completions_url=policy.url,
            judge_api_key="judge-key",
        )
    )
    assert seen == [(policy.url, "judge-key", policy.url)]
    assert policy.calls[0].headers["Authorization"] == "Bearer judge-key"
    assert graded.samples["solver"].reward == 1.0
    assert list(graded.samples) == ["solver"]  # what the judge said is no sample of the rollout


async def test_a_grader_without_a_judge_is_told_so(backends):
    async def grade(ctx):
        assert not ctx.has_judge
        ctx.judge

    _, graded = one(await execute(backends(grader=grader(grade))))
    assert "rollout 17 has no judge" in graded.err_message


async def test_a_frozen_sample_needs_no_reward_and_says_what_it_is(backends):
    async def run(ctx):
        say("148")
        frozen = OsmosisStrandsAgent(
            name="critic", model=OsmosisRolloutModel(trainable=False), callback_handler=None
        )
        assert get_rollout_context().registered_agents["critic"] is frozen

    async def grade(ctx):
        ctx.set_sample_reward("solver", 1.0)

    _, graded = one(
        await execute(backends(run, grader=grader(grade)), chat_completions_url="http://127.0.0.1:1/v1")
    )
    assert {name: (s.frozen, s.reward) for name, s in graded.samples.items()} == {
        "solver": (False, 1.0),
        "critic": (True, None),
    }


async def test_a_list_of_messages_is_a_sample(backends):
    async def run(ctx):
        messages = list(ctx.prompt)
        get_rollout_context().register_agent("main", messages)
        messages.append({"role": "assistant", "content": "148"})

    _, graded = one(await execute(backends(run)))
    assert [m["role"] for m in graded.samples["main"].messages] == ["user", "assistant"]
