"""Choosing tokens: against a slow scalar reference, and through the batch."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch

from osmosis_ai.engine.base import EngineSpec, Sampling
from osmosis_ai.engine.sampler import draw_tokens
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.engine.uniform import mix, uniform
from osmosis_ai.errors import EngineError

PROMPTS = [[11, 22, 33], [5] * 40, [7, 8], list(range(100, 170))]
MIXED = [
    Sampling(temperature=0.0, max_tokens=12),
    Sampling(temperature=1.0, max_tokens=17, seed=1),
    Sampling(temperature=0.7, top_k=5, max_tokens=9, seed=2),
    Sampling(temperature=1.6, top_p=0.8, max_tokens=20, seed=3),
    Sampling(temperature=2.5, top_p=0.9, top_k=20, max_tokens=14, seed=4),
]


@pytest.fixture
async def engine(endless_folder: Path) -> AsyncIterator[TorchEngine]:
    made = TorchEngine(record=True)
    await made.open(EngineSpec(endless_folder, max_requests=8))
    yield made
    await made.close()


def scalar_draw(logits: list[float], sampling: Sampling, number: float) -> tuple[int, float]:
    """What `draw_tokens` does for one row, token by token."""
    temperature = sampling.temperature or 1.0
    top = max(logits)
    weights = {i: math.exp((x - top) / temperature) for i, x in enumerate(logits)}
    if sampling.temperature == 0:
        best = max(weights, key=lambda i: weights[i])
        return best, math.log(weights[best] / sum(weights.values()))
    order = sorted(weights, key=lambda i: -weights[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, reached, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if kept and reached / total >= sampling.top_p:
            break
        kept.append(i)
        reached += weights[i]
    cumulated = 0.0
    for i in sorted(kept):
        cumulated += weights[i]
        if cumulated / reached > number:
            return i, math.log(weights[i] / reached)
    raise AssertionError(number)


def test_drawing_agrees_with_a_scalar_reference_for_mixed_settings():
    rng = random.Random(0)
    for round_number in range(100):
        rows = [[rng.gauss(0, 3) for _ in range(50)] for _ in MIXED]
        numbers = [rng.random() for _ in MIXED]
        ids, logprobs = draw_tokens(torch.tensor(rows), MIXED, numbers)
        for row, sampling, number, token_id, logprob in zip(rows, MIXED, numbers, ids, logprobs, strict=True):
            expected = scalar_draw(row, sampling, number)
            assert (round_number, token_id) == (round_number, expected[0])
            assert logprob == pytest.approx(expected[1], abs=2e-6)


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-math.inf, 0.0, -math.inf, 0.0, -math.inf]])
    for number in (0.0, 0.4999, 0.5, 1 - 2**-53):
        (token_id,), (logprob,) = draw_tokens(logits, [Sampling()], [number])
        assert token_id == (1 if number < 0.5 else 3)
        assert logprob == pytest.approx(math.log(0.5), abs=1e-6)


def test_uniform_numbers_depend_on_seed_and_position_alone():
    # splitmix64's published first output for the state 0.
    assert mix(0) == 0xE220A8397B1DCDAF
    numbers = [uniform(seed, position) for seed in range(100) for position in range(100)]
    assert len(set(numbers)) == 10_000
    assert 0.49 < sum(numbers) / 10_000 < 0.51
    assert all(0 <= number < 1 for number in numbers)
    assert uniform(-1, 5) == uniform(2**64 - 1, 5)


async def test_a_completion_does_not_depend_on_what_else_is_in_the_batch(engine: TorchEngine):
    calls = [(PROMPTS[i % 4], MIXED[i % 5]) for i in range(20)]
    alone = [await engine.sample(prompt, sampling) for prompt, sampling in calls]
    together = await asyncio.gather(*(engine.sample(prompt, sampling) for prompt, sampling in calls))
    shuffled = random.Random(1).sample(range(20), 20)
    again = await asyncio.gather(*(engine.sample(*calls[i]) for i in shuffled))
    for i in range(20):
        assert together[i].token_ids == alone[i].token_ids
        assert together[i].logprobs == pytest.approx(alone[i].logprobs, abs=2e-6)
        assert again[shuffled.index(i)].token_ids == alone[i].token_ids


async def test_a_prompt_longer_than_one_batch_of_tokens_is_read_in_chunks(endless_folder: Path, monkeypatch):
    monkeypatch.setattr("osmosis_ai.engine.sampler.BATCH_TOKENS", 16)
    chunked = TorchEngine()
    await chunked.open(EngineSpec(endless_folder, max_requests=4))
    whole = await asyncio.gather(
        *(chunked.sample(p, Sampling(max_tokens=6, seed=i)) for i, p in enumerate(PROMPTS))
    )
    await chunked.close()
    monkeypatch.undo()
    plain = TorchEngine()
    await plain.open(EngineSpec(endless_folder))
    for i, prompt in enumerate(PROMPTS):
        expected = await plain.sample(prompt, Sampling(max_tokens=6, seed=i))
        assert whole[i].token_ids == expected.token_ids
        assert whole[i].logprobs == pytest.approx(expected.logprobs, abs=2e-6)
    await plain.close()


async def test_requests_that_do_not_fit_in_the_cache_together_still_come_out_right(
    endless_folder: Path, monkeypatch
):
    """Two thirds of the requests are put back, prompt and tokens so far, and read again later."""
    calls = [([i + 1] * 60, Sampling(max_tokens=60, seed=i)) for i in range(6)]
    roomy = TorchEngine()
    await roomy.open(EngineSpec(endless_folder))
    expected = [await roomy.sample(*call) for call in calls]
    await roomy.close()
    per_token = 2 * 2 * 32 * 8  # keys and values, layers, hidden size, bytes of a double
    monkeypatch.setattr("osmosis_ai.engine.torch.CPU_CACHE_BYTES", 256 * per_token)
    tight = TorchEngine()
    info = await tight.open(EngineSpec(endless_folder))
    assert info.max_context == 256
    found = await asyncio.gather(*(tight.sample(*call) for call in calls))
    await tight.close()
    assert [c.token_ids for c in found] == [c.token_ids for c in expected]


async def test_a_context_that_the_cache_cannot_hold_is_made_shorter_and_said_so(
    endless_folder: Path, monkeypatch
):
    monkeypatch.setattr("osmosis_ai.engine.torch.CPU_CACHE_BYTES", 64 * 2 * 2 * 32 * 8)
    engine = TorchEngine()
    assert (await engine.open(EngineSpec(endless_folder))).max_context == 64
    assert len((await engine.sample([1] * 60, Sampling(max_tokens=4))).token_ids) == 4
    await engine.close()


async def test_cancelling_a_call_stops_its_work_and_no_other(engine: TorchEngine):
    seen: list[int] = []
    begun = asyncio.Event()

    def on_token(token_id: int) -> None:
        seen.append(token_id)
        begun.set()

    long = asyncio.create_task(engine.sample([9, 9], Sampling(max_tokens=250, temperature=3.0), on_token))
    other = asyncio.create_task(engine.sample(PROMPTS[0], MIXED[1]))
    await begun.wait()
    long.cancel()
    with pytest.raises(asyncio.CancelledError):
        await long
    cut_at = len(seen)
    await other
    await engine.publish()  # returns once nothing is left in the batch
    assert len(seen) == cut_at < 250
    assert [record.completion for record in engine.log or []] == [other.result()]


async def test_tokens_come_one_by_one_while_the_completion_is_under_way(engine: TorchEngine):
    seen: list[int] = []
    task = asyncio.create_task(
        engine.sample([9, 9], Sampling(max_tokens=60, temperature=3.0, seed=4), seen.append)
    )
    partial = 0
    while not task.done():
        await asyncio.sleep(0)
        partial += 0 < len(seen) < 50
    assert partial > 5
    assert seen == task.result().token_ids


async def test_when_the_sampling_thread_fails_every_waiting_call_fails(engine: TorchEngine):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("the cable is loose")

    begun = asyncio.Event()
    sampling = Sampling(max_tokens=180, temperature=3.0)
    tasks = [asyncio.create_task(engine.sample(p, sampling, lambda _: begun.set())) for p in PROMPTS]
    await begun.wait()
    engine._trainer.model.forward = broken  # type: ignore[union-attr]
    for outcome in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60):
        assert isinstance(outcome, EngineError)
        assert "the cable is loose" in str(outcome)
    with pytest.raises(EngineError, match="the cable is loose"):
        await engine.sample(PROMPTS[0], MIXED[1])
    with pytest.raises(EngineError, match="the cable is loose"):
        await engine.forward([])


async def test_closing_fails_the_calls_under_way(endless_folder: Path):
    engine = TorchEngine()
    await engine.open(EngineSpec(endless_folder))
    task = asyncio.create_task(engine.sample([9, 9], Sampling(max_tokens=250, temperature=3.0)))
    await asyncio.sleep(0.02)
    await engine.close()
    with pytest.raises(EngineError, match=r"closed|before this request completed"):
        await asyncio.wait_for(task, 60)


async def test_one_request_at_a_time_is_bitwise_repeatable(endless_folder: Path):
    runs = []
    for order in (range(8), reversed(range(8))):
        engine = TorchEngine()
        await engine.open(EngineSpec(endless_folder, deterministic=True))
        calls = {i: engine.sample(PROMPTS[i % 4], Sampling(max_tokens=10, seed=i)) for i in order}
        found = dict(zip(calls, await asyncio.gather(*calls.values()), strict=True))
        runs.append([found[i] for i in range(8)])
        await engine.close()
    assert runs[0] == runs[1]


async def test_a_transformers_that_samples_in_another_way_is_named(endless_folder: Path, monkeypatch):
    from transformers.generation.continuous_batching.model_runner import ModelRunner

    monkeypatch.delattr(ModelRunner, "_sample")
    with pytest.raises(EngineError, match=r"transformers 5\..*ModelRunner\._sample .* is gone.*pip install"):
        await TorchEngine().open(EngineSpec(endless_folder))
