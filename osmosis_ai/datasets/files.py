"""Dataset files: found, read line by line, checked, and turned into rows.

    {"system_prompt": "Use the tools.", "user_prompt": "3 * 4?", "ground_truth": 12, "level": "easy"}

becomes

    Row(index=0, prompt=[system, user], label="12", metadata={"level": "easy"})

Everything that is wrong with a file is reported at once, up to 20 findings, each with file and line.
"""

from __future__ import annotations

import csv
import difflib
import hashlib
import io
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from osmosis_ai.datasets.columns import Finding, to_row
from osmosis_ai.errors import DatasetError
from osmosis_ai.types import Row

MAX_FINDINGS = 20
SUPPORTED = ".jsonl (one JSON object per line) and .csv (with a header line)"

Line = tuple[int, dict[str, Any] | Finding]  # line number from 1, and the columns or why there are none


def load_rows(path: Path | str, *, limit: int | None = None, offset: int = 0) -> list[Row]:
    """The rows of a dataset file, in order: at most `limit` of them after the first `offset`.

    Columns, in any letter case: `user_prompt` (required), `system_prompt`, `ground_truth` or `label`,
    `metadata`; all others go to the row's metadata. `Row.index` is the position in the whole file.
    Only the rows asked for are checked. Raises DatasetError.
    """
    path = Path(path)
    if offset < 0 or (limit is not None and limit < 1):
        raise DatasetError(
            f"{path}: limit must be at least 1 and offset at least 0, got {limit} and {offset}"
        )
    lines = _reader(path)(path, _read(path))
    stop = None if limit is None else offset + limit
    rows: list[Row] = []
    findings: list[str] = []
    index = -1
    for index, (number, columns) in enumerate(islice(lines, stop)):
        if index < offset:
            continue
        row = columns if isinstance(columns, Finding) else to_row(columns, index, from_text=_is_csv(path))
        if isinstance(row, Finding):
            findings.extend(f"{path}:{number}: {problem}" for problem in row.problems)
        else:
            rows.append(row)
    if findings:
        raise DatasetError(_report(findings))
    if not rows:
        raise DatasetError(_nothing(path, index + 1, offset))
    return rows


def dataset_fingerprint(path: Path | str) -> str:
    """SHA-256 of the file's bytes, in hex: two runs with the same value had the same data."""
    return hashlib.sha256(_read(Path(path))).hexdigest()


def _report(findings: list[str]) -> str:
    shown = findings[:MAX_FINDINGS]
    if len(findings) > len(shown):
        shown.append(f"... and {len(findings) - len(shown)} more")
    return "\n".join(shown)


def _nothing(path: Path, num_rows: int, offset: int) -> str:
    if num_rows == 0:
        return f"{path} has no rows; write at least one with a user_prompt"
    return f"{path} has {num_rows} rows, so none is left after offset {offset}"


# --- the file


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DatasetError(f"no dataset {path}. {_suggestion(path)}") from None
    except OSError as error:
        raise DatasetError(f"cannot read the dataset {path}: {error.strerror}") from error


def _suggestion(path: Path) -> str:
    """The nearest names in the same folder, else the datasets there."""
    if not path.parent.is_dir():
        return f"There is no folder {path.parent.absolute()} either."
    names = sorted(file.name for file in path.parent.iterdir() if file.is_file())
    near = difflib.get_close_matches(path.name, names, n=3)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    datasets = [name for name in names if name.lower().endswith((".jsonl", ".csv"))][:5]
    listed = ", ".join(datasets) if datasets else "no .jsonl or .csv file"
    return f"The folder {path.parent.absolute()} has {listed}."


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _reader(path: Path) -> Callable[[Path, bytes], Iterator[Line]]:
    if _is_csv(path):
        return _csv_lines
    if path.suffix.lower() == ".jsonl":
        return _jsonl_lines
    raise DatasetError(
        f"{path}: datasets are {SUPPORTED}; {path.suffix or 'a name without suffix'} is not read"
    )


# --- JSON Lines


def _jsonl_lines(_: Path, data: bytes) -> Iterator[Line]:
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if raw.strip():
            yield number, _json_object(raw)


def _json_object(raw: bytes) -> dict[str, Any] | Finding:
    try:
        value = json.loads(raw.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        return Finding([_not_utf8(raw, error)])
    except json.JSONDecodeError as error:
        return Finding([f"not JSON: {error.msg} at column {error.colno}"])
    except (ValueError, RecursionError) as error:
        return Finding([f"not JSON: {error}"])
    if not isinstance(value, dict):
        return Finding([f"a row must be a JSON object, got {_shown(value)}"])
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _not_utf8(line: bytes, error: UnicodeDecodeError) -> str:
    return f"not UTF-8: byte 0x{line[error.start]:02x} at byte {error.start + 1} of the line"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:39] + "…"


# --- CSV


def _csv_lines(path: Path, data: bytes) -> Iterator[Line]:
    text = _decode(path, data.removeprefix(b"\xef\xbb\xbf"))
    before = csv.field_size_limit(sys.maxsize)  # a prompt may be longer than the module's 128 kB
    try:
        records = list(_csv_records(text))
    finally:
        csv.field_size_limit(before)
    if not records or isinstance(records[0][1], Finding):
        yield from records  # type: ignore[misc]
        return
    header = _header(path, records[0][1])
    for number, fields in records[1:]:
        if isinstance(fields, list) and len(fields) != len(header):
            fields = Finding([f"{len(fields)} fields, but the header has {len(header)}"])
        yield number, dict(zip(header, fields, strict=True)) if isinstance(fields, list) else fields


def _csv_records(text: str) -> Iterator[tuple[int, list[str] | Finding]]:
    """Records that are not blank, each with the line that it starts on."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
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


def _decode(path: Path, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        findings = []
        for number, line in enumerate(data.split(b"\n"), start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as here:
                findings.append(f"{path}:{number}: {_not_utf8(line, here)}")
        raise DatasetError(_report(findings)) from error


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
