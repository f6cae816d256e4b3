"""Every trained token was sampled by the engine, under the recorded version, once."""

from __future__ import annotations

from collections import Counter

import pytest
from e2e_bench import CALCULATOR, TABLES, Bench

from osmosis_ai.config import load_config
from osmosis_ai.controller.opening import open_rollouts, open_run
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Rollout, TrainingSample

Sampled = tuple[int, int, float]  # token id, policy version, log-probability


@pytest.mark.parametrize("agent", ["strands", "openai_agents"])
async def test_the_training_samples_hold_what_the_engine_logged_token_for_token(bench: Bench, agent: str):
    config = load_config(bench.write("t.toml", TABLES, entrypoint=str(CALCULATOR / f"{agent}_agent.py")))
    async with (
        open_run(config, "train", Workspace(bench.workspace)) as run,
        open_rollouts(run, training=True, notify=lambda text: None) as parts,
    ):
        assert isinstance(parts.engine, TorchEngine)
        parts.engine.log = []
        groups, replaced = await parts.dispatcher.groups(run.run_id, 1, parts.rows[:2], 4)
        assert replaced == []
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        samples = [s for r in rollouts for s in training_samples(r, dict.fromkeys(r.samples, 1.0))]
        log = parts.engine.log

    assert any(len(rollout.turns) > 1 for rollout in rollouts), "no rollout had several turns"
    logged = Counter(
        (tuple(call.prompt_ids), tuple(call.completion.token_ids), tuple(call.completion.logprobs))
        for call in log
    )
    assert sum(logged.values()) == sum(len(rollout.turns) for rollout in rollouts)
    assert Counter(spans_of(rollouts, samples)) == logged
    assert {v for s in samples for v, m in zip(s.versions, s.loss_mask, strict=True) if m} == {0}


def spans_of(
    rollouts: list[Rollout], samples: list[TrainingSample]
) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Each trained span with the context before it, cut at the turns' borders."""
    borders = {
        (turn.rollout_id, len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.completion_ids))
        for rollout in rollouts
        for turn in rollout.turns
    }
    spans = []
    for sample in samples:
        for start, end in sorted((a, b) for rollout_id, a, b in borders if rollout_id == sample.rollout_id):
            if end <= len(sample.token_ids) and all(sample.loss_mask[start:end]):
                ids = sample.token_ids
                spans.append((tuple(ids[:start]), tuple(ids[start:end]), tuple(sample.logprobs[start:end])))
    return spans
