"""`osmosis validate`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from osmosis_ai.cli.code import code_options, read_code
from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON
from osmosis_ai.errors import UsageError


@click.command(epilog="Example: osmosis validate -m server:agent_loop")
@code_options
@click.option("--grader", help="Class to use when the entrypoint holds several graders.")
@click.option("--overrides", default="{}", hidden=True, help="The table [workflow] of a TOML, as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Also say what was found.")
@JSON
def validate(
    entrypoint: str | None,
    module: str | None,
    grader: str | None,
    overrides: str,
    verbose: bool,
    as_json: bool,
) -> None:
    """Import an agent loop or workflow and report everything that is wrong with it.

    Exit code 2 when something is; warnings are not. Each finding has a code that stays.
    """
    code = read_code(entrypoint, module)
    from osmosis_ai.rollout.validator import validate_entrypoint

    display = Display(as_json=as_json)
    result, _ = validate_entrypoint(
        code.entrypoint,
        workflow=code.attribute,
        grader=grader,
        workflow_overrides=json.loads(overrides),
    )
    findings = {
        "errors": [asdict(finding) for finding in result.errors],
        "warnings": [asdict(finding) for finding in result.warnings],
    }
    about = {"kind": result.kind, "name": result.agent_name, "tools": result.tool_count}
    display.data({"event": "validation", "valid": result.valid, **about, **findings, "found": result.found})
    display.out("\n".join(result.lines(verbose=verbose)))
    sys.exit(0 if result.valid else UsageError.exit_code)
