"""The audit gate in the loop: a run whose sampler uses old weights stops before it learns from them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.loop import Training, TrainSettings, train
from osmosis_ai.engine.base import EngineInfo, EngineSpec, Sampling
from osmosis_ai.engine.policy import new_policy
from osmosis_ai.engine.torch import TorchEngine
from osmosis_ai.errors import AuditError
from osmosis_ai.store.base import RunRecord, StepRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.train.audit import GATES, mean_gate
from osmosis_ai.types import Group, Rollout, Row, Sample, Status, Turn

PROMPT_TOKENS = 64  # two full pages of the cache, which a later request may reuse
ANSWER_TOKENS = 16
GROUP_SIZE = 4


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audited") / "policy"
    return new_policy(folder, texts=["12 times 7 is 84."], hidden_size=32, layers=2, vocab_size=300, seed=0)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "osmosis.db")
    await opened.create_run(RunRecord("run", "train", "running", 0.0, {}, {}))
    yield opened
    await opened.close()


class Collecting:
    """Samples each rollout's one turn from the engine; a fake of what runs the user's workflow.

    `weights` are the engine's when the rollouts of the latest step were sampled.
    """

    def __init__(self, engine: TorchEngine, *, signal: bool = True) -> None:
        self.engine = engine
        self.signal = signal
        self.steps: list[int] = []
        self.weights: dict[str, torch.Tensor] = {}

    async def __call__(
        self, run_id: str, step: int, rows: Sequence[Row], size: int, known: Sequence[Rollout]
    ) -> tuple[list[Group], list[Rollout]]:
        self.steps.append(step)
        self.weights = weights_of(self.engine)
        return [await self._group(run_id, step, row, size) for row in rows], []

    async def _group(self, run_id: str, step: int, row: Row, size: int) -> Group:
        group_id = f"s{step}.r{row.index}"
        members = [self._rollout(run_id, step, row, group_id, member) for member in range(size)]
        return Group(group_id, row, list(await asyncio.gather(*members)))

    async def _rollout(self, run_id: str, step: int, row: Row, group_id: str, member: int) -> Rollout:
        rollout_id = f"{group_id}.m{member}"
        drawn = random.Random(row.index)  # the same prompt at every step
        prompt = [drawn.randrange(3, 250) for _ in range(PROMPT_TOKENS)]
        seed = hash((step, row.index, member))
        done = await self.engine.sample(prompt, Sampling(max_tokens=ANSWER_TOKENS, seed=seed))
        turn = Turn(
            rollout_id=rollout_id,
            sample_id="main",
            ordinal=0,
            parent=None,
            branch_reason=None,
            messages=[],
            tools=[],
            response={},
            finish_reason=done.finish_reason,
            prompt_ids=prompt,
            completion_ids=done.token_ids,
            logprobs=done.logprobs,
            policy_version=done.version,
            prompt_tokens=len(prompt),
            completion_tokens=len(done.token_ids),
            sampling={"temperature": 1.0},
            model="policy",
            malformed_tool_calls=0,
            latency_ms=0.0,
        )
        reward = float(member % 2) if self.signal or step == 1 else 1.0
        return Rollout(
            rollout_id, run_id, row.index, group_id, member, step=step, status=Status.GRADED,
            samples={"main": Sample("main", reward=reward)}, turns=[turn],
        )  # fmt: skip


def weights_of(engine: TorchEngine) -> dict[str, torch.Tensor]:
    assert engine._trainer is not None
    return {name: tensor.detach().clone() for name, tensor in engine._trainer.model.state_dict().items()}


def settings(info: EngineInfo, learning_rate: float) -> TrainSettings:
    gate = GATES[info.arithmetic]
    return TrainSettings(
        steps=3, seed=0, rows_per_step=4, group_size=GROUP_SIZE, advantage="mean_baseline", loss="grpo",
        normalisation="token_mean", loss_params={}, learning_rate=learning_rate, warmup_steps=0,
        final_learning_rate=1.0, weight_decay=0.0, max_grad_norm=1.0, microbatch_tokens=4096,
        max_sample_tokens=256, audit_gate=gate, audit_mean_gate=mean_gate(info.arithmetic, gate),
    )  # fmt: skip


async def training(
    engine: TorchEngine, policy: Path, store: SqliteStore, folder: Path, *, learning_rate: float = 1e-2,
    signal: bool = True, **options: Any,
) -> tuple[Training, Collecting]:  # fmt: skip
    info = await engine.open(EngineSpec(policy, device="cpu", **options))
    collect = Collecting(engine, signal=signal)
    rows = [Row(index, []) for index in range(4)]
    run = Training(
        "run", rows, settings(info, learning_rate), engine, collect, store,
        Checkpoints(folder, every=1, keep=9), version=0,
    )  # fmt: skip
    return run, collect


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("signal", [True, False])
async def test_a_cache_that_survives_an_update_stops_the_run_at_the_next_step_and_nothing_is_learnt_from_it(
    policy: Path, store: SqliteStore, tmp_path: Path, signal: bool
):
    """Also where step 2 has no signal: it is audited all the same."""
    engine = TorchEngine(_unsafe_keep_cache=True)
    run, collect = await training(engine, policy, store, tmp_path, signal=signal)
    before = weights_of(engine)
    shown: list[StepRecord] = []
    with pytest.raises(AuditError, match=r"policy version 1: sampler and trainer differ by .* not updated"):
        await train(run, shown.append)
    assert collect.steps == [1, 2]
    assert not equal(collect.weights, before)  # step 1 has learnt
    assert equal(weights_of(engine), collect.weights)  # step 2 has not
    assert [record.step for record in shown] == [1]
    assert [record.step for record in await store.steps("run")] == [1]
    assert [folder.name for folder in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]
    await engine.close()


async def test_the_same_run_with_the_cache_forgotten_takes_all_its_steps(
    policy: Path, store: SqliteStore, tmp_path: Path
):
    engine = TorchEngine()
    run, collect = await training(engine, policy, store, tmp_path)
    await train(run, lambda record: None)
    audits = [record.metrics["audit"] for record in await store.steps("run")]
    assert collect.steps == [1, 2, 3]
    assert run.version == 3
    assert max(audit["max_difference"] for audit in audits) <= 2e-6
    assert min(audit["tokens"] for audit in audits) > 100
    await engine.close()


async def test_in_bfloat16_the_mean_sees_the_stale_cache_that_the_largest_difference_does_not(
    policy: Path, store: SqliteStore, tmp_path: Path
):
    engine = TorchEngine(_unsafe_keep_cache=True)
    run, collect = await training(engine, policy, store, tmp_path, learning_rate=5e-4, dtype="bfloat16")
    with pytest.raises(AuditError) as caught:
        await train(run, lambda record: None)
    words = str(caught.value).split()
    largest, mean = float(words[words.index("by") + 1]), float(words[words.index("(mean") + 1])
    assert largest < GATES["bfloat16"] == 0.25
    assert mean > 0.02
    assert collect.steps[-1] > 1
    assert equal(weights_of(engine), collect.weights)
    await engine.close()


async def test_a_healthy_run_in_bfloat16_passes_both_gates(policy: Path, store: SqliteStore, tmp_path: Path):
    engine = TorchEngine()
    run, _ = await training(engine, policy, store, tmp_path, learning_rate=5e-4, dtype="bfloat16")
    await train(run, lambda record: None)
    audits = [record.metrics["audit"] for record in await store.steps("run")]
    assert len(audits) == 3
    assert 0 < max(audit["mean_difference"] for audit in audits) < 0.01
    await engine.close()
