"""A training run from its configuration to the policy that it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from osmosis_ai.config import Config
from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.fine_tune import FineTuning, fine_tune
from osmosis_ai.controller.loop import Training, TrainSettings, train
from osmosis_ai.controller.opening import OpenRun, leftovers
from osmosis_ai.controller.place import is_result
from osmosis_ai.controller.rollouts import Notify, open_engine, open_renderer, open_rollouts
from osmosis_ai.engine.base import Engine, EngineInfo
from osmosis_ai.errors import ConfigError, UsageError
from osmosis_ai.store.base import RolloutFilter, StepRecord, Store
from osmosis_ai.train.audit import GATES, mean_gate
from osmosis_ai.train.conversations import conversation_samples
from osmosis_ai.types import PolicyVersion, Rollout, Status

# Which step the policy is of. Written after it: a run that was made longer and then killed before its end
# has all steps and the policy of its shorter life.
POLICY_STEP = "policy.step"


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a training run tells whoever watches it."""

    notify: Notify
    on_start: Callable[[int, int], None]  # (last step done before, steps in all)
    on_rollout: Callable[[Rollout], None]
    on_retry: Callable[[Rollout], None]  # an attempt that will be followed by another
    on_step: Callable[[StepRecord], None]


async def run_training(run: OpenRun, hooks: Hooks) -> Path:
    """Train until the configured number of steps; returns the folder of the trained policy."""
    if run.config.policy is None:
        raise UsageError(f"{run.config.source}: training needs [policy] path = a policy folder.")
    if (folder := await _done_before(run)) is not None:
        return folder
    refuse_run_budgets(run.config)
    if run.config.train.algorithm == "sft":
        return await _fine_tune(run, hooks)
    refuse_other_distributions(run.config)
    return await _reinforce(run, hooks)


async def _done_before(run: OpenRun) -> Path | None:
    """The policy of a run that has taken all its steps: nothing is opened to find that nothing is left."""
    last = await _last_step(run) if run.resumed else 0
    folder, of_step = run.folder / "policy", run.folder / POLICY_STEP
    if last < run.config.train.steps or not folder.is_dir() or not of_step.is_file():
        return None
    return folder if of_step.read_text(encoding="utf-8") == str(last) else None


async def _last_step(run: OpenRun) -> int:
    return max((record.step for record in await run.store.steps(run.run_id)), default=0)


def refuse_other_distributions(config: Config) -> None:
    """Raise ConfigError unless the trainer can score what was sampled: softmax(logits / temperature)."""
    sampling = config.sampling
    findings = [
        f"{config.source}: sampling.{key} = {value:g} cannot be trained; it must be {needed}: the trainer "
        "scores the distribution that was sampled. Leave it out, or set it for eval only."
        for key, value, needed, holds in (
            ("temperature", sampling.temperature, "above 0", sampling.temperature > 0),
            ("top_p", sampling.top_p, "1", sampling.top_p == 1),
        )
        if not holds
    ]
    if findings:
        raise ConfigError(findings)


def refuse_run_budgets(config: Config) -> None:
    """Raise ConfigError where a budget is given that would not be kept."""
    findings = [
        f"{config.source}: budget.{key} is for an eval; a training takes train.steps steps. Leave it out, or "
        "give it to the eval: --set."
        for key in ("run_tokens", "run_dollars", "run_seconds")
        if getattr(config.budget, key) is not None
    ]
    if findings:
        raise ConfigError(findings)


async def _reinforce(run: OpenRun, hooks: Hooks) -> Path:
    config = run.config
    async with open_rollouts(run, training=True, notify=hooks.notify) as parts:
        assert parts.engine is not None
        assert parts.info is not None
        parts.dispatcher.on_end = hooks.on_rollout
        parts.dispatcher.on_retry = hooks.on_retry
        checkpoints = _checkpoints(run)
        last_step = await checkpoints.restore(parts.engine, await run.store.steps(run.run_id))
        version = await parts.engine.publish()
        hooks.on_start(last_step, config.train.steps)
        training = Training(
            run_id=run.run_id,
            rows=list(parts.rows),
            settings=train_settings(run, parts.info),
            engine=parts.engine,
            collect=parts.dispatcher.groups,
            store=run.store,
            checkpoints=checkpoints,
            version=version,
            last_step=last_step,
            leftovers=await usable_leftovers(run.store, await _leftovers_after(run, last_step), version),
        )
        await train(training, hooks.on_step)
        return await _export(run, parts.engine)


async def _leftovers_after(run: OpenRun, last_step: int) -> list[Rollout]:
    """Rollouts of the steps after `last_step`: with `checkpoint_every` above 1 some of these were taken."""
    steps = await run.store.steps(run.run_id)
    newest = max((record.step for record in steps), default=0) + 1
    return [r for step in range(last_step + 1, newest + 1) for r in await leftovers(run, step=step)]


