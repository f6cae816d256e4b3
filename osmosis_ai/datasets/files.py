"""Dataset files: found, checked item by item, and turned into rows.

    {"system_prompt": "Use the tools.", "user_prompt": "3 * 4?", "ground_truth": 12, "level": "easy"}

becomes

    Row(index=0, prompt=[system, user], label="12", metadata={"level": "easy"})

A file is never in memory as a whole: it is checked from end to end first, so that everything wrong with it
is said at once, and then read again while its rows are used.
"""

from __future__ import annotations

import difflib
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from osmosis_ai.datasets.columns import Finding, to_row
from osmosis_ai.datasets.formats import MAX_FINDINGS, READERS, SUPPORTED, Item, Reader, report
from osmosis_ai.datasets.selection import Selection, row_ranges
from osmosis_ai.errors import DatasetError
from osmosis_ai.types import Row


@dataclass(frozen=True, slots=True)
class Dataset:
    """The selected rows of a file that was found to hold; each iteration reads the file again."""

    path: Path
    indices: range | list[int]  # positions in the file, rising

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Row]:
        """Raises DatasetError when the file has changed since it was opened."""
        wanted = iter(self.indices)
        index = next(wanted, None)
        for position, item in enumerate(_items(self.path)):
            if index is None:
                return
            if position == index:
                yield _row(self.path, item, position)
                index = next(wanted, None)
        if index is not None:
            raise DatasetError(f"{self.path} has lost rows since the run began: row {index} is not there")


def open_dataset(path: Path | str, selection: Selection | None = None, *, strict: bool = False) -> Dataset:
    """Check the selected rows of a file, all of them, before anything runs on the first.

    `strict` is for looking at a file: it refuses texts, too, that no request can carry. In a run they cost
    their own row its results, and no other.

    Columns, in any letter case: `user_prompt` (required), `system_prompt`, `ground_truth` or `label`,
    `metadata`; all others go to the row's metadata. `Row.index` is the position in the whole file, from 0.
    Raises DatasetError with up to 20 findings, each with file and line.
    """
    path, selection = Path(path), selection or Selection()
    named = bool(selection.rows) or selection.sample is not None
    indices = selection.indices(_count(path, selection) if named else selection.stop or sys.maxsize)
    findings: list[str] = []
    num_findings = num_rows = 0
    wanted = iter(indices)
    index = next(wanted, None)
    for position, item in enumerate(islice(_items(path), selection.stop)):
        num_rows += 1
        if position != index:
            continue
        index = next(wanted, None)
        problems = _problems(path, item, position, strict)
        num_findings += len(problems)
        findings += problems[: MAX_FINDINGS - len(findings)]
    if findings:
        raise DatasetError(report(findings, num_findings))
    _refuse_nothing(path, selection, num_rows)
    return Dataset(path, indices if named else selection.indices(num_rows))


def load_rows(path: Path | str, *, limit: int | None = None, offset: int = 0) -> list[Row]:
    """The rows of a dataset file as a list: at most `limit` of them after the first `offset`.

    Raises DatasetError; see `open_dataset`.
    """
    return list(open_dataset(path, Selection(limit, offset)))


def dataset_fingerprint(path: Path | str) -> str:
    """SHA-256 of the file's bytes, in hex: two runs with the same value had the same data."""
    with _found(Path(path)), Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _count(path: Path, selection: Selection) -> int:
    """How many items there are up to the selection's end, where that decides which rows are meant."""
    num_rows = sum(1 for _ in islice(_items(path), selection.stop))
    _refuse_nothing(path, selection, num_rows)
    return num_rows


def _refuse_nothing(path: Path, selection: Selection, num_rows: int) -> None:
    if num_rows == 0:
        raise DatasetError(f"{path} has no rows; write at least one with a user_prompt")
    if selection.offset >= num_rows:
        raise DatasetError(f"{path} has {num_rows} rows, so none is left after offset {selection.offset}")
    beyond = [last for _, last in row_ranges(selection.rows) if last >= num_rows] if selection.rows else []
    if beyond:
        raise DatasetError(f"{path} has the rows 0 to {num_rows - 1}; there is no row {beyond[0]}")


def _row(path: Path, item: Item, index: int, strict: bool = False) -> Row:
    number, columns = item
    row = columns if isinstance(columns, Finding) else to_row(columns, index, _is_csv(path), strict)
    if isinstance(row, Finding):
        raise DatasetError("\n".join(f"{path}:{number}: {problem}" for problem in row.problems))
    return row


def _problems(path: Path, item: Item, index: int, strict: bool) -> list[str]:
    try:
        _row(path, item, index, strict)
    except DatasetError as error:
        return str(error).split("\n")
    return []


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


# --- the file


def _items(path: Path) -> Iterator[Item]:
    reader = _reader(path)
    with _found(path):
        yield from reader(path)


def _reader(path: Path) -> Reader:
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        what = path.suffix or "a name without suffix"
        raise DatasetError(f"{path}: datasets are {SUPPORTED}; {what} is not read")
    return reader


@contextmanager
def _found(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise DatasetError(f"no dataset {path}. {_suggestion(path)}") from None
    except OSError as error:
        raise DatasetError(f"cannot read the dataset {path}: {error.strerror or error}") from error


def _suggestion(path: Path) -> str:
    """The nearest names in the same folder, else the datasets there."""
    if not path.parent.is_dir():
        return f"There is no folder {path.parent.absolute()} either."
    names = sorted(file.name for file in path.parent.iterdir() if file.is_file())
    near = difflib.get_close_matches(path.name, names, n=3)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    datasets = [name for name in names if name.lower().endswith(tuple(READERS))][:5]
    listed = ", ".join(datasets) if datasets else "no dataset"
    return f"The folder {path.parent.absolute()} has {listed}."
