"""`osmosis eval submit` and `osmosis train submit`: a run for a platform, checked here."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import CONFIG, JSON, SET, WORKSPACE, run_async, setting, workspace_at
from osmosis_ai.errors import OsmosisError, UsageError

DRY_RUN = click.option("--dry-run", is_flag=True, help="Check everything, submit nothing.")
Kind = Literal["eval", "train"]


@click.command("submit", epilog="Example: osmosis eval submit eval.toml --dry-run")
@CONFIG
@DRY_RUN
@SET
@WORKSPACE
@JSON
def submit_eval(
    config: Path, dry_run: bool, settings: tuple[str, ...], workspace: Path, as_json: bool
) -> None:
    """Check an eval of CONFIG with --dry-run; there is no platform to submit it to.

    Checked are the configuration, paths, the import of the code, what it defines, the dataset, who answers
    and the packages that are needed. All findings come at once, with exit code 2.
    """
    _submit("eval", config, dry_run, settings, workspace, Display(as_json=as_json))


@click.command("submit", epilog="Example: osmosis train submit train.toml --dry-run")
@CONFIG
@DRY_RUN
@SET
@WORKSPACE
@JSON
def submit_train(
    config: Path, dry_run: bool, settings: tuple[str, ...], workspace: Path, as_json: bool
) -> None:
    """Check a training of CONFIG with --dry-run; there is no platform to submit it to.

    Checked are the configuration, paths, the import of the code, what it defines, the dataset, the policy
    and the packages that are needed. All findings come at once, with exit code 2.
    """
    _submit("train", config, dry_run, settings, workspace, Display(as_json=as_json))


def _submit(
    kind: Kind, config: Path, dry_run: bool, settings: tuple[str, ...], workspace: Path, display: Display
) -> None:
    if not dry_run:
        raise OsmosisError(
            f"no platform is configured, so nothing was submitted. `osmosis {kind} run {config}` runs it on "
            f"this machine; `osmosis {kind} submit {config} --dry-run` checks it"
        )
    from osmosis_ai.controller.preflight import preflight

    overrides: dict[str, Any] = dict(setting(text) for text in settings)
    findings, facts = run_async(preflight(config, overrides, kind, workspace_at(workspace)))
    plain = [asdict(finding) for finding in findings]
    display.data({"event": "preflight", "valid": not findings, "findings": plain, **facts})
    for finding in findings:
        display.out(f"{finding.code}: {finding.message}")
    if findings:
        display.out(f"{len(findings)} to mend")
        sys.exit(UsageError.exit_code)
    display.out(f"nothing is wrong: run {facts['run']}, {facts['rows']} rows, {facts['rollouts']} rollouts")
