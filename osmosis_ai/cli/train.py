"""`osmosis train run`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osmosis_ai.cli.options import config_options, read_config, run_async, workspace_at
from osmosis_ai.errors import UsageError
from osmosis_ai.store.workspace import Workspace

if TYPE_CHECKING:  # help needs none of it
    from osmosis_ai.cli.display import Display
    from osmosis_ai.config import Config
    from osmosis_ai.controller.opening import OpenRun
    from osmosis_ai.store.base import StepRecord


@click.command(epilog="Example: osmosis train run train.toml --set train.steps=1")
@click.option("--accept-changes", is_flag=True, hidden=True)  # of `eval run`: here it says why not
@config_options
def run(
    config: Path,
    name: str | None,
    settings: tuple[str, ...],
    fresh: bool,
    accept_changes: bool,
    workspace: Path,
    as_json: bool,
) -> None:
    """Train the policy of CONFIG with its workflow and grader.

    The same command goes on where it stopped, and does nothing when all steps are done. The trained policy
    is an ordinary Hugging Face folder; another config names it with [policy] path = "run:NAME".
    """
    if accept_changes:
        raise UsageError(
            "--accept-changes is for evals: the weights of a training run come from all of its inputs, so "
            "with others it is another run. Start one with --fresh, or from the policy that this one has "
            'learnt: [policy] path = "run:NAME".'
        )
    from osmosis_ai.cli.display import Display

    display = Display(as_json=as_json)
    run_async(_train(read_config(config, name, settings), workspace_at(workspace), fresh, display))


async def _train(config: Config, workspace: Workspace, fresh: bool, display: Display) -> None:
    from osmosis_ai.cli.display import TrainProgress
    from osmosis_ai.controller.opening import open_run
    from osmosis_ai.controller.training import Hooks, run_training

    async with open_run(config, "train", workspace, fresh=fresh) as opened:
        verb = "resuming" if opened.resumed else "starting"
        display.note(f"{verb} run {opened.run_id} ({config.train.algorithm}), {config.train.steps} steps")
        makes_rollouts = config.train.algorithm != "sft"
        per_step = config.train.rows_per_step * config.train.group_size if makes_rollouts else 0
        progress = TrainProgress(display, per_step)
        hooks = Hooks(
            display.note, progress.on_start, progress.on_rollout, progress.on_retry, progress.on_step
        )
        try:
            with display.bar("starting"):
                folder = await run_training(opened, hooks)
        except asyncio.CancelledError:
            await opened.finish(interrupted=True)
            display.note("interrupted; every finished step and rollout is kept. The same command goes on.")
            raise
        except Exception as error:  # whatever ended the run, also what nobody foresaw: its record says so
            await opened.fail(error)
            raise
        await opened.finish()
        _report(display, opened, await opened.store.steps(opened.run_id), folder)


def _report(display: Display, opened: OpenRun, steps: list[StepRecord], folder: Path) -> None:
    rewards = [record.metrics.get("reward_mean") for record in steps]
    known = [reward for reward in rewards if reward is not None]
    display.data({"event": "done", "run_id": opened.run_id, "steps": len(steps), "policy": str(folder)})
    if known:
        from osmosis_ai.cli.charts import curve, save_curve_png

        picture = opened.folder / "reward.png"
        points = [(r.step, reward) for r, reward in zip(steps, rewards, strict=True) if reward is not None]
        save_curve_png(picture, [step for step, _ in points], [reward for _, reward in points])
        display.out(curve(known, label="mean reward of each step's rollouts"))
        display.out(f"picture: {picture}")
    display.out(f"run {opened.run_id}: {len(steps)} steps done; policy: {folder}")
