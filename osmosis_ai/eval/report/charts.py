"""The charts of a report, as numbers for its template: no text of a run passes through here as markup."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from osmosis_ai.eval.statistics import Estimate, mean_reward

MAX_GROUPS = 12  # values of a metadata column that make a chart
BINS = 10
INTERVALS = "whiskers: 95 % interval"
BLOCKS = 10  # consecutive rows, where there is no column to group by


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar; all positions are percent of the chart's width."""

    label: str
    width: float
    value: str
    note: str = ""
    low: float | None = None  # the whisker
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars under a title."""

    title: str
    bars: list[Bar]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """One value per step in a box 1000 wide and 300 high, y downwards: `points` of an SVG polyline."""

    title: str
    lines: list[tuple[str, str]]  # (class, points); a gap in the values starts a new line
    high: str
    low: str
    first: str
    last: str
    caption: str


def histogram(rewards: Sequence[float]) -> Chart | None:
    """How often each reward was given: by value where there are few, else in ten bins."""
    if not rewards:
        return None
    values = sorted(set(rewards))
    if len(values) <= BINS:
        counts = [(f"{value:g}", sum(reward == value for reward in rewards)) for value in values]
    else:
        counts = _binned(rewards, values[0], values[-1])
    total = len(rewards)
    bars = [Bar(label, 100 * count / total, f"{count}", f"{count / total:.0%}") for label, count in counts]
    return Chart("Rewards", bars, f"{total} graded rollouts")


def _binned(rewards: Sequence[float], low: float, high: float) -> list[tuple[str, int]]:
    width = (high - low) / BINS
    counts = [0] * BINS
    for reward in rewards:
        counts[min(BINS - 1, int((reward - low) / width))] += 1
    return [(f"{low + i * width:.2g} – {low + (i + 1) * width:.2g}", count) for i, count in enumerate(counts)]


def by_column(name: str, rewards: Mapping[int, list[float]], column: Mapping[int, str]) -> Chart | None:
    """Mean reward for each value of a column, with its interval. None: one value, or too many."""
    groups: dict[str, dict[int, list[float]]] = {}
    for row, tries in rewards.items():
        if row in column:
            groups.setdefault(column[row], {})[row] = tries
    if not 2 <= len(groups) <= MAX_GROUPS:
        return None
    estimates = [(value, mean_reward(rows)) for value, rows in sorted(groups.items())]
    return Chart(f"Mean reward by {name}", _estimate_bars(estimates), INTERVALS)


def by_block(rewards: Mapping[int, list[float]]) -> Chart | None:
    """Mean reward of consecutive rows, for a dataset without columns to group by."""
    rows = sorted(rewards)
    if len(rows) < 2 * BLOCKS:
        return None
    size = math.ceil(len(rows) / BLOCKS)
    blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
    estimates = [
        (f"{block[0]}–{block[-1]}", mean_reward({row: rewards[row] for row in block})) for block in blocks
    ]
    return Chart(
        "Mean reward along the dataset, by rows", _estimate_bars(estimates), "whiskers: 95 % interval"
    )


def _estimate_bars(estimates: Sequence[tuple[str, Estimate]]) -> list[Bar]:
    ends = [
        e for _, estimate in estimates for e in (estimate.mean, estimate.low, estimate.high) if e is not None
    ]
    low, high = min(0.0, *ends), max(1.0, *ends)

    def at(value: float | None) -> float | None:
        return None if value is None else 100 * (value - low) / (high - low)

    return [
        Bar(label, at(e.mean) or 0.0, f"{e.mean:.3f}", f"{e.num_rows} rows", at(e.low), at(e.high))
        for label, e in estimates
    ]


def funnel(title: str, stages: Sequence[tuple[str, int]], caption: str = "") -> Chart | None:
    """How many reached each stage; bars relative to the first."""
    if not stages or not stages[0][1]:
        return None
    total = stages[0][1]
    bars = [Bar(name, 100 * count / total, f"{count}", f"{count / total:.0%}") for name, count in stages]
    return Chart(title, bars, caption)


def training_funnel(steps: Sequence[Mapping[str, Any]]) -> Chart | None:
    """The funnels of all steps added up, with what was lost and why."""
    stages: dict[str, int] = {}
    losses: dict[str, int] = {}
    for metrics in steps:
        for name, count in metrics.get("funnel", {}).get("stages", {}).items():
            stages[name] = stages.get(name, 0) + int(count["rollouts"])
        for reason, count in metrics.get("funnel", {}).get("losses", {}).items():
            losses[reason] = losses.get(reason, 0) + int(count["rollouts"])
    lost = ", ".join(f"{count} {reason}" for reason, count in losses.items() if count)
    return funnel("Rollouts of all steps", list(stages.items()), f"lost: {lost}" if lost else "")


def curve(title: str, steps: Sequence[int], values: Sequence[float | None]) -> Curve | None:
    """The value of each step and the mean of the last tenth of them. None: fewer than two values."""
    present = [value for value in values if value is not None and math.isfinite(value)]
    if len(present) < 2:
        return None
    low, high = min(present), max(present)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    high = high if high > low else low + 1.0
    window = max(3, len(values) // 10)
    smooth = _moving_average(values, window)
    lines = [("raw", points) for points in _polylines(values, low, high)]
    lines += [("smooth", points) for points in _polylines(smooth, low, high)]
    return Curve(
        title, lines, f"{high:.3g}", f"{low:.3g}", f"step {steps[0]}", f"step {steps[-1]}",
        f"thin: each step; thick: mean of the last {window}",
    )  # fmt: skip


def _moving_average(values: Sequence[float | None], window: int) -> list[float | None]:
    averages: list[float | None] = []
    for end in range(1, len(values) + 1):
        recent = [value for value in values[max(0, end - window) : end] if value is not None]
        averages.append(sum(recent) / len(recent) if recent else None)
    return averages


def _polylines(values: Sequence[float | None], low: float, high: float) -> list[str]:
    """ "0.0,300.0 500.0,150.0 1000.0,0.0" for [low, middle, high]."""
    lines: list[list[str]] = [[]]
    last = max(1, len(values) - 1)
    for index, value in enumerate(values):
        if value is None or not math.isfinite(value):
            lines.append([])
        else:
            lines[-1].append(f"{1000 * index / last:.1f},{300 * (high - value) / (high - low):.1f}")
    return [" ".join(line) for line in lines if line]
