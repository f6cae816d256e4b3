"""The page for users of the public SDK: every name that it calls the same can be imported."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-osmosis-sdk.md").read_text()


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


ROWS = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section("The same"), flags=re.MULTILINE)
SAME = [(module, name) for module, names in ROWS for name in re.findall(r"`(\w+)`", names)]


@pytest.mark.parametrize(("module", "name"), SAME)
def test_each_name_that_is_the_same_can_be_imported(module: str, name: str):
    assert getattr(importlib.import_module(module), name) is not None


def test_the_page_is_about_all_of_both_styles():
    assert len(SAME) > 130
    assert len(set(SAME)) == len(SAME)


def test_what_is_not_here_is_not_here():
    rows = [line.split(" | ")[0] for line in section("Not here").splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {"detect_public_ip", "MultiTurnMode", "ControllerAuth"} <= named
    rollout = importlib.import_module("osmosis_ai.rollout")
    assert [name for name in sorted(named) if hasattr(rollout, name)] == []
