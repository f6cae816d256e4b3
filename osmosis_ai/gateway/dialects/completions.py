"""OpenAI Completions: a raw text goes on; no chat template, no tools.

The prompt is tokenised as it stands: nothing is put before it, no start token either, and texts of special
tokens in it become these tokens. A prompt that begins with an earlier prompt of the sample and the whole text
of its answer continues that turn's tokens (see `gateway/text_prompts.py`). The turn records the prompt as one
user message.

    honoured     prompt (one text), temperature, top_p, top_k, max_tokens, n, seed, stop, stream,
                 stream_options.include_usage, logprobs (0: of the sampled tokens)
    recorded     user
    neutral      best_of, echo, suffix, penalties: only the value that changes nothing
    refused      everything else; several prompts or token ids as prompt

A provider gets every parameter as it came, but `n`: it is asked n times.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import orjson

from osmosis_ai.gateway.call import MODEL, NO_WISH, ModelCall, Refusal, Reply, SamplingWish
from osmosis_ai.gateway.dialects import chat
from osmosis_ai.gateway.dialects.base import Recall
from osmosis_ai.gateway.dialects.parameters import (
    MAX_N,
    Neutral,
    bad,
    boolean,
    check_known,
    check_model,
    integer,
    load,
    stop_texts,
    temperature,
    top_p,
    unsupported,
)

WIRE = "completions"
ID_PREFIX = "cmpl-"
HEARTBEAT = chat.HEARTBEAT
NEUTRAL: Neutral = {
    "best_of": ((1,), "Send n, and choose in the agent"),
    "echo": ((False,), "The agent has the prompt"),
    "suffix": (("",), "Leave it out"),
    "presence_penalty": ((0,), "Leave it out"),
    "frequency_penalty": ((0,), "Leave it out"),
    "logit_bias": (({},), "Leave it out"),
}
_HANDLED = frozenset({"model", "prompt", "stream", "stream_options", "n"})
_WISHED = frozenset({"temperature", "top_p", "top_k", "max_tokens", "seed", "stop", "logprobs"})
_RECORDED = frozenset({"user"})


def parse(body: bytes, *, for_policy: bool, recall: Recall) -> ModelCall:
    """Read a request. Raises Refusal (400, or 404 for another model)."""
    request = load(body)
    check_model(request.get("model"))
    prompt = _prompt(request.get("prompt"))
    messages = [{"role": "user", "content": prompt}]
    stream, n = boolean(request, "stream"), integer(request, "n", 1, MAX_N) or 1
    chat.check_stream_options(request.get("stream_options"))
    params = {key: value for key, value in request.items() if key not in _HANDLED}
    if not for_policy:
        if "logprobs" in params:
            raise unsupported("logprobs", params["logprobs"], (), "A turn keeps no logprobs of a provider")
        return ModelCall(messages, [], stream, NO_WISH, messages, params, prompt=prompt, n=n)
    check_known(params, _HANDLED | _WISHED | _RECORDED, NEUTRAL)
    recorded = {key: params.pop(key) for key in _RECORDED & params.keys()}
    return ModelCall(messages, [], stream, _wish(params), messages, params, recorded, prompt=prompt, n=n)


def _prompt(prompt: Any) -> str:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str) or not prompt:
        raise bad("prompt", "must be one text that is not empty: token ids and lists of prompts are not read")
    return prompt


def _wish(params: dict[str, Any]) -> SamplingWish:
    logprobs = params.get("logprobs")
    if logprobs is not None and (isinstance(logprobs, bool) or logprobs != 0):
        raise unsupported("logprobs", logprobs, (0,), "0 gives those of the sampled tokens")
    return SamplingWish(
        temperature=temperature(params),
        top_p=top_p(params),
        top_k=integer(params, "top_k", 0),
        max_tokens=integer(params, "max_tokens", 1),
        seed=integer(params, "seed", 0),
        stop=stop_texts(params),
        logprobs=logprobs is not None,
        tools_allowed=False,
    )


def plain(call_id: str, call: ModelCall, replies: Sequence[Reply]) -> bytes:
    """The whole answer as one JSON object."""
    return orjson.dumps(
        {
            "id": call_id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": replies[0].turn.model,
            "choices": [
                _choice(i, r.turn.response["content"], r.turn.finish_reason, _logprobs(r))
                for i, r in enumerate(replies)
            ],
            "usage": chat.usage(replies),
            "system_fingerprint": chat.fingerprint(replies[0].turn),
        }
    )


def events(call_id: str, call: ModelCall) -> EventStream:
    return EventStream(call_id, call.n)


class EventStream:
    """Texts, a finish_reason for each answer, usage, [DONE]."""

    def __init__(self, call_id: str, n: int) -> None:
        self._call_id = call_id
        self._created = int(time.time())
        self._sent = [""] * n

    def start(self) -> bytes:
        return b""

    def text(self, index: int, delta: str) -> bytes:
        self._sent[index] += delta
        return self._event([_choice(index, delta)])

    def finish(self, replies: Sequence[Reply]) -> bytes:
        parts = []
        for index, reply in enumerate(replies):
            rest = chat.unsent(reply.turn.response["content"], self._sent[index])
            choice = _choice(index, rest, reply.turn.finish_reason, _logprobs(reply))
            parts.append(self._event([choice]))
        parts.append(self._event([], usage=chat.usage(replies)))
        return b"".join([*parts, b"data: [DONE]\n\n"])

    def error(self, refusal: Refusal) -> bytes:
        return b"event: error\ndata: " + error_body(refusal) + b"\n\n"

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        event = {
            "id": self._call_id,
            "object": "text_completion",
            "created": self._created,
            "model": MODEL,
            "choices": choices,
            **more,
        }
        return b"data: " + orjson.dumps(event) + b"\n\n"


def _choice(index: int, text: str, finish_reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish_reason, "logprobs": logprobs}


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    if reply.token_logprobs is None:
        return None
    tokens = [text for text, _ in reply.token_logprobs]
    return {
        "tokens": tokens,
        "token_logprobs": [logprob for _, logprob in reply.token_logprobs],
        "top_logprobs": None,
        "text_offset": [0, *accumulate(len(text) for text in tokens)][: len(tokens)],
    }


error_body = chat.error_body
counted = chat.counted
