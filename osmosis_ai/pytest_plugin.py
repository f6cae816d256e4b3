"""Evals as tests: `assert_eval("configs/eval.toml", min_mean=0.9)`.

    def test_the_agent_adds(assert_eval):
        assert_eval("configs/eval.toml", min_mean=0.9)

The fixture comes with the package. The run is kept in the test's `tmp_path`, which a failure names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:  # pytest loads this module in every project that has Osmosis installed
    from osmosis_ai.config import Config
    from osmosis_ai.eval.tally import EvalReport
    from osmosis_ai.types import Rollout

SHOWN_ROWS = 5  # of those with the lowest reward


class AssertEval(Protocol):
    """What the fixture `assert_eval` is."""

    def __call__(
        self,
        config: str | Path,
        *,
        min_mean: float | None = None,
        min_pass: float | None = None,
        max_failed: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> EvalReport: ...


@pytest.fixture(name="assert_eval")
def _assert_eval(tmp_path: Path, request: pytest.FixtureRequest) -> AssertEval:
    """Run the eval of a config file and fail the test when its result is not good enough."""

    def check(config: str | Path, **limits: Any) -> EvalReport:
        __tracebackhide__ = True
        path = Path(config)
        if not path.exists() and (request.config.rootpath / path).exists():
            path = request.config.rootpath / path
        return assert_eval(path, workspace=tmp_path / "osmosis", **limits)

    return check


def assert_eval(
    config: str | Path,
    *,
    min_mean: float | None = None,
    min_pass: float | None = None,
    max_failed: int = 0,
    settings: Mapping[str, Any] | None = None,
    workspace: Path = Path(".osmosis"),
) -> EvalReport:
    """Run the eval of a config file anew; AssertionError when its result is not good enough.

    `min_mean` is the least mean reward, `min_pass` the least pass@1, `max_failed` how many rollouts may end
    without a reward: a failure counts as nothing in the means, so none is allowed unless you say so.
    `settings` are keys of the file for this run: {"dataset.limit": 20}.
    """
    __tracebackhide__ = True
    from osmosis_ai.config import load_config

    loaded, folder = load_config(Path(config), settings), workspace.absolute()
    with ThreadPoolExecutor(1) as thread:  # a loop of its own: the test may be asynchronous itself
        run_id, lowest, report = thread.submit(lambda: asyncio.run(_run(loaded, folder))).result()
    problems = _problems(report, min_mean, min_pass, max_failed)
    if problems:
        where = f"osmosis runs show {run_id} --workspace {workspace}"
        raise AssertionError("\n".join([f"{config}: {'; '.join(problems)}", *_lines(lowest), where]))
    return report


async def _run(config: Config, workspace: Path) -> tuple[str, list[Rollout], EvalReport]:
    """The run, its rollouts with the lowest rewards, and the report."""
    from osmosis_ai.controller.opening import open_run, prices_of
    from osmosis_ai.controller.rollouts import open_rollouts
    from osmosis_ai.eval.budget import Guard, RunBudget, Spending
    from osmosis_ai.eval.run import evaluate
    from osmosis_ai.eval.tally import Tally
    from osmosis_ai.store.workspace import Workspace

    tally = Tally(config.eval.attempts, config.eval.pass_threshold, prices_of(config))
    limits = config.budget
    budget = RunBudget(limits.run_tokens, limits.run_dollars, limits.run_seconds)
    lowest: list[Rollout] = []
    async with open_run(config, "eval", Workspace(workspace), fresh=True) as run:
        try:
            async with open_rollouts(run, training=False, notify=lambda text: None) as parts:
                dispatcher = parts.dispatcher
                guard = Guard(Spending(budget, prices_of(config)), dispatcher.stop)
                dispatcher.on_retry = lambda rollout: guard.add(rollout.outcome)
                guard.start()
                async for rollout in evaluate(dispatcher, run.run_id, parts.rows, config.eval.attempts):
                    tally.add(rollout.outcome)
                    guard.add(rollout.outcome)
                    if rollout.reward is not None:
                        lowest = sorted([*lowest, rollout], key=_by_reward)[:SHOWN_ROWS]
                guard.pause()
                tally.stopped = dispatcher.stopped
        except Exception as error:  # whatever ended the run: its record says so
            await run.fail(error)
            raise
        await run.finish(tally.stopped)
        return run.run_id, lowest, tally.report()


def _by_reward(rollout: Rollout) -> tuple[float, int]:
    return rollout.reward or 0.0, rollout.row_index


def _problems(
    report: EvalReport, min_mean: float | None, min_pass: float | None, max_failed: int
) -> list[str]:
    from osmosis_ai.eval.gates import mean_at_least

    failed = sum(report.failures.values())
    problems = [f"stopped early: {report.stopped}"] if report.stopped else []
    if failed > max_failed:
        first = "; ".join(f"{status}: {reason}" for status, reason in report.first_failures.items())
        problems.append(f"{failed} rollouts failed, {max_failed} allowed (first {first})")
    if min_mean is not None and not (gate := mean_at_least(report.mean, min_mean)).held:
        problems.append(gate.message)
    passed = report.pass_rates[0].at if report.pass_rates else None
    if min_pass is not None and not (gate := mean_at_least(passed, min_pass)).held:
        problems.append(gate.message.replace("mean reward", "pass@1"))
    return problems


def _lines(rollouts: Sequence[Rollout]) -> list[str]:
    """One line for each: what came of it."""
    from osmosis_ai.eval.stored import last_words

    return [
        f"  row {rollout.row_index}: reward {rollout.reward:g}: {last_words(rollout)!r:.200}"
        for rollout in rollouts
    ]
