"""A workspace in which a very small policy has learnt the calculator's format by heart, from four rows."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from e2e_bench import SFT, Bench, teach


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Made once per test session: by the first worker that needs it, while the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, is_made = shared / "taught", shared / "taught.is_made"
    with (shared / "taught.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed half-way
            folder.mkdir()
            teach(Bench(folder), rows=4, sft=SFT)
            is_made.touch()
    return Bench(folder)


@pytest.fixture
def bench(taught: Bench, tmp_path: Path) -> Bench:
    """A copy of the taught workspace for one test."""
    shutil.copytree(taught.folder, tmp_path / "bench")
    return Bench(tmp_path / "bench")
