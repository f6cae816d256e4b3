"""A published schema keeps its promises: what programs read stays there, of the same type."""

from __future__ import annotations

import copy
import json

from click.testing import CliRunner

from osmosis_ai.cli import documents
from osmosis_ai.cli.schemas import broken, command_schema


def changed(change) -> list[str]:
    published = command_schema("eval run")
    schema = copy.deepcopy(published)
    change(next(kind for kind in schema["anyOf"] if kind["properties"]["event"]["const"] == "rollout"))
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
