"""What `--json` prints, of every command, held against the published schemas."""

from __future__ import annotations

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
from click.testing import CliRunner
from stored_workspace import Bench

from osmosis_ai.cli import documents
from osmosis_ai.cli.lines import LINES
from osmosis_ai.cli.main import command_names
from osmosis_ai.cli.schemas import broken, command_schema

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
POLICY = "policy new policy --from-run hello --hidden-size 8 --layers 1"
TRAIN = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "data/orders.jsonl"
[policy]
path = "policy"
[sampling]
max_tokens = 4
[train]
steps = 1
rows_per_step = 2
group_size = 2
"""
# command -> what is tried, in the project of `osmosis init hello` after its eval
TRIED = {
    "init": ["init elsewhere"],
    "doctor": ["doctor eval.toml"],
    "validate": ["validate agent.py"],
    "test": ["test agent.py -d data/orders.jsonl --script model.py:answer --limit 2"],
    "dataset validate": ["dataset validate data/orders.jsonl"],
    "dataset preview": ["dataset preview data/orders.jsonl"],
    "policy new": [POLICY],
    "eval run": ["eval run eval.toml --set dataset.limit=4 --name second"],
    "eval submit": ["eval submit eval.toml --dry-run", "eval submit eval.toml --dry-run --set a.b=1"],
    "eval compare": ["eval compare hello second --by items"],
    "eval grade": ["eval grade hello --grader agent.py --name again"],
    "train run": ["train run train.toml --set train.steps=1"],
    "train submit": ["train submit train.toml --dry-run"],
    "runs list": ["runs list"],
    "runs show": ["runs show hello", "runs show hello --row 0", "runs show train"],
    "runs export": ["runs export hello -o hello.jsonl"],
    "runs import": ["runs import hello.jsonl --workspace other"],
    "config schema": ["config schema"],
    "report": ["report hello -o report.html"],
    "drift": ["drift hello"],
    "runs wire": ["runs wire hello.r0.m0.a0"],
    "runs delete": ["runs delete again --dry-run", "runs delete again --yes"],
    "runs prune": ["runs prune --keep 0 --dry-run"],
    "completion": ["completion zsh"],
    "sql": ['sql "SELECT run_id, reward, 1 AS one, NULL AS no_value FROM rollouts"'],
}


def test_every_command_has_declared_its_lines_and_is_tried_here():
    assert set(LINES) == {" ".join(name) for name in command_names()}
    assert {*TRIED, "serve"} == set(LINES)


def test_every_line_of_every_command_is_what_its_schema_says(tmp_path, monkeypatch, capsys):
    """One test, because the commands need what those before them have made."""
    bench = Bench(tmp_path, monkeypatch, capsys)
    bench.run("init", "hello")
    monkeypatch.chdir(tmp_path / "hello")
    Path("train.toml").write_text(TRAIN)
    bench.run("eval", "run", "eval.toml", "--set", "dataset.limit=4")
    for command, tries in TRIED.items():
        for arguments in tries:
            done = bench.run(*shlex.split(arguments), "--json")
            assert done.code in (0, 2), f"{arguments}: {done.err}"
            assert done.out, arguments
            for line in done.out.splitlines():
                hold(command, json.loads(line))


def hold(command: str, line: dict[str, Any]) -> None:
    """The line is valid, and no field of it is undeclared."""
    schema = json.loads((SCHEMAS / f"{command.replace(' ', '-')}.schema.json").read_text())
    jsonschema.validate(line, schema, cls=jsonschema.Draft202012Validator)
    kinds = [kind["properties"] for kind in schema.get("anyOf", [schema])]
    declared = [set(kind) for kind in kinds if kind["event"]["const"] == line["event"]]
    assert any(set(line) <= fields for fields in declared), f"{command}: {line} has more than {declared}"
    assert list(line)[:2] == ["event", "schema_version"]


# --- a published schema keeps its promises


def changed(change) -> list[str]:
    published = command_schema("eval run")
    schema = copy.deepcopy(published)
    change(schema["anyOf"][0])
    return broken(published, schema)


def test_a_field_that_goes_or_changes_its_type_breaks_a_promise_of_the_version():
    assert changed(lambda line: line["properties"].pop("reward")) == [
        "rollout.reward: null or number, always"
    ]
    assert changed(lambda line: line["properties"].update(turns={"type": "number"})) == [
        "rollout.turns: integer, always"
    ]
    assert changed(lambda line: line["required"].remove("turns")) == ["rollout.turns: integer, always"]


def test_a_further_field_a_further_status_and_a_new_version_break_none():
    assert changed(lambda line: line["properties"].update(cost={"type": "number"})) == []
    published = command_schema("eval run")
    schema = copy.deepcopy(published)
    schema["$defs"]["Status"]["enum"].append("lost")
    assert broken(published, schema) == []
    for kind in schema["anyOf"]:
        kind["properties"] = {"event": kind["properties"]["event"], "schema_version": {"const": 2}}
    assert broken(published, schema) == []


def test_what_is_nested_is_promised_too():
    published = command_schema("eval run")
    schema = copy.deepcopy(published)
    del schema["$defs"]["Estimate"]["properties"]["low"]
    lost = broken(published, schema)
    assert "report.mean.low: null or number, always" in lost
    assert "report.pass_rates[].at.low: null or number, always" in lost


def test_the_documents_are_not_written_over_a_promise_that_is_not_kept(tmp_path):
    run = CliRunner().invoke
    assert run(documents.main, ["--folder", str(tmp_path)]).exit_code == 0
    file = tmp_path / "docs" / "schemas" / "sql.schema.json"
    schema = json.loads(file.read_text())
    schema["properties"]["seconds"] = {"type": "number"}
    file.write_text(json.dumps(schema))
    for arguments in ([], ["--check"]):
        done = run(documents.main, [*arguments, "--folder", str(tmp_path)])
        assert (done.exit_code, done.output) == (
            1,
            "promised to readers of --json and gone; keep it, or raise SCHEMA_VERSION:\n"
            "docs/schemas/sql.schema.json: row.seconds: number\n",
        )
    assert json.loads(file.read_text()) == schema
