"""File formats: each reader streams the items of a file, one at a time, as columns.

To add one: a generator, and a line in `READERS`.
"""

from __future__ import annotations

import csv
import difflib
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from osmosis_ai.datasets.columns import Finding
from osmosis_ai.errors import DatasetError

Item = tuple[int, dict[str, Any] | Finding]  # line or place from 1; columns, or what is wrong
Reader = Callable[[Path], Iterator[Item]]

MAX_FINDINGS = 20


def report(findings: list[str], count: int | None = None) -> str:
    """The first findings, a line each, and how many more there are of `count`."""
    shown = findings[:MAX_FINDINGS]
    more = (count or len(findings)) - len(shown)
    return "\n".join([*shown, f"... and {more} more"] if more else shown)


# --- JSON


def jsonl_items(path: Path) -> Iterator[Item]:
    """One JSON object per line; blank lines are skipped."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.removeprefix(b"\xef\xbb\xbf") if number == 1 else raw
            if line.strip():
                yield number, _json_object(line.rstrip(b"\n"))


def json_items(path: Path) -> Iterator[Item]:
    """One JSON array of objects; it is read in one piece."""
    try:
        items = json.loads(path.read_bytes().decode("utf-8-sig"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{path}: not JSON: {error}") from None
    if not isinstance(items, list):
        raise DatasetError(f"{path}: a .json dataset is an array of objects, got {_shown(items)}")
    for number, item in enumerate(items, start=1):
        yield number, item if isinstance(item, dict) else _not_an_object(item)


def _json_object(raw: bytes) -> dict[str, Any] | Finding:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return Finding([_not_utf8(raw, error)])
    except json.JSONDecodeError as error:
        return Finding([f"not JSON: {error.msg} at column {error.colno}"])
    except (ValueError, RecursionError) as error:
        return Finding([f"not JSON: {error}"])
    return value if isinstance(value, dict) else _not_an_object(value)


def _not_an_object(value: object) -> Finding:
    return Finding([f"a row must be a JSON object, got {_shown(value)}"])


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


# --- CSV


def csv_items(path: Path) -> Iterator[Item]:
    """A header line, then a record per row; a field may hold line ends."""
    before = csv.field_size_limit(sys.maxsize)  # a prompt may be longer than the module's 128 kB
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            records = _csv_records(csv.reader(file, strict=True))
            first = next(records, None)
            number, fields = first or (1, [])
            if isinstance(fields, Finding):
                yield number, fields
                return
            header = _header(path, fields) if first else []
            for number, fields in records:
                yield number, fields if isinstance(fields, Finding) else _named(header, fields)
    except UnicodeDecodeError:
        raise DatasetError(report(list(_undecodable(path)))) from None
    finally:
        csv.field_size_limit(before)


def _csv_records(reader: Any) -> Iterator[tuple[int, list[str] | Finding]]:
    """Records that are not blank, each with the line that it starts on."""
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield number, Finding([f"not CSV: {error}"])
            return  # where the next record starts is unknown
        if any(field.strip() for field in fields):
            yield number, fields


def _named(header: list[str], fields: list[str]) -> dict[str, Any] | Finding:
    if len(fields) != len(header):
        return Finding([f"{len(fields)} fields, but the header has {len(header)}"])
    return dict(zip(header, fields, strict=True))


def _undecodable(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield f"{path}:{number}: {_not_utf8(line, error)}"


def _header(path: Path, names: list[str]) -> list[str]:
    """Column names, checked once for the whole file."""
    header = [name.strip() for name in names]
    folded = [name.lower() for name in header]
    twice = sorted({name for name in folded if folded.count(name) > 1})
    if twice:
        raise DatasetError(f"{path}:1: column {twice[0]!r} is there twice; rename one")
    if "user_prompt" not in folded:
        near = difflib.get_close_matches("user_prompt", folded, n=1, cutoff=0.5)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise DatasetError(f"{path}:1: no column 'user_prompt'; the columns are {', '.join(header)}.{hint}")
    return header


# --- Parquet


def parquet_items(path: Path) -> Iterator[Item]:
    """Rows of a Parquet file, a batch at a time. Raises DatasetError without pyarrow."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
        invalid = importlib.import_module("pyarrow").ArrowException
    except ImportError as error:
        raise DatasetError(f'{path}: Parquet needs pyarrow: pip install "osmosis-ai[parquet]"') from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                for columns in batch.to_pylist():
                    number += 1
                    yield number, _plain(columns)
    except invalid as error:
        raise DatasetError(f"{path}: not Parquet that can be read: {error}") from error


def _plain(columns: dict[str, Any]) -> dict[str, Any] | Finding:
    """The columns, when JSON can hold them: rows travel as JSON."""
    problems = []
    for name, value in columns.items():
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            kind = value if isinstance(value, float) else type(value).__name__
            problems.append(
                f"column {name!r} holds what JSON cannot ({kind}); convert it to text or a number"
            )
    return Finding(problems) if problems else columns


READERS: dict[str, Reader] = {
    ".jsonl": jsonl_items,
    ".csv": csv_items,
    ".parquet": parquet_items,
    ".json": json_items,
}
SUPPORTED = (
    ".jsonl (one JSON object per line), .csv (with a header line), .parquet and .json (an array of objects)"
)
