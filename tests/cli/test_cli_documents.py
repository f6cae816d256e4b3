"""The documents that are generated, and the facts in the written ones that code can check."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from osmosis_ai.cli import documents
from osmosis_ai.cli.groups import root
from osmosis_ai.cli.main import COMMANDS, help_text

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
WRITTEN = ["concepts.md", "loop.md", "tokens.md", "metrics.md", "troubleshooting.md", "writing-agents.md"]


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


# --- the generated ones


def test_the_generated_documents_are_what_the_code_says():
    assert [path.name for path in documents.stale(DOCS)] == []


def test_a_stale_document_is_named_and_written_anew(tmp_path):
    run = CliRunner().invoke
    assert run(documents.main, ["--folder", str(tmp_path)]).exit_code == 0
    (tmp_path / "cli.md").write_text("yesterday's")

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
        for command in commands:
            assert f"## osmosis {group} {command}\n" in wide


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
