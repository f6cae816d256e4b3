"""The configuration: its keys are frozen here, and every mistake is named at once with its place."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import pytest

from osmosis_ai.cli.config import config_schema
from osmosis_ai.config import TABLES, Config, beside, load_config
from osmosis_ai.controller.head_start import source_of
from osmosis_ai.errors import ConfigError

ROOT = Path(__file__).resolve().parent.parent
WHOLE = """
[rollout]
entrypoint = "agent.py"
[dataset]
path = "rows.jsonl"
[llm]
model = "scripted"
script = "model.py:answer"
"""

KEYS = {
    "run": "name seed",
    "rollout": "entrypoint url api_key_env protocol grader_entrypoint gateway_host debug_dir workflow "
    "grader max_concurrent gateway_workers agent_timeout_seconds grader_timeout_seconds retries",
    "dataset": "path limit offset rows sample seed",
    "llm": "model base_url api_key_env script timeout_seconds retries replay "
    "input_price output_price cached_input_price",
    "judge": "model base_url api_key_env script timeout_seconds retries",
    "policy": "path adapter lora_rank dtype device max_requests deterministic",
    "sampling": "temperature top_p max_tokens",
    "eval": "attempts pass_threshold failure_budget",
    "budget": "run_tokens run_dollars run_seconds rollout_tokens rollout_dollars",
    "train": "algorithm steps rows_per_step group_size advantage loss normalisation clip_low clip_high "
    "learning_rate warmup_steps final_learning_rate weight_decay max_grad_norm microbatch_tokens "
    "max_sample_tokens audit_gate checkpoint_every keep_checkpoints from_run min_reward batch_samples",
}


def write(folder: Path, text: str, name: str = "run.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def findings(path: Path, **overrides: object) -> list[str]:
    """What is wrong with the file, its path shortened to its name."""
    with pytest.raises(ConfigError) as caught:
        load_config(path, {key.replace("__", "."): value for key, value in overrides.items()})
    assert caught.value.exit_code == 2
    return [finding.replace(str(path), path.name) for finding in caught.value.findings]


def test_the_set_of_keys_is_what_it_was():
    """A new key is a decision: it becomes a line here, in docs/config.md and in the changelog."""
    assert {name: " ".join(table.model_fields) for name, table in TABLES.items()} == KEYS
    assert set(Config.model_fields) == {*KEYS, "workflow"}


def test_a_whole_file_is_read_and_knows_its_own_name(tmp_path: Path):
    config = load_config(write(tmp_path, WHOLE, "arithmetic.toml"))
    assert (config.run_name, config.rollout.entrypoint, config.eval.attempts) == ("arithmetic", "agent.py", 1)
    assert config.resolve("rows.jsonl") == tmp_path / "rows.jsonl"


def test_everything_that_is_wrong_is_said_at_once_line_by_line(tmp_path: Path):
    text = """workflw = 1
train = 3

[run]
nam = "x"
seed = "seven"

[rollout]
entrypont = "x.py"
max_concurrent = 0

[dataset]
path = "rows.jsonl"
limit = -1

[evl]
attempts = 1

