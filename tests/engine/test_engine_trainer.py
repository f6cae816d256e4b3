"""Learning on the module that samples: exactness, gradients, checkpoints."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from osmosis_ai.engine.base import Completion, EngineSpec, LossSpec, OptimSpec, Sampling
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.engine.trainer import microbatches
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import LossInput, LossOutput, TrainingSample

OPTIM = OptimSpec(lr=1e-2)


def policy_gradient(inputs: LossInput) -> LossOutput:
    ratio = (inputs.logprobs - inputs.sampler_logprobs).exp()
    loss = -(ratio * inputs.advantages * inputs.weights).sum() / inputs.denominator
    return LossOutput(loss=loss, sums={"tokens": float(len(inputs.logprobs))})


def spec_for(rows: list[TrainingSample]) -> LossSpec:
    return LossSpec(
        "policy_gradient", policy_gradient, denominator=float(sum(r.trained_tokens for r in rows))
    )


def row(
    prompt: list[int], completion: Completion, *, advantage: float, temperature: float = 1.0
) -> TrainingSample:
    p, c = len(prompt), len(completion.token_ids)
    return TrainingSample(
        token_ids=[*prompt, *completion.token_ids],
        loss_mask=[0] * p + [1] * c,
        logprobs=[0.0] * p + completion.logprobs,
        advantages=[0.0] * p + [advantage] * c,
        versions=[-1] * p + [completion.version] * c,
        temperatures=[1.0] * p + [temperature] * c,
        group_id="g",
        rollout_id="r",
        sample_id="s",
    )


async def sampled_rows(
    engine: TorchEngine, count: int, seed: int = 0, tokens: int = 24
) -> list[TrainingSample]:
    rng = random.Random(seed)
    prompts = [[rng.randrange(3, 250) for _ in range(rng.randrange(2, 60))] for _ in range(count)]
    temperatures = [(1.0, 0.7, 1.4)[i % 3] for i in range(count)]
    completions = await asyncio.gather(
        *(
            engine.sample(p, Sampling(temperature=t, max_tokens=tokens, seed=seed * 1000 + i))
            for i, (p, t) in enumerate(zip(prompts, temperatures, strict=True))
        )
    )
    return [
        row(p, c, advantage=(-1.0) ** i, temperature=t)
        for i, (p, c, t) in enumerate(zip(prompts, completions, temperatures, strict=True))
    ]


def largest_difference(rows: list[TrainingSample], scored: list[list[float]]) -> float:
    return max(
        abs(ours - theirs)
        for r, values in zip(rows, scored, strict=True)
        for ours, theirs, trained in zip(values, r.logprobs, r.loss_mask, strict=True)
        if trained
    )


async def opened(folder: Path, *, engine: TorchEngine | None = None, **options: Any) -> TorchEngine:
    engine = engine or TorchEngine(record=True)
    await engine.open(EngineSpec(folder, **options))
    return engine


@pytest.fixture
async def engine(endless_folder: Path) -> AsyncIterator[TorchEngine]:
    made = await opened(endless_folder)
    yield made
    await made.close()


def gradient(engine: TorchEngine) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in engine._trainer.parameters if p.grad is not None])  # type: ignore[union-attr]


def weights_hash(engine: TorchEngine) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(engine._trainer.model.state_dict().items()):  # type: ignore[union-attr]
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()


async def step(engine: TorchEngine, seed: int, count: int = 6) -> None:
    rows = await sampled_rows(engine, count, seed, tokens=8)
    await engine.forward_backward(rows, spec_for(rows))
    await engine.optim_step(OPTIM)
    await engine.publish()


@pytest.mark.parametrize("adapter", ["none", "lora"])
async def test_sampler_and_trainer_agree_within_2e6_at_every_version(policy_folder: Path, adapter: Any):
    engine = await opened(policy_folder, adapter=adapter)
    largest, tokens, samples = 0.0, 0, 0
    for version in range(5):
        rows = await sampled_rows(engine, 32, seed=version)
        assert {v for r in rows for v, m in zip(r.versions, r.loss_mask, strict=True) if m} == {version}
        largest = max(largest, largest_difference(rows, await engine.forward(rows)))
        stats = await engine.forward_backward(rows, spec_for(rows))
        largest = max(largest, largest_difference(rows, stats.logprobs))
        tokens, samples = tokens + sum(r.trained_tokens for r in rows), samples + len(rows)
        await engine.optim_step(OPTIM)
        await engine.publish()
    print(f"\nlargest |sampler - trainer| with adapter {adapter}: {largest:.1e} over {tokens} tokens")
    assert tokens > 2000
    assert largest <= 2e-6
    await engine.close()


async def test_a_stale_cache_would_be_seen_by_the_audit(policy_folder: Path):
    """Negative control: prefixes shared between requests, and kept over a step."""
    difference = {}
    for unsafe in (False, True):
        engine = await opened(policy_folder, engine=TorchEngine(_unsafe_keep_cache=unsafe))
        prompt = list(range(3, 3 + 64))  # two full pages that a later request may reuse
        before = await engine.sample(prompt, Sampling(max_tokens=16, temperature=2.0))
        rows = [row(prompt, before, advantage=1.0, temperature=2.0)]
        await engine.forward_backward(rows, spec_for(rows))
        await engine.optim_step(OptimSpec(lr=3e-2))
        await engine.publish()
        after = await engine.sample(prompt, Sampling(max_tokens=16, temperature=2.0))
        rows = [row(prompt, after, advantage=1.0, temperature=2.0)]
        difference[unsafe] = largest_difference(rows, await engine.forward(rows))
        await engine.close()
    print(
        f"\nlargest difference with a stale cache: {difference[True]:.2f}, without: {difference[False]:.1e}"
    )
    assert difference[False] <= 2e-6
    assert difference[True] > 1e-3


async def test_scoring_is_what_the_model_says_token_by_token(engine: TorchEngine):
    rows = await sampled_rows(engine, 4)
    model = engine._trainer.model  # type: ignore[union-attr]
    for r, values in zip(rows, await engine.forward(rows), strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([r.token_ids])).logits[0, :-1].double()
        logits = logits / torch.tensor(r.temperatures[1:])[:, None]
        expected = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(r.token_ids[1:])[:, None])[:, 0]
        assert values[1:] == pytest.approx(expected.tolist(), abs=2e-6)


def test_microbatches_hold_the_budget_and_every_row_once():
    assert microbatches([3, 9, 4, 2], 10) == [[1], [2, 0], [3]]
    assert microbatches([50], 10) == [[0]]
    assert microbatches([], 10) == []


async def test_splitting_into_microbatches_changes_no_gradient_and_no_loss(engine: TorchEngine):
    rows = await sampled_rows(engine, 12)
    found = []
    for budget in (100_000, 400, 97, 1):
        stats = await engine.forward_backward(rows, spec_for(rows), microbatch_tokens=budget)
        found.append((stats, gradient(engine).clone()))
        engine._trainer.optimizer.zero_grad()  # type: ignore[union-attr]
    whole, expected = found[0]
    assert whole.sums == {"tokens": float(sum(r.trained_tokens for r in rows))}
    for stats, split in found[1:]:
        assert float((split - expected).norm() / expected.norm()) <= 1e-6
        assert stats.loss == pytest.approx(whole.loss, abs=1e-6)
        assert stats.sums == whole.sums


async def test_gradients_of_two_calls_add_up(engine: TorchEngine):
    rows = await sampled_rows(engine, 8)
    await engine.forward_backward(rows, spec_for(rows))
    expected = gradient(engine).clone()
    engine._trainer.optimizer.zero_grad()  # type: ignore[union-attr]
    for half in (rows[:3], rows[3:]):
        await engine.forward_backward(half, spec_for(rows))
    assert float((gradient(engine) - expected).norm() / expected.norm()) <= 1e-6


async def test_the_gradient_reaches_trained_tokens_only(engine: TorchEngine):
    (r,) = await sampled_rows(engine, 1)
    calls: list[LossInput] = []

    def spy(inputs: LossInput) -> LossOutput:
        calls.append(inputs)
        return policy_gradient(inputs)

    stats = await engine.forward_backward([r], LossSpec("spy", spy, denominator=1.0))
    assert len(calls[0].logprobs) == r.trained_tokens
    assert calls[0].advantages.tolist() == [a for a, m in zip(r.advantages, r.loss_mask, strict=True) if m]
    assert [v != 0.0 for v in stats.logprobs[0]] == [m == 1 for m in r.loss_mask]


async def test_learning_raises_the_probability_of_what_was_good(engine: TorchEngine):
    rows = [r for r in await sampled_rows(engine, 8) if r.advantages[-1] > 0]
    before = sum(map(sum, await engine.forward(rows)))
    for _ in range(3):
        await engine.forward_backward(rows, spec_for(rows))
        await engine.optim_step(OptimSpec(lr=3e-3))
    assert sum(map(sum, await engine.forward(rows))) > before + 10


async def test_a_gradient_that_is_not_finite_leaves_weights_and_version_alone(engine: TorchEngine):
    rows = await sampled_rows(engine, 2)
    before = weights_hash(engine)

    def broken(inputs: LossInput) -> LossOutput:
        return LossOutput(loss=(inputs.logprobs * float("nan")).sum())

    await engine.forward_backward(rows, LossSpec("broken", broken, denominator=1.0))
    with pytest.raises(EngineError, match="gradient is not finite"):
        await engine.optim_step(OPTIM)
    assert weights_hash(engine) == before
    assert (await engine.sample([5], Sampling(max_tokens=2))).version == 0
    await step(engine, seed=1)  # and the next step is clean
    assert weights_hash(engine) != before


async def test_the_gradient_is_clipped_to_its_norm(engine: TorchEngine):
    rows = await sampled_rows(engine, 4)
    spec = LossSpec("policy_gradient", policy_gradient, denominator=0.01)
    await engine.forward_backward(rows, spec)
    norm = float(gradient(engine).norm())
    stats = await engine.optim_step(OptimSpec(lr=1e-3, max_grad_norm=0.5))
    assert norm > 1
    assert stats.grad_norm == pytest.approx(norm, rel=1e-6)


async def test_a_step_waits_for_completions_under_way_and_they_keep_their_version(engine: TorchEngine):
    rows = await sampled_rows(engine, 4)
    begun = asyncio.Event()
    slow = asyncio.create_task(
        engine.sample([9], Sampling(max_tokens=200, temperature=3.0), lambda _: begun.set())
    )
    await begun.wait()
    await engine.forward_backward(rows, spec_for(rows))  # scoring holds it, and it goes on
    await engine.optim_step(OPTIM)
    assert slow.done()
    assert slow.result().version == 0
    late = asyncio.create_task(engine.sample([9], Sampling(max_tokens=2)))
    await asyncio.sleep(0.02)
    assert not late.done()
    await engine.publish()
    assert (await late).version == 1


async def test_a_cancelled_step_does_not_shut_sampling_out(engine: TorchEngine):
    rows = await sampled_rows(engine, 2)
    await engine.forward_backward(rows, spec_for(rows))
    slow = asyncio.create_task(engine.sample([9], Sampling(max_tokens=250, temperature=3.0)))
    await asyncio.sleep(0.01)
    stepping = asyncio.create_task(engine.optim_step(OPTIM))
    await asyncio.sleep(0.01)
    stepping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stepping
    assert (await engine.sample([9], Sampling(max_tokens=2))).version == 0
    slow.cancel()


async def test_lora_trains_the_adapter_only_and_saves_merged_weights(policy_folder: Path, tmp_path: Path):
    engine = TorchEngine()
    info = await engine.open(EngineSpec(policy_folder, adapter="lora", lora_rank=4))
    assert 0 < info.num_trainable < info.num_parameters / 2
    frozen = {n: p.clone() for n, p in engine._trainer.model.named_parameters() if ".lora_" not in n}  # type: ignore[union-attr]
    await step(engine, seed=0)
    await step(engine, seed=1)
    for name, parameter in engine._trainer.model.named_parameters():  # type: ignore[union-attr]
        if ".lora_" not in name:
            assert torch.equal(parameter, frozen[name]), name
    await engine.save(tmp_path / "merged", {}, training=False)
    assert set(load_file(tmp_path / "merged" / "model.safetensors")) == set(
        load_file(policy_folder / "model.safetensors")
    )
    rows = await sampled_rows(engine, 8)
    plain = await opened(tmp_path / "merged")
    assert (
        largest_difference(rows, await plain.forward(rows)) < 1e-4
    )  # the merged weights are rounded to fp32
    assert largest_difference(rows, await plain.forward(await sampled_rows(plain, 8))) > 0
    await plain.close()
    await engine.close()


@pytest.mark.parametrize("adapter", ["none", "lora"])
async def test_resuming_from_a_checkpoint_is_bitwise_the_uninterrupted_run(
    policy_folder: Path, tmp_path: Path, adapter: Any
):
    options = {"adapter": adapter, "deterministic": True}
    one = await opened(policy_folder, **options)
    await step(one, seed=0)
    await step(one, seed=1)
    await one.save(tmp_path / "at_2", {"cursor": 2})
    drawn = random.random(), float(torch.rand(1))
    await step(one, seed=2)
    await step(one, seed=3)
    two = await opened(policy_folder, **options, seed=99)
    assert await two.load(tmp_path / "at_2") == {"cursor": 2}
    assert (random.random(), float(torch.rand(1))) == drawn
    await step(two, seed=2)
    await step(two, seed=3)
    assert (await two.publish(), weights_hash(two)) == (4, weights_hash(one))
    assert two.log == (one.log or [])[12:]
    await one.close()
    await two.close()


async def test_a_checkpoint_replaces_an_older_one_and_leaves_nothing_beside_it(
    engine: TorchEngine, tmp_path: Path
):
    (tmp_path / ".last.draft").mkdir()  # a process was killed while it wrote
    await engine.save(tmp_path / "last", {"step": 1})
    await step(engine, seed=0)
    await engine.save(tmp_path / "last", {"step": 2})
    assert os.listdir(tmp_path) == ["last"]
    assert await engine.load(tmp_path / "last") == {"step": 2}


async def test_a_save_that_fails_leaves_the_older_checkpoint(engine: TorchEngine, tmp_path: Path):
    await engine.save(tmp_path / "last", {"step": 1})
    with pytest.raises(TypeError):
        await engine.save(tmp_path / "last", {"step": object()})
    assert os.listdir(tmp_path) == ["last"]
    assert await engine.load(tmp_path / "last") == {"step": 1}


@pytest.mark.parametrize("adapter", ["none", "lora"])
@pytest.mark.parametrize("damaged", ["training/optimizer.pt", "training/state.json", "weights"])
async def test_a_damaged_checkpoint_is_refused_by_name_and_leaves_the_engine_as_it_was(
    policy_folder: Path, tmp_path: Path, adapter: Any, damaged: str
):
    engine = await opened(policy_folder, adapter=adapter)
    await step(engine, seed=0)
    await engine.save(tmp_path / "last", {"step": 1})
    await step(engine, seed=1)
    before = weights_hash(engine)
    weights = "training/adapter/adapter_model.safetensors" if adapter == "lora" else "model.safetensors"
    file = tmp_path / "last" / (weights if damaged == "weights" else damaged)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(EngineError, match=r"checkpoint .*/last cannot be read: .* If it is damaged"):
        await engine.load(tmp_path / "last")
    assert weights_hash(engine) == before
    assert (await engine.sample([5], Sampling(max_tokens=2))).version == 2
    await engine.close()


async def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(engine: TorchEngine, tmp_path: Path):
    (tmp_path / ".last.draft").write_text("a file where the draft would be")
    with pytest.raises(EngineError, match=r"/last cannot be written: FileExistsError: .* Free space"):
        await engine.save(tmp_path / "last", {"step": 1})


async def test_saving_a_half_made_step_is_refused(engine: TorchEngine, tmp_path: Path):
    rows = await sampled_rows(engine, 2)
    await engine.forward_backward(rows, spec_for(rows))
    with pytest.raises(EngineError, match="would lose the gradient"):
        await engine.save(tmp_path / "half", {})


async def test_a_checkpoint_of_another_model_is_refused(
    policy_folder: Path, engine: TorchEngine, tmp_path: Path
):
    await engine.save(tmp_path / "full", {})
    lora = await opened(policy_folder, adapter="lora")
    with pytest.raises(UsageError, match="saved from another model or adapter"):
        await lora.load(tmp_path / "full")
    with pytest.raises(UsageError, match="is not a checkpoint"):
        await lora.load(policy_folder)
    assert (await lora.sample([5], Sampling(max_tokens=2))).version == 0
    await lora.close()


async def test_weights_are_fp32_numbers_after_every_step(engine: TorchEngine):
    await step(engine, seed=0)
    for parameter in engine._trainer.model.parameters():  # type: ignore[union-attr]
        assert torch.equal(parameter, parameter.float().to(parameter.dtype))


@pytest.mark.parametrize(("options", "gate"), [({"dtype": "bfloat16"}, 0.2), ({}, 1e-4)])
async def test_arithmetic_in_fp32_or_bf16_samples_and_learns_too(
    policy_folder: Path, options: Any, gate: float
):
    engine = await opened(policy_folder, engine=TorchEngine(exact=False), **options)
    rows = await sampled_rows(engine, 8)
    assert largest_difference(rows, await engine.forward(rows)) < gate
    await step(engine, seed=0)
    assert (await engine.sample([5], Sampling(max_tokens=2))).version == 1
    await engine.close()


async def test_folders_that_cannot_be_opened_say_why(policy_folder: Path, tmp_path: Path):
    async def refuses(folder: Path, words: str, **options: Any) -> None:
        with pytest.raises(UsageError, match=words):
            await opened(folder, **options)

    await refuses(policy_folder, "device 'warp' cannot be used here", device="warp")
    (tmp_path / "config.json").write_text("{}")
    await refuses(tmp_path, "cannot be opened as a policy")
    config = json.loads((policy_folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    await refuses(tmp_path, "cannot be opened as a policy")
    (tmp_path / "model.safetensors").write_bytes((policy_folder / "model.safetensors").read_bytes()[:-1000])
    await refuses(tmp_path, "cannot be opened as a policy")
    (tmp_path / "model.safetensors").write_bytes((policy_folder / "model.safetensors").read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3, "layer_types": None}))
    await refuses(tmp_path, "is not whole: .* weights are missing")


async def test_running_out_of_memory_says_what_to_lower(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch):
    rows = await sampled_rows(engine, 2)
    trainer = engine._opened(engine._trainer)
    monkeypatch.setattr(trainer, "forward", lambda *_: torch.empty(2**60, dtype=torch.uint8))
    with pytest.raises(EngineError, match=r"^out of memory: .*Lower train.microbatch_tokens"):
        await engine.forward(rows)
