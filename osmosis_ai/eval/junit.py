"""A run as JUnit XML, which every CI shows: a test case per rollout."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from osmosis_ai.errors import UsageError
from osmosis_ai.types import Outcome


def write_junit(path: Path, run_id: str, outcomes: Iterable[Outcome], pass_threshold: float) -> None:
    """A reward below the threshold is a failure, no reward at all an error. Raises UsageError."""
    suite = ET.Element("testsuite", name=run_id)
    counts = {"tests": 0, "failures": 0, "errors": 0}
    seconds = 0.0
    for outcome in outcomes:
        counts["tests"] += 1
        seconds += outcome.duration_seconds
        case = ET.SubElement(
            suite,
            "testcase",
            classname=run_id,
            name=f"row {outcome.row_index}" + (f" member {outcome.member}" if outcome.member else ""),
            time=f"{outcome.duration_seconds:.3f}",
        )
        if outcome.reward is None:
            counts["errors"] += 1
            error = ET.SubElement(
                case, "error", type=outcome.status.value, message=_xml(first(outcome.reason))
            )
            error.text = _xml(outcome.reason)
        elif outcome.reward < pass_threshold:
            counts["failures"] += 1
            message = f"reward {outcome.reward:g} is below {pass_threshold:g}"
            ET.SubElement(case, "failure", type="reward", message=message)
    for name, count in counts.items():
        suite.set(name, str(count))
    suite.set("time", f"{seconds:.3f}")
    try:
        ET.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise UsageError(f"--junit {path} cannot be written: {error}") from error


def first(reason: str) -> str:
    return reason.split("\n", 1)[0]


def _xml(text: str) -> str:
    """XML has no way to write control characters, nor halves of surrogate pairs."""
    return "".join(c if c in "\t\n" or (c >= " " and not "\ud800" <= c <= "\udfff") else "�" for c in text)
