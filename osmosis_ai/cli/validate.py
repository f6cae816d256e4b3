"""`osmosis validate`."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osmosis_ai.cli.code import Code, code_options, read_code
from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON
from osmosis_ai.errors import UsageError

if TYPE_CHECKING:
    from osmosis_ai.rollout.discovery import Entrypoint
    from osmosis_ai.rollout.validator import ValidationResult


@click.command(epilog="Example: osmosis validate agent.py --dataset data/orders.jsonl")
@code_options
@click.option("--grader", help="Class to use when the entrypoint holds several graders.")
@click.option(
    "--dataset", type=click.Path(path_type=Path), help="Try the grader on answers to the rows of this file."
)
@click.option(
    "--answer", default="{label}", show_default=True, help="With --dataset: the form of a right answer."
)
@click.option("--overrides", default="{}", hidden=True, help="The table [workflow] of a TOML, as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Also say what was found.")
@JSON
def validate(
    entrypoint: str | None,
    module: str | None,
    grader: str | None,
    dataset: Path | None,
    answer: str,
    overrides: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Import an agent loop or workflow and report everything that is wrong with it.

    With --dataset the grader is tried too: the right answer of a row (its label) must get a higher reward
    than an empty one and than the right answer of another row.

    Exit code 2 when something is wrong; warnings are not. Each finding has a code that stays.
    """
    if "{label}" not in answer:
        raise UsageError(f"--answer {answer!r}: write {{label}} where the label belongs")
    code = read_code(entrypoint, module)
    display = Display(as_json=as_json)
    with contextlib.redirect_stdout(sys.stderr):  # what the code prints is no result of ours
        result, found = _validated(code, grader, overrides)
        if dataset is not None:
            _try_grader(result, found, dataset, answer)
    findings = {
        "errors": [asdict(finding) for finding in result.errors],
        "warnings": [asdict(finding) for finding in result.warnings],
    }
    about = {"kind": result.kind, "name": result.agent_name, "tools": result.tool_count}
    display.data({"event": "validation", "valid": result.valid, **about, **findings, "found": result.found})
    display.out("\n".join(result.lines(verbose=verbose)))
    sys.exit(0 if result.valid else UsageError.exit_code)


def _validated(code: Code, grader: str | None, overrides: str) -> tuple[ValidationResult, Entrypoint | None]:
    from osmosis_ai.rollout.validator import validate_entrypoint

    return validate_entrypoint(
        code.entrypoint,
        workflow=code.attribute,
        grader=grader,
        workflow_overrides=json.loads(overrides),
    )


def _try_grader(result: ValidationResult, found: Entrypoint | None, dataset: Path, answer: str) -> None:
    """Only what may be run at all is tried."""
    from osmosis_ai.datasets import load_rows
    from osmosis_ai.rollout.canaries import check_grader

    rows = load_rows(dataset)
    if found is not None and found.grader is not None:
        check_grader(result, found.grader, found.grader_config, rows, answer)
