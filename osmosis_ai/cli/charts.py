"""Pictures of a reward: a curve and a sparkline for the terminal, a PNG for people."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Values = Sequence[float | None]  # None: this step has no reward
EvalPoint = tuple[float, float, float | None, float | None]  # step, mean, low, high

BARS = "▁▂▃▄▅▆▇█"
ASCII_BARS = "_.-:=+*#"
BRAILLE = 0x2800  # a cell is 2 dots wide and 4 high; the bit of each dot, by row and column
DOT_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def moving_average(values: Values, window: int) -> list[float | None]:
    """Mean of the last `window` steps that have a value: [0, 1, None, 1] and 2 -> [0, 0.5, 1, 1]."""
    averages: list[float | None] = []
    for end in range(1, len(values) + 1):
        recent = [value for value in values[max(0, end - window) : end] if value is not None]
        averages.append(sum(recent) / len(recent) if recent else None)
    return averages


def smoothing_window(num_values: int) -> int:
    """A tenth of the curve, at least 3 steps; 1 (none) when there are hardly any."""
    return max(3, num_values // 10) if num_values >= 6 else 1


def sparkline(values: Values, *, encoding: str | None = None) -> str:
    """One character per value, a space where there is none: [0, 0.5, 1] -> '▁▅█'.

    Values within 0 and 1 are drawn on that scale, others on their own.
    """
    bars = BARS if _can_encode(BARS, encoding) else ASCII_BARS
    low, high = _bounds(values)
    top = len(bars) - 1
    return "".join(
        " " if value is None else bars[round((value - low) / (high - low) * top)] for value in _finite(values)
    )


def curve(
    values: Values,
    *,
    width: int = 72,
    height: int = 12,
    label: str = "reward",
    first_step: int = 1,
    encoding: str | None = None,
) -> str:
    """A chart of one value per step, at most `width` characters wide and `height` lines high with its axes.

    Each step is a dot, their moving average a line; ASCII where `encoding` (default: stdout) lacks braille.
    Nothing to draw gives one line that says so.
    """
    finite = _finite(values)
    if all(value is None for value in finite):
        return f"{label}: no step has a value yet"
    unicode = _can_encode("·⣿┤└─", encoding)
    low, high = _bounds(finite)
    ticks = _tick_labels(low, high, max(2, height - 3))
    margin = max(len(text) for text in ticks.values()) + 2  # the label, a space and the axis
    canvas = _Canvas(max(8, width - margin), max(2, height - 3), low, high, unicode)
    window = smoothing_window(len(finite))
    canvas.line(moving_average(finite, window))
    if window > 1:
        canvas.points(finite)
    tick, wall = ("┤", "│") if unicode else ("+", "|")
    lines = [_legend(label, window, unicode)[:width].rstrip()]
    for row, text in enumerate(canvas.rows()):
        axis = tick if row in ticks else wall
        lines.append(f"{ticks.get(row, ''):>{margin - 2}} {axis}{text}".rstrip())
    return "\n".join([*lines, *_step_axis(first_step, len(finite), margin, canvas.width, unicode)])


def _finite(values: Values) -> list[float | None]:
    return [value if value is not None and math.isfinite(value) else None for value in values]


def _can_encode(text: str, encoding: str | None) -> bool:
    try:
        text.encode(encoding or sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _bounds(values: Values) -> tuple[float, float]:
    """0 and 1 for values within them, else the values' own range, never empty."""
    present = [value for value in _finite(values) if value is not None]
    low, high = min(present, default=0.0), max(present, default=1.0)
    if low >= 0.0 and high <= 1.0:
        return 0.0, 1.0
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _tick_labels(low: float, high: float, height: int) -> dict[int, str]:
    """Numbers on the value axis, by line from the top: five where there is room, else three or two."""
    parts = next(parts for parts in (4, 2, 1) if height > 2 * parts or parts == 1)
    digits = max(0, 2 - math.floor(math.log10(high - low)))
    return {
        round(part * (height - 1) / parts): f"{high - part * (high - low) / parts:.{digits}f}"
        for part in range(parts + 1)
    }


def _legend(label: str, window: int, unicode: bool) -> str:
    if window == 1:
        return f"{label} by step"
    dot, line = ("·", "⠒⠒") if unicode else (".", "**")
    return f"{label} by step   {dot} each step   {line} mean of the last {window}"


