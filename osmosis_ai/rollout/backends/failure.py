"""From an exception of user code to words: who failed, with what, where."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from osmosis_ai.rollout.backends.base import RolloutErrorCategory
from osmosis_ai.rollout.policy_client import PolicyCallError

FRAMES = 6


def describe(error: BaseException, what: str) -> str:
    """`MathWorkflow.run raised ValueError: boom`, then the last frames of the traceback."""
    text = "".join(traceback.format_exception_only(error)).strip()
    frames = traceback.extract_tb(error.__traceback__)
    # The first two frames are the lane and the backend, which tell the author nothing.
    lines = [f"  {f.filename}:{f.lineno} in {f.name}: {f.line}" for f in frames[2:][-FRAMES:]]
    return "\n".join([f"{what} raised {text}", *lines])


def category(error: BaseException) -> RolloutErrorCategory:
    """An error that comes from a call to the policy is not the agent's."""
    if any(isinstance(link, PolicyCallError) for link in _chain(error)):
        return RolloutErrorCategory.HTTP_ERROR
    return RolloutErrorCategory.AGENT_ERROR


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
