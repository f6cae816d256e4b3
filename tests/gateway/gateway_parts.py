"""What the gateway's tests are built from: an engine that answers a text, a store in memory, a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp

from osmosis_ai.engine.base import Completion, EngineInfo, OnToken, Sampling
from osmosis_ai.engine.policy import train_tokenizer
from osmosis_ai.errors import StoreError
from osmosis_ai.gateway.app import Gateway, SamplingDefaults
from osmosis_ai.gateway.render import TemplateRenderer
from osmosis_ai.gateway.targets import PolicyTarget, Target
from osmosis_ai.store.base import Native
from osmosis_ai.train.samples import training_samples
from osmosis_ai.types import Rollout, Turn

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}
CALL_2_3 = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def make_tokenizer_folder(folder: Path, template: str, *, eos: str = "<|im_end|>") -> Path:
    from transformers import PreTrainedTokenizerFast

    texts = ["What is 37 times 4?", "The answer is 148.", "Tools:\nadd(a: integer, b: integer): Add."] * 20
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=train_tokenizer(texts, vocab_size=400), eos_token=eos, pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


class TextEngine:
    """Answers with the text that `answer(prompt_text, sampling)` gives, token by token; keeps its own log."""

    def __init__(self, answer: Callable[[str, Sampling], str], renderer: TemplateRenderer) -> None:
        self.answer = answer
        self.renderer = renderer
        self.log: list[tuple[list[int], Sampling, Completion]] = []
        self.asked: list[Sampling] = []  # answered or not
        self.cancelled = 0
        self.hold: asyncio.Event | None = None  # set by a test: no answer before the event
        self.hold_after = 0  # tokens that come before the hold

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> Completion:
        self.asked.append(sampling)
        text = self.answer(self.renderer.decode(prompt_ids), sampling)
        whole = [*self.renderer.encode(text), self.renderer.end_ids[0]]
        ids = whole[: sampling.max_tokens]
        try:
            for position, token_id in enumerate(ids):
                if self.hold is not None and position >= self.hold_after:
                    await self.hold.wait()
                if on_token is not None:
                    enough = on_token(token_id)
                    await asyncio.sleep(0)
                    if enough:
                        ids = ids[: position + 1]
                        whole = ids
                        break
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        done = Completion(ids, [-0.5] * len(ids), "stop" if ids == whole else "length", version=3)
        self.log.append((list(prompt_ids), sampling, done))
        return done


@dataclass
class MemoryStore:
    """Turns in memory, with the one rule of the seam: ordinals without gaps."""

    turns: dict[str, list[Turn]] = field(default_factory=dict)
    broken: bool = False
    delay_seconds: float = 0.0

    async def append_turn(self, turn: Turn, call: str | None = None, native: Native | None = None) -> None:
        await asyncio.sleep(self.delay_seconds)
        if self.broken:
            raise StoreError("no space left on the disk")
        turns = self.turns.setdefault(turn.rollout_id, [])
        assert turn.ordinal == len(turns)
        turns.append(turn)


def info(max_context: int = 4096, eos: tuple[int, ...] = ()) -> EngineInfo:
    return EngineInfo(
        version=3,
        vocab_size=1000,
        max_context=max_context,
        num_parameters=0,
        num_trainable=0,
        device="cpu",
        arithmetic="float32",
        eos_token_ids=eos,
    )


@dataclass
class OpenGateway:
    """A started gateway with one admitted rollout, r1, and a client for it."""

    gateway: Gateway
    engine: TextEngine
    session: aiohttp.ClientSession
    key: str

    @classmethod
    async def start(
        cls,
        answer: Callable[[str, Sampling], str] | str,
        renderer: TemplateRenderer,
        store: MemoryStore,
        session: aiohttp.ClientSession,
        *,
        max_context: int = 4096,
        sampling: SamplingDefaults | None = None,
        heartbeat_seconds: float = 15.0,
        extra_routes: Any = None,
        target: Target | None = None,
        **limits: int,
    ) -> OpenGateway:
        engine = TextEngine(answer if callable(answer) else lambda *_: answer, renderer)
        target = target or PolicyTarget(engine, info(max_context, renderer.end_ids), renderer)
        gateway = Gateway(target, store, extra_routes=extra_routes, heartbeat_seconds=heartbeat_seconds)
        await gateway.start()
        key = gateway.admit("r1", seed=7, sampling=sampling, **limits)
        return cls(gateway, engine, session, key)

    def headers(self, sample: str | None = None, **more: str) -> dict[str, str]:
        named = {} if sample is None else {"x-sample-id": sample}
        return {"authorization": f"Bearer {self.key}", **named, **more}

    async def post(
        self,
        body: Any,
        *,
        path: str = "/v1/chat/completions",
        headers: dict[str, str] | None = None,
        sample: str | None = None,
    ) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.headers(sample) if headers is None else headers
        async with self.session.post(self.gateway.base_url + path, data=data, headers=headers) as response:
            return response.status, json.loads(await response.read())

    async def chat(self, *messages: Any, sample: str | None = None, **params: Any) -> tuple[int, Any]:
        body = {"model": "osmosis-rollout", "messages": list(messages), **params}
        return await self.post(body, sample=sample)

    async def say(self, *messages: Any, **params: Any) -> dict[str, Any]:
        """The assistant message of a call that must succeed."""
        status, answer = await self.chat(*messages, **params)
        assert status == 200, answer
        return answer["choices"][0]["message"]

    async def stream(self, *messages: Any, **params: Any) -> list[str]:
        """The raw events of a streamed call."""
        body = {"model": "osmosis-rollout", "messages": list(messages), "stream": True, **params}
        url = self.gateway.base_url + "/v1/chat/completions"
        async with self.session.post(url, json=body, headers=self.headers()) as response:
            assert response.status == 200, await response.text()
            return [event for event in (await response.text()).split("\n\n") if event]


def chunks(events: list[str]) -> list[dict[str, Any]]:
    """The JSON of the data events, but [DONE]."""
    bodies = [event.removeprefix("data: ") for event in events if event.startswith("data: ")]
    return [json.loads(body) for body in bodies if body != "[DONE]"]


def streamed_text(events: list[str]) -> str:
    deltas = [choice["delta"] for chunk in chunks(events) for choice in chunk["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def in_turn(answers: Sequence[str], mark: str = "<|im_start|>assistant") -> Callable[[str, Sampling], str]:
    """The answers one after the other, by how many of them the prompt has already."""
    return lambda prompt, _: answers[prompt.count(mark) - 1]


def assert_one_exact_training_sample(g: OpenGateway, turns: list[Turn]) -> None:
    """All that was sampled, exactly as it was sampled, and nothing else: one branch, each token once."""
    assert [(turn.parent, turn.branch_reason) for turn in turns] == [
        (None if i == 0 else i - 1, None) for i in range(len(turns))
    ]
    for before, turn in pairwise(turns):
        known = before.prompt_ids + before.completion_ids
        assert turn.prompt_ids[: len(known)] == known
    rollout = Rollout("r1", "run", 0, "g0", 0, turns=turns)
    [sample] = training_samples(rollout, {"main": 1.0})
    trained = [t for t, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    assert trained == [token_id for turn in turns for token_id in turn.completion_ids]
    assert [turn.prompt_ids for turn in turns] == [prompt_ids for prompt_ids, _, _ in g.engine.log]
    for turn, (_, _, completion) in zip(turns, g.engine.log, strict=True):
        assert completion.token_ids[: len(turn.completion_ids)] == turn.completion_ids
    assert g.gateway.counters("r1").refused == {}
