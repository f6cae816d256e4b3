"""The documents that are generated, and the facts in the written ones that code can check."""

import ast
import re
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from osmosis_ai.cli import documents
from osmosis_ai.cli.eval_session import _rollout_line
from osmosis_ai.cli.groups import root
from osmosis_ai.cli.main import COMMANDS, help_text
from osmosis_ai.config import load_config
from osmosis_ai.controller.checkpoints import Checkpoints
from osmosis_ai.controller.fine_tune import FineTuning, fine_tune
from osmosis_ai.controller.loop import TrainSettings, Update, step_metrics
from osmosis_ai.engine.base import EngineSpec
from osmosis_ai.engine.scripted import ScriptedEngine
from osmosis_ai.eval.run import summarise
from osmosis_ai.eval.statistics import Estimate
from osmosis_ai.rollout.discovery import load_entrypoint
from osmosis_ai.store.base import RunRecord, StepRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.train.advantages import ADVANTAGES
from osmosis_ai.train.audit import Audit
from osmosis_ai.train.batch import build_batch
from osmosis_ai.train.funnel import LOST_BEFORE, STAGES
from osmosis_ai.train.losses import LOSSES
from osmosis_ai.types import RETRIED, Group, LossInput, Rollout, Row, Status, TrainingSample

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
WRITTEN = [
    "concepts.md",
    "eval.md",
    "loop.md",
    "metrics.md",
    "tokens.md",
    "troubleshooting.md",
    "writing-agents.md",
]


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# --- the generated ones


def test_the_generated_documents_are_what_the_code_says():
    assert [path.name for path in documents.stale(ROOT)] == []


def test_a_stale_document_is_named_and_written_anew(tmp_path):
    run = CliRunner().invoke
    assert run(documents.main, ["--folder", str(tmp_path)]).exit_code == 0
    (tmp_path / "docs" / "cli.md").write_text("yesterday's")

    checked = run(documents.main, ["--check", "--folder", str(tmp_path)])
    assert (checked.exit_code, checked.output) == (
        1,
        "not what the code says: docs/cli.md. Run `make docs` and commit the result.\n",
    )
    assert run(documents.main, ["--folder", str(tmp_path)]).exit_code == 0
    assert run(documents.main, ["--check", "--folder", str(tmp_path)]).exit_code == 0


def test_the_command_reference_does_not_depend_on_the_terminal(monkeypatch):
    wide = documents.cli_reference()
    monkeypatch.setenv("COLUMNS", "40")
    assert documents.cli_reference() == wide
    for group, (_, commands) in COMMANDS.items():
        for command in [""] if isinstance(commands, str) else commands:
            assert f"## osmosis {group} {command}".rstrip() + "\n" in wide


def test_the_help_that_is_printed_without_click_is_the_help_that_click_prints():
    assert CliRunner().invoke(root, ["--help"], prog_name="osmosis").output == help_text()


# --- the written ones


@pytest.mark.parametrize("name", WRITTEN)
def test_links_lead_to_files_and_headings_that_exist(name):
    for target in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text_of(name)):
        file, anchor = target
        if file.startswith("http"):
            continue
        path = (DOCS / file).resolve() if file else DOCS / name
        assert path.exists(), f"{name} links to {file}, which is not there"
        if anchor:
            assert anchor in anchors(path), f"{name} links to {path.name}#{anchor}, which is no heading"


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_documents_that_the_code_points_to_are_there():
    for file in (ROOT / "osmosis_ai").rglob("*.py"):
        for name, anchor in re.findall(
            r"docs/([a-z-]+\.md)(?:#([a-z-]+))?", file.read_text(encoding="utf-8")
        ):
            assert (DOCS / name).is_file(), f"{file.name} points to docs/{name}"
            assert not anchor or anchor in anchors(DOCS / name), f"{file.name}: docs/{name}#{anchor}"


# --- metrics


def documented(section: str) -> set[str]:
    """The names in the first column of the tables of a section of `metrics.md`."""
    text = text_of("metrics.md").split(f"\n## {section}\n")[1].split("\n## ")[0]
    return set(re.findall(r"^\| `([\w.]+)` \|", text, flags=re.MULTILINE))


def dotted(value: dict, leaves: set[str] = frozenset(), above: str = "") -> set[str]:
    """{"a": 1, "b": {"c": 2}} -> {"a", "b.c"}; a name in `leaves` is not opened."""
    names = set()
    for key, inner in value.items():
        name = above + key
        inside = isinstance(inner, dict) and name not in leaves
        names |= dotted(inner, leaves, name + ".") if inside else {name}
    return names


def test_the_metrics_of_a_training_step_are_documented_and_no_others():
    group = Group("s1.g0", Row(0, []), [])
    batch = build_batch([group], [], ADVANTAGES["mean_baseline"])
    one = torch.ones(1)
    sums = LOSSES["grpo"](LossInput(one, one, one, one, 1.0)).sums
    update = Update(Audit(0, 0.0, 0.0, 0.0), 0.0, 0.0, 0.0, dict(sums))
    metrics = step_metrics(batch, update, {"rollouts": 1.0, "learning": 1.0}, fresh_tokens=4)
    assert dotted(metrics, {"funnel.stages", "funnel.losses", "branches"}) == documented("A training step")