async def usable_leftovers(store: Store, rollouts: list[Rollout], version: PolicyVersion) -> list[Rollout]:
    """Rollouts of an earlier life; what other weights than the restored ones sampled is superseded.

    With `checkpoint_every` above 1 a step may be done again with weights that were computed again; what
    the earlier ones sampled is then not taken, it only counts as an attempt, here and in the store. The same
    holds for a step that has no reward at all: the run stopped there, and goes on by trying again.
    """
    with_reward = {rollout.step for rollout in rollouts if rollout.status is Status.GRADED}
    stale = {
        rollout.rollout_id
        for rollout in rollouts
        if is_result(rollout.status)
        and (rollout.step not in with_reward or any(turn.policy_version != version for turn in rollout.turns))
    }
    await store.supersede(sorted(stale))
    return [replace(r, status=Status.SUPERSEDED) if r.rollout_id in stale else r for r in rollouts]


async def _fine_tune(run: OpenRun, hooks: Hooks) -> Path:
    config = run.config
    assert config.policy is not None
    rollouts = await _rollouts_to_learn_from(run)
    hooks.notify(f"loading the policy {config.policy.path}")
    conversations = conversation_samples(rollouts, open_renderer(run, config.policy))
    engine, info = await open_engine(run, config.policy, trainable=True)
    try:
        await run.begin()
        checkpoints = _checkpoints(run)
        done = await run.store.steps(run.run_id)
        _refuse_other_conversations(run, done, len(conversations))
        last_step = await checkpoints.restore(engine, done)
        hooks.on_start(last_step, config.train.steps)
        tuning = FineTuning(
            run_id=run.run_id,
            conversations=conversations,
            batch_samples=config.train.batch_samples,
            settings=train_settings(run, info),
            engine=engine,
            store=run.store,
            checkpoints=checkpoints,
            last_step=last_step,
        )
        await fine_tune(tuning, hooks.on_step)
        return await _export(run, engine)
    finally:
        await engine.close()


def _refuse_other_conversations(run: OpenRun, done: list[StepRecord], conversations: int) -> None:
    """The order of the data depends on how many there are: a run that has grown would mix two orders."""
    before = done[-1].metrics["conversations"] if done else conversations
    if before != conversations:
        raise UsageError(
            f"run {run.run_id!r} began with {before} conversations of run {run.config.train.from_run!r}, "
            f"which now has {conversations}. Start a new run with --fresh, or choose another name (--name)."
        )


async def _rollouts_to_learn_from(run: OpenRun) -> list[Rollout]:
    settings = run.config.train
    if not settings.from_run:
        raise UsageError(
            f'{run.config.source}: train.algorithm = "sft" needs train.from_run = the name of a run with '
            "stored rollouts (see `osmosis runs list`)."
        )
    if await run.store.get_run(settings.from_run) is None:
        known = ", ".join(summary.run.run_id for summary in await run.store.list_runs())
        raise UsageError(
            f"train.from_run = {settings.from_run!r}: there is no such run. Known: {known or 'none'}."
        )
    graded = await run.store.rollouts(RolloutFilter(settings.from_run, statuses=[Status.GRADED]))
    chosen = [r for r in graded if r.reward is not None and r.reward >= settings.min_reward]
    if not chosen:
        best = max((r.reward for r in graded if r.reward is not None), default=None)
        found = (
            f"the best has {best:g}" if best is not None else f"see `osmosis runs show {settings.from_run}`"
        )
        raise UsageError(
            f"train.from_run = {settings.from_run!r}: of its {len(graded)} graded rollouts none has a reward "
            f"of at least train.min_reward = {settings.min_reward:g}; {found}."
        )
    return chosen


def _checkpoints(run: OpenRun) -> Checkpoints:
    settings = run.config.train
    return Checkpoints(run.folder, every=settings.checkpoint_every, keep=settings.keep_checkpoints)


async def _export(run: OpenRun, engine: Engine) -> Path:
    folder = run.folder / "policy"
    await engine.save(folder, {}, training=False)
    (run.folder / POLICY_STEP).write_text(str(await _last_step(run)), encoding="utf-8")
    return folder


def train_settings(run: OpenRun, info: EngineInfo) -> TrainSettings:
    """`[train]` as the loop wants it."""
    config, table = run.config, run.config.train
    assert config.policy is not None
    clip = {"clip_low": table.clip_low, "clip_high": table.clip_high}
    gate = table.audit_gate or GATES[info.arithmetic]
    return TrainSettings(
        steps=table.steps,
        seed=config.run.seed,
        rows_per_step=table.rows_per_step,
        group_size=table.group_size,
        advantage=table.advantage,
        loss=table.loss,
        normalisation=table.normalisation,
        loss_params=clip if table.loss == "grpo" else {},
        learning_rate=table.learning_rate,
        warmup_steps=table.warmup_steps,
        final_learning_rate=table.final_learning_rate,
        weight_decay=table.weight_decay,
        max_grad_norm=table.max_grad_norm,
        microbatch_tokens=table.microbatch_tokens,
        max_sample_tokens=table.max_sample_tokens,
        audit_gate=gate,
        audit_mean_gate=mean_gate(info.arithmetic, gate),
    )
