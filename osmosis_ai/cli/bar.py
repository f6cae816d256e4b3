"""The line that lives at the bottom of a terminal. Only a terminal pays for importing it."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from osmosis_ai.cli.display import minutes


def progress(console: Console, bar_width: int) -> Progress:
    """What is done, a bar, what is known so far, and a clock; it goes when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=bar_width),
        TextColumn("{task.fields[note]}"),
        _Clock(),
        console=console,
        transient=True,
    )


class _Clock(ProgressColumn):
    """Time left where it can be known, else time gone."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining if task.total is not None else None
        if left is not None:
            return Text(f"left {minutes(left)}")
        return Text(minutes(task.elapsed or 0.0))
