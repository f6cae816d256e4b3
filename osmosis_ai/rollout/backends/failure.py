"""From an exception of user code to words: who failed, with what, where."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from osmosis_ai.rollout.backends.base import RolloutErrorCategory
from osmosis_ai.rollout.policy_client import PolicyCallError

FIRST_FRAMES = 2  # where the author's own code is
LAST_FRAMES = 4  # where it went wrong
_OURS = str(Path(__file__).parent)


async def awaited(returned: Any, method: str) -> Any:
    """What an author's `method` gives. Raises TypeError when it was written without `async`."""
    if not inspect.isawaitable(returned):
        raise TypeError(f"it is not asynchronous: write `async def {method}(self, ctx)`")
    return await returned


def describe(error: BaseException, what: str) -> str:
    """`MathWorkflow.run raised ValueError: boom`, then the ends of the traceback."""
    text = "".join(traceback.format_exception_only(error)).strip()
    lines = [f"{what} raised {text}"]
    policy_error = _policy_error(error)
    if policy_error is not None and policy_error.message not in text:
        lines.append(f"because {policy_error.message}")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(_OURS)]
    shown = [f"  {frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames]
    if len(shown) > FIRST_FRAMES + LAST_FRAMES:
        shown[FIRST_FRAMES:-LAST_FRAMES] = ["  ..."]
    return "\n".join(lines + shown)


def category(error: BaseException) -> RolloutErrorCategory:
    """An error that comes from a call to the policy is not the agent's."""
    return (
        RolloutErrorCategory.AGENT_ERROR if _policy_error(error) is None else RolloutErrorCategory.HTTP_ERROR
    )


def _policy_error(error: BaseException) -> PolicyCallError | None:
    return next((link for link in _chain(error) if isinstance(link, PolicyCallError)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, what caused that, ..."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