async def test_the_metrics_of_a_fine_tuning_step_are_documented_and_no_others(tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text('{"vocab_size": 9, "max_position_embeddings": 9}')
    engine, store = ScriptedEngine([]), SqliteStore(tmp_path / "osmosis.db")
    await engine.open(EngineSpec(tmp_path / "policy"))
    await store.create_run(RunRecord("r", "train", "running", 0.0, {}, {}))
    row = TrainingSample([1, 2], [0, 1], [0.0] * 2, [0.0, 1.0], [-1] * 2, [1.0] * 2, "", "r", "s")
    settings = TrainSettings(
        steps=1, seed=0, rows_per_step=1, group_size=2, advantage="mean_baseline", loss="grpo",
        normalisation="token_mean", loss_params={}, learning_rate=1.0, warmup_steps=0,
        final_learning_rate=1.0, weight_decay=0.0, max_grad_norm=1.0, microbatch_tokens=9,
        max_sample_tokens=9, audit_gate=1.0, audit_mean_gate=1.0,
    )  # fmt: skip
    records: list[StepRecord] = []
    await fine_tune(
        FineTuning("r", [row], 1, settings, engine, store, Checkpoints(tmp_path / "run", every=1, keep=1)),
        records.append,
    )
    await engine.close()
    await store.close()
    assert dotted(records[0].metrics) == documented("A fine-tuning step")


def test_every_reason_of_the_funnel_is_documented_with_the_stage_that_it_misses():
    text = text_of("metrics.md").split("\n## Reasons in the funnel\n")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text, flags=re.MULTILINE)) == LOST_BEFORE
    assert set(re.findall(r"`(\w+)`", text_of("metrics.md"))) >= set(STAGES)


def test_the_lines_of_an_eval_are_documented_and_no_others():
    rollout = Rollout("r.r0.m0.a0", "r", row_index=0, group_id="r0", member=0)
    assert set(_rollout_line(rollout.outcome)) - {"event"} == documented("A rollout line")
    report = summarise([rollout], attempts=1, pass_threshold=1.0)
    assert {field.name for field in fields(report)} | {"by"} == documented("An eval report")
    estimates = re.findall(r"`(\w+)`", text_of("metrics.md").split("\nAn estimate ")[1])
    assert {field.name for field in fields(Estimate)} <= set(estimates)


def test_every_status_of_a_rollout_is_documented():
    text = text_of("concepts.md").split("\n## How a rollout ends\n")[1].split("\n## ")[0]
    documented_ones = re.findall(r"^\| `(\w+)` \|", text, flags=re.MULTILINE)
    assert set(documented_ones) == {status.value for status in Status if status.is_terminal}
    tried_again = set(re.findall(r"^\| `(\w+)` \|.*\| yes \|$", text, flags=re.MULTILINE))
    assert tried_again == {status.value for status in RETRIED}


# --- error texts


def texts_of_the_source() -> set[str]:
    """Every text in the source, on one line, with "…" where values are put in."""
    texts = set()
    for file in (ROOT / "osmosis_ai").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                texts.add("".join(str(part) for part in parts).replace("\n", " "))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value.replace("\n", " "))
    return texts


def is_written(error: str, texts: set[str]) -> bool:
    """Whether the fixed parts of `error` stand in this order in one text of the source."""
    parts = [re.escape(part.strip()) for part in error.split("…") if part.strip(" .,:;?()")]
    pattern = re.compile(".*".join(parts))
    return any(pattern.search(text) for text in texts)


def quoted_errors() -> list[str]:
    return re.findall(r"^```text\n(.*?)\n```$", text_of("troubleshooting.md"), flags=re.MULTILINE | re.DOTALL)


def test_each_error_that_is_quoted_is_one_that_the_code_writes():
    texts = texts_of_the_source()
    assert [error for error in quoted_errors() if not is_written(error, texts)] == []
    assert len(quoted_errors()) > 50


def test_an_error_that_the_code_does_not_write_would_be_noticed():
    texts = texts_of_the_source()
    assert is_written("policy version …: sampler and trainer differ by …", texts)
    assert not is_written("policy version …: sampler and trainer disagree by …", texts)
    assert not is_written("sampler and trainer differ by …: policy version …", texts)


# --- examples


def test_the_agents_of_the_documents_can_be_loaded_and_configured(tmp_path):
    blocks = re.findall(r"```python\n(# (\w+)\.py\n.*?)```", text_of("writing-agents.md"), flags=re.DOTALL)
    assert [name for _, name in blocks] == ["strands_agent", "openai_agents_agent"]
    for source, name in blocks:
        (tmp_path / f"documented_{name}.py").write_text(source)
    strands = load_entrypoint(
        str(tmp_path / "documented_strands_agent.py"), workflow_overrides={"max_model_calls": 6}
    )
    assert (strands.workflow.__name__, strands.workflow_config.max_model_calls) == ("SolverWorkflow", 6)
    agents = load_entrypoint(str(tmp_path / "documented_openai_agents_agent.py"))
    assert (agents.grader.__name__, agents.workflow_config) == ("SolverGrader", None)


def test_the_tables_of_the_documents_are_valid_configurations(tmp_path):
    for name in ("loop.md", "writing-agents.md"):
        for table in re.findall(r"```toml\n(.*?)```", text_of(name), flags=re.DOTALL):
            needed = {"rollout": 'entrypoint = "a.py"', "dataset": 'path = "rows.jsonl"'}
            rest = "".join(f"[{key}]\n{line}\n" for key, line in needed.items() if f"[{key}]" not in table)
            (tmp_path / "config.toml").write_text(table + rest)
            load_config(tmp_path / "config.toml")
