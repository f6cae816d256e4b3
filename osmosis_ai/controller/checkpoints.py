"""Checkpoints of a run: one folder per step that appears at once or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from osmosis_ai.engine.base import Engine
from osmosis_ai.store.base import StepRecord


class Checkpoints:
    """Saves to and restores from `<run folder>/checkpoints/step-000012`."""

    def __init__(self, run_folder: Path, *, every: int, keep: int) -> None:
        self._run_folder = run_folder
        self._every = every
        self._keep = keep

    async def save(self, engine: Engine, step: int, *, last: bool) -> str:
        """Save when it is due; returns the folder relative to the run's, or "" when it was not due."""
        if not last and step % self._every:
            return ""
        name = f"checkpoints/step-{step:06d}"
        folder = self._run_folder / name
        shutil.rmtree(folder, ignore_errors=True)  # left by a life that died before the step was recorded
        await engine.save(folder, {"step": step})
        return name

    async def restore(self, engine: Engine, steps: list[StepRecord]) -> int:
        """Load the newest checkpoint that is recorded and there; returns its step, 0 when there is none."""
        for record in reversed(steps):
            if record.checkpoint and (self._run_folder / record.checkpoint).is_dir():
                state: dict[str, Any] = await engine.load(self._run_folder / record.checkpoint)
                return int(state["step"])
        return 0

    def prune(self) -> None:
        """Remove all but the newest."""
        root = self._run_folder / "checkpoints"
        folders = sorted(folder for folder in root.glob("step-*") if folder.is_dir())
        for folder in folders[: -self._keep]:
            shutil.rmtree(folder, ignore_errors=True)
