"""The workspace: the folder that holds the database, and a folder for each run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
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
            return base / os.path.expanduser(path)
        name = path.removeprefix("run:")
        numbers = numbers_of(name, self._run_names()) or [1]
        folders = [self.run_folder(numbered(name, number)) / "policy" for number in reversed(numbers)]
        learnt = next((folder for folder in folders if folder.is_dir()), None)
        if learnt is None:
            raise UsageError(
                f"policy.path = {path!r}: there is no folder {folders[0]}. "
                f"Has the run {name!r} been trained to its end?"
            )
        return learnt

    def _run_names(self) -> dict[str, str]:
        """Run id -> the name that was asked for; nothing where there is no database."""
        if not self.database.exists():
            return {}
        import apsw

        from osmosis_ai.store.columns import read_names
        from osmosis_ai.store.schema import open_readonly
        from osmosis_ai.store.writer import store_error

        try:
            with closing(open_readonly(self.database)) as db:
                return read_names(db)
        except apsw.Error as error:
            raise store_error(self.database, error) from error


def numbered(name: str, number: int) -> str:
    """The run ids of one name: name, name-2, name-3, ..."""
    return name if number == 1 else f"{name}-{number}"


def numbers_of(name: str, names: Mapping[str, str]) -> list[int]:
    """The numbers of a name's runs, rising. `names` maps run ids to names.

    "a" among a and a-3 of a, b of b, a-2026 of a-2026 -> [1, 3]: runs that were deleted leave gaps, and what
    was given a name that ends in a number is none of these.
    """
    before = f"{name}-"
    ids = [run_id for run_id, named in names.items() if named == name and run_id.startswith(before)]
    rests = [run_id.removeprefix(before) for run_id in ids]
    return [1] * (name in names) + sorted(int(rest) for rest in rests if rest.isdecimal())


def newest_number(name: str, names: Mapping[str, str]) -> int:
    """The highest number that a run of the name has; 0 without one."""
    return max(numbers_of(name, names), default=0)
