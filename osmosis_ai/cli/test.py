"""`osmosis test`: an agent loop or workflow on a dataset, with any model or with none; nothing is stored."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from osmosis_ai.cli.code import code_options, read_code
from osmosis_ai.cli.options import JSON, SET, run_async, setting
from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.errors import OsmosisError, UsageError

PATIENCE_SECONDS = 86_400.0  # of a person


@dataclass(frozen=True, slots=True)
class Model:
    """Who answers; exactly one of the first three, or the person."""

    name: str | None
    policy: str | None
    script: str | None
    base_url: str | None
    api_key_env: str | None
    be_the_model: bool

    def tables(self) -> dict[str, Any]:
        """The table [llm] or [policy]; neither where the person answers. Raises UsageError."""
        given = [self.name, self.policy, self.script, self.be_the_model or None]
        if sum(value is not None for value in given) != 1:
            raise UsageError("say who answers: one of --model, --policy, --script and --be-the-model")
        if self.name is not None and not self.base_url:
            raise UsageError(
                f"--model {self.name} needs --base-url, its endpoint, e.g. http://localhost:8000/v1 or "
                "https://api.openai.com/v1"
            )
        if self.policy is not None:
            path = self.policy if self.policy.startswith("run:") else str(Path(self.policy).absolute())
            return {"policy": {"path": path}}
        if self.script is not None:
            return {"llm": {"model": "scripted", "script": self.script}}
        if self.name is not None:
            url = {"base_url": self.base_url, "api_key_env": self.api_key_env or ""}
            return {"llm": {"model": self.name, **url}}
        return {}


@click.command(epilog="Example: osmosis test agent.py -d data/orders.jsonl --script model.py:answer --row 3")
@code_options
@click.option("-d", "--dataset", required=True, help="JSONL, CSV, Parquet or JSON file.")
@click.option("--model", help="Name of a model at --base-url.")
@click.option("--base-url", help="OpenAI-compatible endpoint, up to and including /v1.")
@click.option("--api-key-env", help="Environment variable that holds the endpoint's key.")
@click.option("--policy", metavar="DIR", help="A policy folder.")
@click.option("--script", help="file.py:function that answers, or a session that was saved (.jsonl).")
@click.option("--be-the-model", is_flag=True, help="You type the answers and tool calls; one row.")
@click.option("-i", "--interactive", is_flag=True, help="Pause after each answer; one row.")
@click.option("--row", type=click.IntRange(0), help="Only this row, counted from 0.")
@click.option("--limit", type=click.IntRange(1), help="At most so many rows.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Skip so many rows first.")
@click.option("--pass-threshold", type=float, help="A row with a smaller reward fails, too.")
@click.option("--grader", default="", help="Class to use when the entrypoint holds several graders.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the results to a JSON file.")
@SET
@JSON
def test(
    entrypoint: str | None,
    module: str | None,
    dataset: str,
    model: str | None,
    base_url: str | None,
    api_key_env: str | None,
    policy: str | None,
    script: str | None,
    be_the_model: bool,
    interactive: bool,
    row: int | None,
    limit: int | None,
    offset: int,
    pass_threshold: float | None,
    grader: str,
    output: Path | None,
    settings: tuple[str, ...],
    as_json: bool,
) -> None:
    """Run an agent loop or workflow on the rows of a dataset. Nothing is stored.

    Exit code 1 when a row has no reward, or one below --pass-threshold. With --interactive one rollout is
    stepped through in the terminal; with --be-the-model no model is needed at all: you type the answers,
    see the results of the tools and the reward, and save the session as a script for later tests.
    """
    code = read_code(entrypoint, module)
    who = Model(model, policy, script, base_url, api_key_env, be_the_model)
    one_row = interactive or be_the_model or row is not None
    if one_row:
        offset, limit = row if row is not None else offset, 1
    tables = {
        "rollout": {"entrypoint": code.entrypoint, "workflow": code.attribute or "", "grader": grader},
        "dataset": {"path": str(Path(dataset).absolute()), "offset": offset, "limit": limit},
        **who.tables(),
    }
    if interactive or be_the_model:
        tables["rollout"] |= {"agent_timeout_seconds": PATIENCE_SECONDS, "retries": 0}
    source, overrides = Path.cwd() / "test.toml", dict(setting(text) for text in settings)
    with HeadStart.of_tables(tables, overrides, source) as head_start:
        head_start.begin()
        from osmosis_ai.cli import test_session
        from osmosis_ai.cli.display import Display
        from osmosis_ai.config import config_of

        config = config_of(tables, source, overrides)
        if interactive or be_the_model:
            rollouts = run_async(test_session.step(config, be_the_model, head_start))
        else:
            display = Display(as_json=as_json)
            rollouts = run_async(test_session.run_rows(config, display, pass_threshold, head_start))
    if output is not None:
        report = test_session.report_of(rollouts, pass_threshold)
        output.write_text(json.dumps(report, indent=2) + "\n")
    failed = [rollout for rollout in rollouts if not test_session.passed(rollout, pass_threshold)]
    sys.exit(OsmosisError.exit_code if failed else 0)
