"""`osmosis eval grade`: another grader over stored rollouts."""

from __future__ import annotations

from pathlib import Path

import click

from osmosis_ai.cli.options import DATASET, JSON, WORKSPACE, run_async, workspace_at


@click.command("grade", epilog="Example: osmosis eval grade hello --grader agent.py:OrderGrader")
@click.argument("run_id")
@click.option("--grader", required=True, metavar="FILE.py:CLASS", help="The grader; CLASS if it has several.")
@click.option("--name", help="Name of the new run; RUN-CLASS without it.")
@DATASET
@click.option(
    "--judge",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Take [judge] from this file; without it, the one of the run.",
)
@click.option("--timeout", type=click.FloatRange(0, min_open=True), help="Seconds of one grade() call.")
@click.option("--max-concurrent", type=click.IntRange(1), default=16, show_default=True)
@WORKSPACE
@JSON
def grade(
    run_id: str,
    grader: str,
    name: str | None,
    dataset: Path | None,
    judge: Path | None,
    timeout: float | None,
    max_concurrent: int,
    workspace: Path,
    as_json: bool,
) -> None:
    """Score the stored rollouts of eval RUN again, without a model call.

    The new rewards are a run of their own, RUN stays as it is; what changed is shown. Rollouts whose
    workflow failed are taken over as they are. The same command goes on where it stopped.
    """
    from osmosis_ai.cli.display import Display
    from osmosis_ai.cli.grade_session import Asked, grade_stored, read_grader, show

    grading = read_grader(grader, max_concurrent)
    name = name or f"{run_id}-{grading.grader.__name__}"
    asked = Asked(run_id, name, dataset, judge, timeout, workspace_at(workspace))
    display = Display(as_json=as_json)
    show(*run_async(grade_stored(asked, grading, display)), display)
