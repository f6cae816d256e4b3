"""`osmosis eval run`."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osmosis_ai.cli.options import (
    config_options,
    overrides_of,
    run_async,
    selection_options,
    setting,
    workspace_at,
)
from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.errors import InfrastructureError, OsmosisError, UsageError

if TYPE_CHECKING:  # help needs none of it, and the user's code is imported while it is
    from osmosis_ai.cli.display import Display
    from osmosis_ai.eval.tally import EvalReport

PARTIAL = 5


@click.command(epilog="Example: osmosis eval run eval.toml --name second")
@selection_options
@click.option(
    "--accept-changes",
    is_flag=True,
    help="Go on although model, data, code or settings have changed; the run records what did.",
)
@click.option(
    "--retry",
    type=click.Choice(["errors", "timeouts", "failed"]),  # of eval.run.RETRY
    help="Run again what ended so: errors (of workflow, grader, model), timeouts, failed (both).",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask, whatever it costs.")
@click.option("--dry-run", is_flag=True, help="Show the plan, and where each value comes from; run nothing.")
@click.option("--by", metavar="COLUMN", help="Report by this metadata column of the dataset too.")
@click.option("--fail-under", type=float, metavar="REWARD", help="Exit code 3 when the mean reward is below.")
@click.option("--junit", type=click.Path(path_type=Path), help="Write the results as JUnit XML to this file.")
@config_options
def run(
    config: Path,
    name: str | None,
    settings: tuple[str, ...],
    fresh: bool,
    accept_changes: bool,
    retry: str | None,
    yes: bool,
    dry_run: bool,
    by: str | None,
    fail_under: float | None,
    junit: Path | None,
    workspace: Path,
    as_json: bool,
    **selection: Any,
) -> None:
    """Run the workflow of CONFIG on every row and report the rewards.

    With prices in [llm] a few rows are run first; they say what the rest will take, and on a terminal you are
    asked. Without a terminal, money needs --yes or a [budget].

    The same command goes on where it stopped: what has a result is not run again, but with --retry. A result
    that is superseded stays in the store and counts no more. A dead endpoint or rollout server stops the run
    early with what it has. Exit code 5 when some rollouts could not be brought to a result for reasons that
    are not the workflow's or the grader's (4 when that is all of them), 1 when the workflow or the grader
    failed in every rollout.
    """
    overrides = overrides_of(name, settings, selection)
    with HeadStart() if dry_run else HeadStart.of_config(config, overrides) as head_start:
        if fresh or not _is_there(workspace_at(workspace).run_folder(head_start.run_name)):
            head_start.begin()  # else it may turn out that nothing is left to do
        from osmosis_ai.cli.display import Display
        from osmosis_ai.cli.eval_session import Wishes, run_eval
        from osmosis_ai.config import load_config
        from osmosis_ai.eval.run import RETRY

        wishes = Wishes(fresh, accept_changes, RETRY.get(retry or "", frozenset()), yes, by)
        read, display = load_config(config, overrides), Display(as_json=as_json)
        _check_gates(junit, fail_under)
        if dry_run:
            from osmosis_ai.cli.dry_run import show_plan

            origins = _origins(name, settings, selection)
            how = {"fresh": fresh, "accept_changes": accept_changes}
            return run_async(show_plan(read, workspace_at(workspace), origins, **how, display=display))
        report = run_async(run_eval(read, workspace_at(workspace), wishes, display, junit, head_start))
    sys.exit(_status(report, fail_under, display))


def _is_there(folder: Path) -> bool:
    try:
        return folder.exists()
    except OSError:  # no name of a folder; the configuration's check says so
        return False


def _check_gates(junit: Path | None, fail_under: float | None) -> None:
    """Raise UsageError for what could not be written or reached, before anything is run."""
    if junit is not None and not junit.absolute().parent.is_dir():
        raise UsageError(f"--junit {junit}: there is no folder {junit.absolute().parent}; make it first")
    if fail_under is not None and not math.isfinite(fail_under):
        raise UsageError(f"--fail-under {fail_under}: a mean reward is a number; give one that it can reach")


def _status(report: EvalReport, fail_under: float | None, display: Display) -> int:
    """The exit code, and on which gate it depends."""
    from osmosis_ai.eval.gates import exit_code as gated
    from osmosis_ai.eval.gates import mean_at_least

    gates = [] if fail_under is None else [mean_at_least(report.mean, fail_under)]
    for gate in gates:
        display.note(gate.message)
    return gated(gates, exit_code(report))


def _origins(name: str | None, settings: tuple[str, ...], selection: dict[str, Any]) -> dict[str, str]:
    """Where the values come from that are not in the file: by key, and of the workspace."""
    origins = dict.fromkeys([setting(text)[0] for text in settings], "--set")
    origins |= {f"dataset.{key}": f"--{key}" for key, value in selection.items() if value is not None}
    origins |= {} if name is None else {"run.name": "--name"}
    source = click.get_current_context().get_parameter_source("workspace")
    of_workspace = {"COMMANDLINE": "--workspace", "ENVIRONMENT": "OSMOSIS_WORKSPACE in the environment"}
    return origins | {"workspace": of_workspace.get(source.name if source else "", "default")}


def exit_code(report: EvalReport) -> int:
    """Nothing graded is no result; a part that is not the user code's is missing from a partial one."""
    from osmosis_ai.types import RETRIED

    if report.by_choice:
        return PARTIAL
    unfinished = sum(report.failures.get(s.value, 0) for s in RETRIED) or bool(report.stopped)
    if report.graded:
        return PARTIAL if unfinished else 0
    return InfrastructureError.exit_code if unfinished else OsmosisError.exit_code