[sampling]
temperature = "hot"
top_p = 2
"""
    found = findings(write(tmp_path, text))
    starts = [
        "run.toml:1:1: unknown table 'workflw'. Did you mean 'workflow'? Known here: budget, dataset, eval,",
        "run.toml:2:1: train = 3 must be a table: write [train] on a line of its own and its keys below.",
        "run.toml:5:1: unknown key 'run.nam'. Did you mean 'name'? Known here: name, seed.",
        'run.toml:6:1: run.seed = "seven" must be a valid integer. Seed of data order,',
        "run.toml:8:2: rollout.entrypoint is missing: Python file (relative to the config file)",
        "run.toml:9:1: unknown key 'rollout.entrypont'. Did you mean 'entrypoint'? Known here: agent_timeout",
        "run.toml:10:1: rollout.max_concurrent = 0 must be greater than or equal to 1.",
        "run.toml:14:1: dataset.limit = -1 must be greater than or equal to 1.",
        "run.toml:16:2: unknown table 'evl'. Did you mean 'eval'?",
        'run.toml:20:1: sampling.temperature = "hot" must be a valid number.',
        "run.toml:21:1: sampling.top_p = 2 must be less than or equal to 1.",
    ]
    assert len(found) == len(starts)
    for finding, start in zip(found, starts, strict=True):
        assert finding.startswith(start)


def test_a_key_of_another_table_is_sent_home_and_a_word_to_choose_gets_its_nearest(tmp_path: Path):
    text = f'{WHOLE}[eval]\ntemperature = 0\n[policy]\npath = "p"\ndevise = "cpu"\nadapter = "lorra"\n'
    assert [finding.split(" Known here")[0] for finding in findings(write(tmp_path, text))] == [
        "run.toml:10:1: unknown key 'eval.temperature'. It is a key of [sampling].",
        "run.toml:11:2: [llm] and [policy] are both given; keep one: [llm] for an external model, "
        "[policy] for a policy folder.",
        "run.toml:13:1: unknown key 'policy.devise'. Did you mean 'device'?",
        "run.toml:14:1: policy.adapter = \"lorra\" must be 'none' or 'lora' (did you mean 'lora'?). "
        "Train all weights or a LoRA adapter.",
    ]


def test_what_came_from_the_command_line_is_named_by_its_option(tmp_path: Path):
    path = write(tmp_path, WHOLE)
    found = findings(path, dataset__limt=1, eval__attempts="many", foo__bar=2, run__name="a b")
    assert [finding.split(": ")[0] for finding in found] == [
        "--name",
        "--set dataset.limt",
        "--set eval.attempts",
        "--set foo",
    ]
    assert "must be at most 96 letters, digits, '.', '_' and '-'" in found[0]
    assert "Did you mean 'limit'?" in found[1]


def test_the_command_line_wins_over_the_file(tmp_path: Path):
    config = load_config(write(tmp_path, WHOLE), {"eval.attempts": 4, "run.name": "other", "run.seed": None})
    assert (config.eval.attempts, config.run_name, config.run.seed) == (4, "other", 0)


def test_a_setting_below_something_that_is_no_table_is_a_finding(tmp_path: Path):
    found = findings(write(tmp_path, "train = 3\n" + WHOLE), train__steps=1)
    assert found[0].startswith("run.toml:1:1: train = 3 must be a table")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
def test_a_number_that_is_not_finite_is_refused(tmp_path: Path, value: str):
    text = f"{WHOLE}[train]\nlearning_rate = {value}\n[sampling]\ntemperature = {value}\n"
    assert [finding.split(" = ")[0] for finding in findings(write(tmp_path, text))] == [
        "run.toml:10:1: train.learning_rate",
        "run.toml:12:1: sampling.temperature",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('seed = "1"', "must be a valid integer"),
        ("seed = 1.0", "must be a valid integer"),
        ("seed = true", "must be a valid integer"),
        ("seed = -1", "must be greater than or equal to 0"),
        ("name = 7", "must be at most 96 letters"),
        ("name = '../up'", "must be at most 96 letters"),
        ("seed = 1979-05-27", 'run.seed = "1979-05-27" must be a valid integer'),
    ],
)
def test_values_are_never_coerced(tmp_path: Path, line: str, expected: str):
    [finding] = findings(write(tmp_path, f"[run]\n{line}\n{WHOLE}"))
    assert finding.startswith("run.toml:2:1: run.")
    assert expected in finding


def test_dotted_keys_and_inline_tables_have_their_place_too(tmp_path: Path):
    text = 'dataset = { path = "x", limt = 2 }\nrollout.entrypoint = 5\n'
    found = findings(write(tmp_path, text))
    assert [finding.split(": ")[0] for finding in found] == ["run.toml:1:25", "run.toml:2:9"]


def test_a_file_that_is_not_there_names_the_nearest(tmp_path: Path):
    write(tmp_path, WHOLE, "train.toml")
    [finding] = findings(tmp_path / "trian.toml")
    assert finding == f"no such config file: trian.toml. Did you mean {tmp_path / 'train.toml'}?"


def test_a_file_that_is_no_toml_or_no_text_says_where(tmp_path: Path):
    [toml] = findings(write(tmp_path, "[run\nname=1"))
    assert toml == "run.toml:1:5: not valid TOML: Expected ']' at the end of a table declaration"
    [end] = findings(write(tmp_path, '[run]\nname = """x'))
    assert end.startswith("run.toml:2:12: not valid TOML: Unterminated string")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    [text] = findings(tmp_path / "bytes.toml")
    assert text.startswith("bytes.toml: cannot be read as UTF-8 text")
    [folder] = findings(tmp_path)
    assert "Is a directory" in folder


