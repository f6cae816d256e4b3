"""A workspace in which a very small policy has learnt the calculator's format by heart, from four rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e_bench import CALCULATOR, RECORD, SFT, Bench


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Recorded, made and fine-tuned once per test session, by the commands that a user would type."""
    bench = Bench(tmp_path_factory.mktemp("taught"))
    rows = (CALCULATOR / "data" / "train.jsonl").read_text().splitlines()[:4]
    (bench.folder / "four.jsonl").write_text("\n".join(rows) + "\n")
    bench.write("record.toml", RECORD)
    bench.write("sft.toml", SFT)
    bench.osmosis("eval", "run", "record.toml")
    bench.osmosis("policy", "new", "start", "--from-run", "record", "--hidden-size", "32", "--layers", "2")
    bench.osmosis("train", "run", "sft.toml")
    return bench


@pytest.fixture
def bench(taught: Bench, tmp_path: Path) -> Bench:
    """A copy of the taught workspace for one test."""
    shutil.copytree(taught.folder, tmp_path / "bench")
    return Bench(tmp_path / "bench")
