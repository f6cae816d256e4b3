"""What holds for every engine: the same tests over the embedded one and the scripted one."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from osmosis_ai.engine.base import Completion, Engine, EngineInfo, EngineSpec, LossSpec, OptimSpec, Sampling
from osmosis_ai.engine.scripted import ScriptedEngine
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import LossInput, LossOutput, TrainingSample

PROMPT = [11, 22, 33, 44]


def answer(prompt_ids: Any, sampling: Sampling) -> list[int]:
    return [(sum(prompt_ids) * 7 + 13 * i + sampling.seed) % 250 for i in range(12)]


def make(kind: str, **options: Any) -> Engine:
    return TorchEngine(record=True, **options) if kind == "torch" else ScriptedEngine(answer)


@pytest.fixture(params=["torch", "scripted"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def engine(kind: str, policy_folder: Path) -> AsyncIterator[Any]:
    made = make(kind)
    await made.open(EngineSpec(policy_folder))
    yield made
    await made.close()


def row(prompt: list[int], completion: Completion, *, advantage: float = 1.0) -> TrainingSample:
    p, c = len(prompt), len(completion.token_ids)
    return TrainingSample(
        token_ids=[*prompt, *completion.token_ids],
        loss_mask=[0] * p + [1] * c,
        logprobs=[0.0] * p + completion.logprobs,
        advantages=[0.0] * p + [advantage] * c,
        versions=[-1] * p + [completion.version] * c,
        temperatures=[1.0] * (p + c),
        group_id="g",
        rollout_id="r",
        sample_id="s",
    )


def policy_gradient(inputs: LossInput) -> LossOutput:
    ratio = (inputs.logprobs - inputs.sampler_logprobs).exp()
    return LossOutput(
        loss=-(ratio * inputs.advantages).sum() / inputs.denominator,
        sums={"ratio": float(ratio.detach().sum())},
    )


LOSS = LossSpec("policy_gradient", policy_gradient, denominator=10.0)


async def take_step(engine: Engine, seed: int = 0) -> int:
    completion = await engine.sample(PROMPT, Sampling(max_tokens=8, seed=seed))
    await engine.forward_backward([row(PROMPT, completion)], LOSS)
    return (await engine.optim_step(OptimSpec(lr=1e-2))).version


async def test_open_says_what_the_policy_is(kind: str, policy_folder: Path):
    engine = make(kind)
    info = await engine.open(EngineSpec(policy_folder))
    assert isinstance(info, EngineInfo)
    assert (info.version, info.max_context) == (0, 256)
    assert info.vocab_size <= 300
    assert len(info.eos_token_ids) == 1
    await engine.close()


async def test_a_completion_ends_with_an_end_token_or_at_max_tokens(engine: Any, policy_folder: Path):
    end = json.loads((policy_folder / "generation_config.json").read_text())["eos_token_id"]
    completions = [await engine.sample(PROMPT, Sampling(max_tokens=6, seed=seed)) for seed in range(8)]
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs)
        assert all(value <= 0 for value in completion.logprobs)
        assert completion.version == 0
        stopped = completion.token_ids[-1] == end
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == 6
        assert end not in completion.token_ids[:-1]


async def test_a_stop_id_of_the_call_ends_the_completion_too(engine: Any):
    whole = (await engine.sample(PROMPT, Sampling(max_tokens=6, seed=0))).token_ids
    stopped = await engine.sample(PROMPT, Sampling(max_tokens=6, seed=0, stop_ids=(whole[2],)))
    assert stopped.token_ids == whole[: whole.index(whole[2]) + 1]
    assert stopped.finish_reason == "stop"


async def test_the_same_seed_gives_the_same_completion(engine: Any):
    first = await engine.sample(PROMPT, Sampling(max_tokens=8, seed=5))
    again = await engine.sample(PROMPT, Sampling(max_tokens=8, seed=5))
    assert again.token_ids == first.token_ids
    assert again.logprobs == pytest.approx(first.logprobs, abs=1e-6)


async def test_tokens_are_reported_as_they_come(engine: Any):
    seen: list[int] = []
    completion = await engine.sample(PROMPT, Sampling(max_tokens=8), seen.append)
    assert seen == completion.token_ids


async def test_forward_gives_the_logprobs_that_were_sampled(engine: Any):
    completion = await engine.sample(PROMPT, Sampling(max_tokens=8))
    (scored,) = await engine.forward([row(PROMPT, completion)])
    assert scored[0] == 0.0
    assert len(scored) == len(PROMPT) + 8
    assert scored[len(PROMPT) :] == pytest.approx(completion.logprobs, abs=2e-6)


async def test_versions_go_up_with_each_step_and_completions_carry_them(engine: Any):
    assert await take_step(engine) == 1
    assert await engine.publish() == 1
    assert (await engine.sample(PROMPT, Sampling(max_tokens=4))).version == 1
    assert await take_step(engine) == 2


async def test_between_optim_step_and_publish_sampling_waits(engine: Any):
    await take_step(engine)
    waiting = asyncio.create_task(engine.sample(PROMPT, Sampling(max_tokens=4)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await engine.publish()
    assert (await waiting).version == 1


async def test_optim_step_without_a_gradient_is_an_error_and_sampling_goes_on(engine: Any):
    with pytest.raises(EngineError, match="forward_backward first"):
        await engine.optim_step(OptimSpec())
    assert (await engine.sample(PROMPT, Sampling(max_tokens=4))).version == 0


async def test_the_log_holds_every_completion(engine: Any):
    completions = [await engine.sample(PROMPT, Sampling(max_tokens=4, seed=seed)) for seed in range(3)]
    assert [record.completion for record in engine.log] == completions
    assert engine.log[2].prompt_ids == tuple(PROMPT)
    assert engine.log[2].sampling.seed == 2


async def test_save_and_load_restore_version_and_state(
    kind: str, engine: Any, policy_folder: Path, tmp_path: Path
):
    await take_step(engine)
    await engine.publish()
    await engine.save(tmp_path / "at_1", {"row": 17})
    assert os.listdir(tmp_path) == ["at_1"]
    other = make(kind)
    await other.open(EngineSpec(policy_folder))
    assert await other.load(tmp_path / "at_1") == {"row": 17}
    assert (await other.sample(PROMPT, Sampling(max_tokens=4))).version == 1
    await other.close()


async def test_saved_weights_open_as_a_policy(kind: str, engine: Any, policy_folder: Path, tmp_path: Path):
    await engine.save(tmp_path / "policy", {}, training=False)
    for name in ("tokenizer.json", "chat_template.jinja", "config.json"):
        assert (tmp_path / "policy" / name).is_file(), name
    other = make(kind)
    await other.open(EngineSpec(tmp_path / "policy"))
    sampling = Sampling(max_tokens=8, seed=3)
    assert (await other.sample(PROMPT, sampling)).token_ids == (
        await engine.sample(PROMPT, sampling)
    ).token_ids
    await other.close()


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(max_tokens=4), "no tokens"),
        ([1, 5000], Sampling(max_tokens=4), "vocabulary"),
        ([1] * 256, Sampling(max_tokens=1), "256 tokens and the policy's context is 256"),
        ([1] * 200, Sampling(max_tokens=57), r"200 prompt tokens \+ max_tokens 57 .* at most 56"),
        ([1], Sampling(max_tokens=0), "max_tokens must be at least 1, got 0"),
        ([1], Sampling(temperature=-1.0, max_tokens=4), "temperature .* got -1.0"),
        ([1], Sampling(top_p=0.0, max_tokens=4), "top_p .* got 0.0"),
        ([1], Sampling(top_k=-1, max_tokens=4), "top_k .* got -1"),
    ],
)
async def test_a_call_that_cannot_be_answered_is_refused_before_it_runs(
    engine: Any, prompt: list[int], sampling: Sampling, words: str
):
    with pytest.raises(UsageError, match=words):
        await engine.sample(prompt, sampling)
    assert engine.log == []


async def test_the_whole_context_can_be_used(engine: Any):
    completion = await engine.sample([1] * 250, Sampling(max_tokens=6))
    assert len(completion.token_ids) == 6


async def test_rows_that_cannot_be_scored_are_refused(engine: Any):
    completion = await engine.sample(PROMPT, Sampling(max_tokens=4))
    good = row(PROMPT, completion)
    short = TrainingSample(
        good.token_ids, good.loss_mask[1:], *[[0.0] * 8] * 2, [0] * 8, [1.0] * 8, "g", "r", "s"
    )
    with pytest.raises(EngineError, match=r"row 1: its streams must have one length above 0, got \[7, 8\]"):
        await engine.forward_backward([good, short], LOSS)
    first = row([], completion)
    with pytest.raises(EngineError, match="row 0: its first token cannot be trained"):
        await engine.forward_backward([first], LOSS)
    with pytest.raises(EngineError, match="row 0 has 400 tokens, more than the policy's context of 256"):
        await engine.forward([row([1] * 396, completion)])


async def test_a_folder_that_is_no_policy_is_a_usage_error(kind: str, tmp_path: Path):
    with pytest.raises(UsageError, match="no such folder"):
        await make(kind).open(EngineSpec(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match=r"no config\.json"):
        await make(kind).open(EngineSpec(tmp_path))


async def test_an_engine_that_only_samples_refuses_to_learn(kind: str, policy_folder: Path):
    engine = make(kind)
    info = await engine.open(EngineSpec(policy_folder, trainable=False))
    assert info.num_trainable == 0
    completion = await engine.sample(PROMPT, Sampling(max_tokens=4))
    with pytest.raises(UsageError, match="cannot learn"):
        await engine.forward_backward([row(PROMPT, completion)], LOSS)
    await engine.close()


async def test_after_close_every_call_says_so_and_closing_again_is_harmless(engine: Any):
    await engine.close()
    await engine.close()
    with pytest.raises(EngineError, match="closed"):
        await engine.sample(PROMPT, Sampling(max_tokens=4))


async def test_a_caller_that_has_enough_ends_the_completion_with_that_token(engine: Any):
    sampling = Sampling(max_tokens=11, seed=3, temperature=3.0)
    whole = await engine.sample(PROMPT, sampling)
    seen: list[int] = []

    def on_token(token_id: int) -> bool:
        seen.append(token_id)
        return len(seen) == 4

    cut = await engine.sample(PROMPT, sampling, on_token)
    assert seen == cut.token_ids == whole.token_ids[:4]
    assert (cut.logprobs, cut.finish_reason) == (whole.logprobs[:4], "stop")
    assert engine.log[-1].completion == cut
    await engine.publish()  # nothing is left in the batch