def test_an_empty_file_lacks_two_tables(tmp_path: Path):
    assert findings(write(tmp_path, "")) == [
        "run.toml:1:1: the table [rollout] is missing: The user's code and how it is run.",
        "run.toml:1:1: the table [dataset] is missing: The rows.",
    ]


def test_a_file_whose_name_cannot_name_a_run_says_so(tmp_path: Path):
    [finding] = findings(write(tmp_path, WHOLE, "a #1.toml"))
    assert "the file's name 'a #1' cannot name a run" in finding
    assert "give one with --name or [run] name" in finding


def test_llm_and_policy_exclude_each_other_and_an_llm_needs_a_way_to_be_reached(tmp_path: Path):
    both = findings(write(tmp_path, WHOLE + '[policy]\npath = "p"\n'))
    assert both == [
        "run.toml:9:2: [llm] and [policy] are both given; keep one: [llm] for an external model, "
        "[policy] for a policy folder."
    ]
    assert "needs llm.script" in findings(write(tmp_path, WHOLE), llm__script="")[0]
    assert "llm.base_url is missing" in findings(write(tmp_path, WHOLE), llm__model="gpt")[0]
    assert findings(write(tmp_path, WHOLE + 'base_url = "localhost:8000/v1"\n')) == [
        "run.toml:9:1: llm.base_url must be a URL like https://api.example.com/v1, got 'localhost:8000/v1'"
    ]


def test_half_a_price_list_is_an_error(tmp_path: Path):
    path = write(tmp_path, WHOLE + "cached_input_price = 0.1\noutput_price = 2.0\n")
    assert findings(path) == [
        "run.toml:10:1: llm.output_price needs llm.input_price too, in dollars per million tokens; "
        "0 for what costs nothing."
    ]


def test_the_json_schema_for_editors_accepts_what_the_models_accept():
    schema = config_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in ROOT.rglob("examples/**/*.toml"):
        load_config(path)
        assert list(validator.iter_errors(tomllib.loads(path.read_text()))) == []
    wrong = {"rollout": {"entrypont": "x"}, "llm": {"model": 5}, "policy": {"path": "p", "adapter": "lorra"}}
    found = {error.json_path for error in validator.iter_errors(wrong)}
    assert found == {"$", "$.rollout", "$.llm.model", "$.policy.adapter"}  # "$": there is no [dataset]


def test_a_replay_names_its_run_and_nothing_else_does(tmp_path: Path):
    path = write(tmp_path, WHOLE)
    assert findings(path, llm__model="replay") == [
        '--set llm.model: llm.model = "replay" needs llm.replay = "RUN".'
    ]
    assert findings(path, llm__replay="old") == [
        '--set llm.replay: llm.replay is for llm.model = "replay" only; leave it out.'
    ]
    assert load_config(path, {"llm.model": "replay", "llm.replay": "old"}).llm.replay == "old"


def test_a_name_of_litellms_needs_no_base_url_and_a_plain_one_does(tmp_path: Path):
    path = write(tmp_path, WHOLE)
    assert load_config(path, {"llm.model": "anthropic/claude"}).llm.base_url == ""
    [missing] = findings(path, llm__model="claude")
    assert 'Or name the model as LiteLLM does, like "anthropic/claude-sonnet-4-5".' in missing


@pytest.mark.parametrize("folder", [Path(), Path("/project")])
def test_a_path_in_the_home_folder_is_there_wherever_the_configuration_is(folder: Path):
    assert beside(folder, "~/agent.py") == Path.home() / "agent.py"
    assert source_of(folder, "~/agent.py") == str((Path.home() / "agent.py").resolve())
    assert beside(folder, "~nosuchuser/agent.py") == folder / "~nosuchuser/agent.py"
