"""Supervised fine-tuning: stored rollouts in, new weights out, by the same engine verbs as `loop.train`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.loop import TrainSettings
from osmosis_ai.controller.schedule import items_of_step
from osmosis_ai.engine.base import Engine, LossSpec
from osmosis_ai.store.base import StepRecord, Store
from osmosis_ai.train.losses import LOSSES
from osmosis_ai.types import TrainingSample


@dataclass(slots=True)
class FineTuning:
    """A fine-tuning run that is open."""

    run_id: str
    conversations: list[TrainingSample]
    batch_samples: int
    settings: TrainSettings
    engine: Engine
    store: Store
    checkpoints: Checkpoints
    last_step: int = 0


async def fine_tune(run: FineTuning, on_step: Callable[[StepRecord], None]) -> None:
    """Minimise the cross-entropy of the answers, averaged over the tokens of each step."""
    settings = run.settings
    for step in range(run.last_step + 1, settings.steps + 1):
        started = time.monotonic()
        rows = items_of_step(run.conversations, step, run.batch_samples, settings.seed)
        tokens = sum(row.trained_tokens for row in rows)
        loss = LossSpec("cross_entropy", LOSSES["cross_entropy"], float(max(1, tokens)))
        stats = await run.engine.forward_backward(rows, loss, settings.microbatch_tokens)
        optim = settings.optimizer_at(step)
        updated = await run.engine.optim_step(optim)
        await run.engine.publish()
        last = step == settings.steps
        folder = await run.checkpoints.save(run.engine, step, last=last)
        seconds = time.monotonic() - started
        metrics = {
            "loss": stats.loss,
            "grad_norm": updated.grad_norm,
            "learning_rate": optim.lr,
            "conversations": len(run.conversations),
            "trained_tokens": tokens,
            "trained_tokens_per_second": tokens / seconds,
            "seconds": {"step": seconds},
        }
        record = StepRecord(run.run_id, step, updated.version, folder, metrics, time.time())
        await run.store.finish_step(record)
        run.checkpoints.prune()
        on_step(record)
