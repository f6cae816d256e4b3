"""The workspace: the folder that holds the database, and a folder for each run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from osmosis_ai.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workspace:
    """Where everything of one user's runs lies; `.osmosis` in the current folder by default."""

    root: Path

    @property
    def database(self) -> Path:
        return self.root / "osmosis.db"

    def run_folder(self, run_id: str) -> Path:
        return self.root / "runs" / run_id

    def policy_folder(self, path: str, base: Path) -> Path:
        """A folder named relative to `base`, or `run:NAME` for what the newest run NAME has learnt."""
        if not path.startswith("run:"):
            return (base / path).expanduser()
        name = path.removeprefix("run:")
        number = 1
        while (self.run_folder(numbered(name, number + 1)) / "policy").is_dir():
            number += 1
        folder = self.run_folder(numbered(name, number)) / "policy"
        if not folder.is_dir():
            raise UsageError(
                f"policy.path = {path!r}: there is no folder {folder}. "
                f"Has the run {name!r} been trained to its end?"
            )
        return folder


def numbered(name: str, number: int) -> str:
    """The run ids of one name: name, name-2, name-3, ..."""
    return name if number == 1 else f"{name}-{number}"


def newest_number(name: str, names: Mapping[str, str]) -> int:
    """The highest number that a run of the name has; 0 without one. `names` maps run ids to names.

    "a" among a-3 of a, b of b, a-2026 of a-2026 -> 3: runs that were deleted leave gaps, and what was given
    a name that ends in a number is none of these.
    """
    rests = [run_id.removeprefix(f"{name}-") for run_id, named in names.items() if named == name]
    return max((int(rest) for rest in rests if rest.isdecimal()), default=int(name in names))
