"""Stop texts: where an answer ends, in text and in tokens.

The engine stops at tokens; a stop text may begin in the middle of one and span several. So the answer is cut:
the text before the first stop is the answer, the tokens up to the one that completes the stop are the
completion, exactly as they were sampled. The engine is told to end there; where it has sampled more by then
(a text inside a tool call is looked at when the call is whole), that is no part of the turn, and its count is
recorded (`sampling["tokens_after_stop"]`).

    sampled  ["I", " add", ".\\n", "Obs", "ervation", ":", " 5"],  stop "\\nObservation:"
    text     "I add."
    tokens   ["I", " add", ".\\n", "Obs", "ervation", ":"]        1 token after the stop

Cutting is no change of the distribution: each kept token was drawn before anybody looked at the text behind
it. A stop that is a single special token is one of the engine's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the first stop begins, and which it is; of two that begin there, the longer."""
    found = [(place, -len(stop), stop) for stop in stops if (place := text.find(stop)) >= 0]
    if not found:
        return None
    place, _, stop = min(found)
    return place, stop


def tokens_until(ids: Sequence[int], text: str, decode: Callable[[Sequence[int]], str]) -> int:
    """How many of the tokens it takes to say `text`, which is the beginning of what all of them say."""
    low, high = 0, len(ids)
    while low < high:  # the text of more tokens is never shorter
        middle = (low + high) // 2
        if decode(ids[:middle]).startswith(text):
            high = middle
        else:
            low = middle + 1
    return low


class StopFilter:
    """Text as it comes, held back where it could become a stop, and cut at the first one.

    stop "\\nObs":  "I add" -> "I add";  ".\\n" -> ".";  "Obs: 5" -> "" (and nothing more)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that is certain now and was not before."""
        if self.stopped:
            return ""
        text = self._held + text
        if found := first_stop(text, self._stops):
            self.stopped = True
            return text[: found[0]]
        certain = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[certain:]
        return text[:certain]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text could begin the stop: ".\\n", "\\nObs" -> 1."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-size:]):
            return size
    return 0
