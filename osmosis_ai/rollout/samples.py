"""Samples: the conversations of a rollout, and where they are read from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Generator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from osmosis_ai.rollout.messages import copied


class RolloutSample(BaseModel):
    """One conversation of a rollout, in the shape of the framework that held it."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    id: str
    messages: list[dict[str, Any]] = Field(default_factory=list)
    label: str | None = None
    reward: float | None = None  # None is "no reward", which is not a reward of 0
    remove_sample: bool = False  # neither rewarded nor trained
    frozen: bool = False  # rewarded if the grader wants to, never trained
    metrics: dict[str, float] = Field(default_factory=dict)
    extra_fields: dict[str, Any] = Field(default_factory=dict)


class SampleSource(ABC):
    """Something that can give its conversation as a sample, at any moment."""

    @abstractmethod
    async def get_sample(self, name: str) -> RolloutSample:
        """A sample with the id `name`, independent of what happens to the conversation later."""
        raise NotImplementedError


class MessagesSource(SampleSource):
    """Reads the `.messages` of an agent, or a list that is the messages: dicts with a role and a content.

    An agent with `osmosis_frozen = True` gives a frozen sample.
    """

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    async def get_sample(self, name: str) -> RolloutSample:
        agent = self._agent
        messages = agent if isinstance(agent, list) else getattr(agent, "messages", None) or []
        frozen = getattr(agent, "osmosis_frozen", False) is True
        return RolloutSample(
            id=name, messages=[clean_message(message) for message in list(messages)], frozen=frozen
        )


_TRACKING = frozenset({"tracking_id", "metadata"})  # what Strands adds to a message for itself


def clean_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy without the framework's own bookkeeping."""
    return {key: copied(value) for key, value in message.items() if key not in _TRACKING}


class Samples(dict[str, RolloutSample]):
    """The samples by id; may be used as it is, or awaited first.

    A source whose `get_sample` really waits for something can only be read by awaiting.
    """

    def __init__(self, sources: Mapping[str, SampleSource]) -> None:
        super().__init__()
        self._waiting: dict[str, SampleSource] = {}
        for name, source in sources.items():
            sample = _without_waiting(source.get_sample(name))
            if sample is None:
                self._waiting[name] = source
            else:
                self[name] = sample

    def __missing__(self, name: str) -> RolloutSample:
        if name in self._waiting:
            raise KeyError(f"sample {name!r} has to be awaited: use `await ctx.get_samples()`")
        raise KeyError(name)

    def __await__(self) -> Generator[Any, None, Samples]:
        return self._read_waiting().__await__()

    async def _read_waiting(self) -> Samples:
        while self._waiting:
            name, source = next(iter(self._waiting.items()))
            self[name] = await source.get_sample(name)
            del self._waiting[name]
        return self


def _without_waiting(reading: Coroutine[Any, Any, RolloutSample]) -> RolloutSample | None:
    """The result of a coroutine that never waits; None when this one does (it is then read again later)."""
    try:
        reading.send(None)
    except StopIteration as finished:
        sample: RolloutSample = finished.value
        return sample
    except RuntimeError as error:
        if "no running event loop" in str(error):
            return None  # it wants a loop, so it is one of those that wait
        raise
    reading.close()
    return None
