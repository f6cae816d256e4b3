"""`osmosis doctor`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.machine import Check, endpoints, keys, machine_checks
from osmosis_ai.cli.options import JSON, WORKSPACE, workspace_at
from osmosis_ai.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from osmosis_ai.config import Config

MARKS = {"ok": "ok  ", "warn": "warn", "fail": "FAIL"}


@click.command(epilog="Example: osmosis doctor eval.toml")
@click.argument("config", type=click.Path(path_type=Path), required=False)
@WORKSPACE
@JSON
def doctor(config: Path | None, workspace: Path, as_json: bool) -> None:
    """Look at what a run needs: Python, packages, SQLite, disk, ports, GPU; with CONFIG also its keys.

    What is wrong comes with the way to mend it. Exit code 4 when something fails, 2 when it is the
    configuration itself; warnings are not. Nothing leaves this machine, but for a connection to the
    endpoint that CONFIG names, to which nothing is sent.
    """
    display = Display(as_json=as_json)
    loaded, wrong = _load(config)
    found: list[Check] = []
    for check in _checks(workspace_at(workspace).root, loaded, wrong):
        display.data({"event": "check", **asdict(check)})
        display.out(line(check))
        found.append(check)
    failed = sum(check.state == "fail" for check in found)
    warned = sum(check.state == "warn" for check in found)
    display.data({"event": "diagnosis", "healthy": not failed, "failed": failed, "warned": warned})
    display.out(f"{failed} to mend, {warned} to look at" if failed or warned else "nothing is wrong")
    if failed:
        sys.exit(ConfigError.exit_code if wrong else InfrastructureError.exit_code)


def _load(path: Path | None) -> tuple[Config | None, list[Check]]:
    if path is None:
        return None, []
    from osmosis_ai.config import load_config

    try:
        return load_config(path), []
    except ConfigError as error:
        mend = "correct the file; `osmosis config schema` lets an editor help"
        return None, [Check("config", "fail", finding, mend) for finding in error.findings]


def _checks(workspace: Path, config: Config | None, wrong: list[Check]) -> Iterator[Check]:
    yield from wrong
    yield from machine_checks(workspace, config)
    if config is not None:
        yield from keys(config, os.environ)
        yield from endpoints(config)
    elif not wrong:
        yield Check("keys", "ok", "not looked at: `osmosis doctor eval.toml` looks for those that it names")


def line(check: Check) -> str:
    """What was found; on a second line how to mend it."""
    text = f"{MARKS[check.state]}  {check.name:<12} {check.found}"
    return f"{text}\n{'':19}to mend: {check.mend}" if check.mend else text