def _step_axis(first: int, count: int, margin: int, width: int, unicode: bool) -> list[str]:
    """The bottom axis, and the numbers of the first, middle and last step under it."""
    corner, rule = ("└", "─") if unicode else ("+", "-")
    numbers = [" "] * (margin + width)
    last_end = -1
    for index in sorted({0, (count - 1) // 2, count - 1}):
        text = str(first + index)
        center = margin + (round(index * (width - 1) / (count - 1)) if count > 1 else 0)
        start = min(center - (len(text) - 1) // 2, margin + width - len(text))
        if start > last_end:
            numbers[start : start + len(text)] = text
            last_end = start + len(text)
    return [" " * (margin - 1) + corner + rule * width, "".join(numbers).rstrip()]


class _Canvas:
    """`height` lines of `width` characters; lines have 2 x 4 dots per character, points fill a whole one."""

    def __init__(self, width: int, height: int, low: float, high: float, unicode: bool) -> None:
        self.width, self.height, self.unicode = width, height, unicode
        self._low, self._high = low, high
        self._line: dict[tuple[int, int], int] = {}  # (row, column) -> the bits of its braille dots
        self._points: set[tuple[int, int]] = set()

    def line(self, values: Values) -> None:
        """Join the values with straight lines; a gap where there is none."""
        before: tuple[int, int] | None = None
        for index, value in enumerate(values):
            here = None if value is None else self._dot(index, len(values), value)
            if here is not None:
                self._segment(before or here, here)
            before = here

    def points(self, values: Values) -> None:
        """One mark per value, under the line."""
        for index, value in enumerate(values):
            if value is not None:
                x, y = self._dot(index, len(values), value)
                self._points.add((y // 4, x // 2))

    def rows(self) -> list[str]:
        return [
            "".join(self._cell(row, column) for column in range(self.width)) for row in range(self.height)
        ]

    def _dot(self, index: int, count: int, value: float) -> tuple[int, int]:
        x = round(index * (2 * self.width - 1) / (count - 1)) if count > 1 else 0
        return x, round((self._high - value) / (self._high - self._low) * (4 * self.height - 1))

    def _segment(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
        for step in range(steps + 1):
            x = start[0] + round(step * (end[0] - start[0]) / steps)
            y = start[1] + round(step * (end[1] - start[1]) / steps)
            cell = (y // 4, x // 2)
            self._line[cell] = self._line.get(cell, 0) | DOT_BITS[y % 4][x % 2]

    def _cell(self, row: int, column: int) -> str:
        bits = self._line.get((row, column), 0)
        if bits:
            return chr(BRAILLE + bits) if self.unicode else "*"
        if (row, column) in self._points:
            return "·" if self.unicode else "."
        return " "


# --- the picture

INK, BLUE, ORANGE, GRID = "#2b2b33", "#2f6fde", "#e0702c", "#e6e6ec"


def save_curve_png(
    path: Path,
    steps: Sequence[int],
    rewards: Values,
    *,
    title: str = "",
    label: str = "mean reward",
    eval_points: Sequence[EvalPoint] = (),
) -> None:
    """Draw the reward of each step, its moving average, and held-out evaluations with their intervals."""
    from matplotlib.figure import Figure  # Agg, no window; imported here because it takes half a second

    if len(steps) != len(rewards):
        raise ValueError(f"steps and rewards must be of one length, got {len(steps)} and {len(rewards)}")
    figure = Figure(figsize=(8.0, 4.5), dpi=160, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    _draw_rewards(axes, steps, _finite(rewards))
    _draw_evaluations(axes, eval_points)
    _dress(axes, title, label, [*_finite(rewards), *(mean for _, mean, _, _ in eval_points)])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _draw_rewards(axes: Any, steps: Sequence[int], rewards: Values) -> None:
    gaps = [math.nan if value is None else value for value in rewards]
    window = smoothing_window(len(rewards))
    if window > 1:
        smooth = [math.nan if value is None else value for value in moving_average(rewards, window)]
        axes.plot(
            steps,
            gaps,
            color=BLUE,
            alpha=0.28,
            linewidth=1.0,
            marker="o",
            markersize=2.5,
            label="training, each step",
        )
        axes.plot(steps, smooth, color=BLUE, linewidth=2.6, label=f"mean of the last {window} steps")
    else:
        axes.plot(steps, gaps, color=BLUE, linewidth=2.0, marker="o", markersize=4, label="training")


def _draw_evaluations(axes: Any, points: Sequence[EvalPoint]) -> None:
    for index, (step, mean, low, high) in enumerate(points):
        bars = [[mean - (mean if low is None else low)], [(mean if high is None else high) - mean]]
        name = "held-out rows, 95 % interval" if index == 0 else None
        axes.errorbar(
            [step], [mean], yerr=bars, fmt="o", color=ORANGE, markersize=8, capsize=5, linewidth=2.0,
            markeredgecolor="white", markeredgewidth=1.2, label=name, zorder=5,
        )  # fmt: skip
        side = -1 if index == 0 and len(points) > 1 else 1  # the first at its left, where no curve is
        axes.annotate(
            f"{mean:.2f}", (step, mean), textcoords="offset points", xytext=(9 * side, 0), va="center",
            ha="right" if side < 0 else "left", color=ORANGE, fontweight="bold",
        )  # fmt: skip


def _dress(axes: Any, title: str, label: str, values: Values) -> None:
    """Axis titles, a light grid, whole steps, and the full scale for rewards within 0 and 1."""
    from matplotlib.ticker import MaxNLocator

    low, high = _bounds(values)
    room = 0.04 * (high - low)
    axes.set_ylim(low - room, high + room)
    axes.margins(x=0.08)
    axes.set_xlabel("step", color=INK)
    axes.set_ylabel(label, color=INK)
    axes.set_title(title, color=INK, loc="left", fontweight="bold")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, length=0)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(side == "bottom")
    axes.spines["bottom"].set_color(GRID)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best", frameon=False, labelcolor=INK)
