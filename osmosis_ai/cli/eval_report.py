"""The report of an eval as text: rewards, failures, what it took, and the same by a metadata column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict

from osmosis_ai.cli.display import Display, first_line
from osmosis_ai.eval.tally import EvalReport, Spread
from osmosis_ai.providers.prices import as_dollars

PER_ROLLOUT = {  # figure of the report -> its name here and how it is written
    "turns": ("turns", "{:,.1f}"),
    "tokens": ("tokens", "{:,.0f}"),
    "seconds": ("seconds", "{:,.2f}"),
    "model_seconds": ("of the model", "{:,.2f}"),
}


def say_report(
    display: Display, run_id: str, report: EvalReport, by: Mapping[str, EvalReport], column: str | None
) -> None:
    """As a line of data, or as text; `by` are the reports of the values of a metadata column."""
    parts = {value: asdict(part) for value, part in by.items()}
    display.data({"event": "report", "run_id": run_id, **asdict(report), "by": parts})
    display.out(report_text(run_id, report))
    if column is not None and by:
        display.out(by_text(column, by))


def report_text(run_id: str, report: EvalReport) -> str:
    """The result of an eval in a few lines."""
    lines = [f"run {run_id}: {report.graded} graded rollouts of {report.rows} rows", *_rewards(report)]
    for status, count in sorted(report.failures.items()):
        first = first_line(report.first_failures[status])
        lines.append(f"  {count} without a reward: {status}, first {first}")
    lines += _taken(report)
    for reason, count in sorted(report.branches.items()):
        lines.append(f"  {count} calls began a branch: {reason} (docs/tokens.md)")
    if report.stopped:
        lines.append(f"stopped early: {first_line(report.stopped)}")
        lines.append(f"  what has a result is kept; {_how_to_go_on(report)}")
    if report.worst_row is not None:
        lines.append(f"look at one: osmosis runs show {run_id} --row {report.worst_row}")
    return "\n".join(lines)


def _rewards(report: EvalReport) -> Iterator[str]:
    if report.mean is not None:
        yield f"  mean reward  {report.mean} ({report.mean.confidence:.0%} interval, {report.mean.method})"
    for rates in report.pass_rates:
        yield f"  pass@{rates.k:<7} {rates.at}   pass^{rates.k} {rates.hat}"


def _taken(report: EvalReport) -> Iterator[str]:
    """Turns, tokens, time, cost and what went wrong with tools."""
    seconds = "" if report.seconds_per_turn is None else f" of {report.seconds_per_turn:.2f} s"
    tokens = f"{report.prompt_tokens:,} prompt and {report.completion_tokens:,} completion tokens"
    cost = "" if report.dollars is None else f", {as_dollars(report.dollars)}"
    yield f"  {report.turns:,} turns{seconds}, {tokens}{cost}"
    if report.turns:  # a dead endpoint leaves a table of zeros
        yield f"  {'per rollout':<14}{'mean':>9}{'median':>9}{'95%':>9}"
        for figure, spread in report.per_rollout.items():
            yield _spread(*PER_ROLLOUT[figure], spread)
    if report.tool_errors:
        yield f"  {report.tool_errors} tool results were errors"
    if report.malformed_tool_calls:
        yield f"  {report.malformed_tool_calls} malformed tool calls, answered with an error result"


def _spread(name: str, form: str, spread: Spread) -> str:
    figures = "".join(f"{form.format(value):>9}" for value in (spread.mean, spread.median, spread.p95))
    return f"    {name:<12}{figures}"


def _how_to_go_on(report: EvalReport) -> str:
    if report.by_choice:
        return "the same command goes on with the rest"
    return "the same command runs the rest when the cause is mended"


def by_text(column: str, reports: Mapping[str, EvalReport]) -> str:
    """A line for each value of a metadata column: rows, mean reward, and what a rollout of it takes."""
    width = max(map(len, reports))
    lines = [f"by {column}:"]
    for value, report in sorted(reports.items()):
        failed = sum(report.failures.values())
        parts = [
            f"  {value:<{width}}  {report.rows:>5} rows",
            "no reward" if report.mean is None else str(report.mean),
            *(f"{figure} {spread.mean:,.1f}" for figure, spread in report.per_rollout.items()),
            *([f"{report.tool_errors} tool errors"] if report.tool_errors else []),
            *([as_dollars(report.dollars)] if report.dollars is not None else []),
            *([f"{failed} failed"] if failed else []),
        ]
        lines.append("  ".join(parts).replace("model_seconds", "model"))
    return "\n".join(lines)
