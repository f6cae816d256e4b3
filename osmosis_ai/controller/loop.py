"""The algorithm, from top to bottom. Read `types.py` first.

rows -> groups of rollouts -> advantages -> training samples -> audit -> step -> new weights -> rows ...
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.schedule import items_of_step, learning_rate
from osmosis_ai.engine.base import BackwardStats, Engine, LossSpec, OptimSpec
from osmosis_ai.errors import InfrastructureError, OsmosisError
from osmosis_ai.store.base import StepRecord, Store
from osmosis_ai.train.advantages import ADVANTAGES
from osmosis_ai.train.audit import Audit, audit, check
from osmosis_ai.train.batch import Batch, Normalisation, build_batch
from osmosis_ai.train.losses import LOSSES
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import RETRIED, Group, PolicyVersion, Rollout, Row, Status, TrainingSample

AUDIT_ONLY_ROLLOUTS = 4  # scored by the trainer when a step has nothing to train on


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """What `[train]` says, with the audit's gate resolved."""

    steps: int
    seed: int
    rows_per_step: int
    group_size: int
    advantage: str
    loss: str
    normalisation: Normalisation
    loss_params: dict[str, float]
    learning_rate: float
    warmup_steps: int
    final_learning_rate: float
    weight_decay: float
    max_grad_norm: float
    microbatch_tokens: int
    max_sample_tokens: int
    audit_gate: float  # on the largest difference
    audit_mean_gate: float

    def optimizer_at(self, step: int) -> OptimSpec:
        """AdamW with the learning rate of a step."""
        rate = learning_rate(
            self.learning_rate,
            step,
            self.steps,
            warmup_steps=self.warmup_steps,
            final_share=self.final_learning_rate,
        )
        return OptimSpec(lr=rate, weight_decay=self.weight_decay, max_grad_norm=self.max_grad_norm)


class CollectGroups(Protocol):
    """Runs the workflow: `Dispatcher.groups`."""

    async def __call__(
        self, run_id: str, step: int, rows: Sequence[Row], size: int, known: Sequence[Rollout]
    ) -> tuple[list[Group], list[Rollout]]: ...


@dataclass(slots=True)
class Training:
    """A training run that is open: the stages, and where it stands."""

    run_id: str
    rows: list[Row]
    settings: TrainSettings
    engine: Engine
    collect: CollectGroups
    store: Store
    checkpoints: Checkpoints
    version: PolicyVersion
    last_step: int = 0  # done before this process started
    leftovers: Sequence[Rollout] = ()  # rollouts of the next step that an earlier life has finished


async def train(run: Training, on_step: Callable[[StepRecord], None]) -> None:
    """Take steps until there are `settings.steps` of them. Each is on disk before the next begins."""
    for step in range(run.last_step + 1, run.settings.steps + 1):
        started = time.monotonic()
        rows = items_of_step(run.rows, step, run.settings.rows_per_step, run.settings.seed)
        known = [rollout for rollout in run.leftovers if rollout.step == step]
        groups, replaced = await run.collect(run.run_id, step, rows, run.settings.group_size, known)
        refuse_without_rewards(groups, step)
        fresh = sampled_tokens(groups, replaced) - sum(rollout.sampled_tokens for rollout in known)
        collected = time.monotonic()

        batch = build_batch(
            groups,
            replaced,
            ADVANTAGES[run.settings.advantage],
            normalisation=run.settings.normalisation,
            max_sample_tokens=run.settings.max_sample_tokens,
        )
        update = await learn(run, batch, step) if batch.samples else await audit_only(run, groups)
        run.version = await run.engine.publish()

        folder = await run.checkpoints.save(run.engine, step, last=step == run.settings.steps)
        times = {"rollouts": collected - started, "learning": time.monotonic() - collected}
        record = StepRecord(
            run.run_id, step, run.version, folder, step_metrics(batch, update, times, fresh), time.time()
        )
        await run.store.finish_step(record)
        run.checkpoints.prune()
        on_step(record)


def sampled_tokens(groups: Sequence[Group], replaced: Sequence[Rollout]) -> int:
    return sum(
        rollout.sampled_tokens for group in (*[g.rollouts for g in groups], replaced) for rollout in group
    )


def refuse_without_rewards(groups: Sequence[Group], step: int) -> None:
    """A step in which nothing was graded teaches nothing, and the next would be no better: stop, say why."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    if any(rollout.status is Status.GRADED for rollout in rollouts):
        return
    counts = Counter(rollout.status.value for rollout in rollouts)
    kinds = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    ours = all(rollout.status in RETRIED for rollout in rollouts)
    raise (InfrastructureError if ours else OsmosisError)(
        f"step {step}: none of its {len(rollouts)} rollouts has a reward ({kinds}), so there is nothing to "
        f"learn from. The first, of row {rollouts[0].row_index}: {rollouts[0].reason}"
    )


@dataclass(frozen=True, slots=True)
class Update:
    """What one step did to the weights."""

    audit: Audit
    loss: float | None = None  # None: no group had a signal, the weights stayed as they were
    grad_norm: float | None = None
    learning_rate: float | None = None
    sums: dict[str, float] | None = None


async def learn(run: Training, batch: Batch, step: int) -> Update:
    """Gradient, audit, update. A failed audit raises before the weights change."""
    settings = run.settings
    loss = LossSpec(settings.loss, LOSSES[settings.loss], batch.denominator, settings.loss_params)
    stats: BackwardStats = await run.engine.forward_backward(batch.samples, loss, settings.microbatch_tokens)
    result = audit(batch.samples, stats.logprobs, run.version)
    check(result, gate=settings.audit_gate, mean_gate=settings.audit_mean_gate, version=run.version)
    optim = settings.optimizer_at(step)
    updated = await run.engine.optim_step(optim)
    return Update(result, stats.loss, updated.grad_norm, optim.lr, stats.sums)


async def audit_only(run: Training, groups: Sequence[Group]) -> Update:
    """Nothing to learn from in this step, but the sampler is still compared with the trainer."""
    graded = [r for group in groups for r in group.rollouts if r.status is Status.GRADED]
    rows: list[TrainingSample] = []
    for rollout in graded[:AUDIT_ONLY_ROLLOUTS]:
        rows += training_samples(rollout, dict.fromkeys(rollout.samples, 0.0))
    result = audit(rows, await run.engine.forward(rows), run.version)
    gate, mean = run.settings.audit_gate, run.settings.audit_mean_gate
    check(result, gate=gate, mean_gate=mean, version=run.version)
    return Update(result)


def step_metrics(
    batch: Batch, update: Update, seconds: dict[str, float], fresh_tokens: int
) -> dict[str, Any]:
    """Plain numbers of one step; `docs/metrics.md` says what each means.

    `fresh_tokens` were sampled now, not by an earlier life of the run.
    """
    return {
        "reward_mean": sum(batch.rewards) / len(batch.rewards) if batch.rewards else None,
        "rewards": len(batch.rewards),
        "groups": batch.groups,
        "groups_with_signal": batch.groups_with_signal,
        "funnel": batch.funnel.as_dict(),
        "training_samples": len(batch.samples),
        "branches": batch.branches,
        "loss": update.loss,
        "loss_sums": update.sums or {},
        "grad_norm": update.grad_norm,
        "learning_rate": update.learning_rate,
        "audit": asdict(update.audit),
        "seconds": {**seconds, "step": sum(seconds.values())},
        "sampled_tokens_per_second": fresh_tokens / seconds["rollouts"] if seconds["rollouts"] else 0.0,
    }
