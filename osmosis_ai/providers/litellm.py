"""Every API that LiteLLM knows, by its name for the model. LiteLLM is imported when a provider is made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson

from osmosis_ai.errors import ProviderError, UsageError
from osmosis_ai.providers.base import OnText, ProviderAnswer, ProviderRequest, ProviderState
from osmosis_ai.providers.breaker import BreakerPolicy
from osmosis_ai.providers.patience import Patience, RetryPolicy, Try
from osmosis_ai.providers.reply import Reply
from osmosis_ai.providers.streamed import StreamedAnswer, StreamedError
from osmosis_ai.providers.traffic import DEFAULT_MOST

# What an agent may say. LiteLLM has parameters of its own beside these: one says where the key is sent.
PARAMS = frozenset(
    {
        "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "stop", "seed", "tool_choice",
        "parallel_tool_calls", "presence_penalty", "frequency_penalty", "logit_bias", "response_format",
        "reasoning_effort", "verbosity", "user",
    }
)  # fmt: skip
_JSON = {b"content-type": b"application/json"}


@dataclass(slots=True)
class _Stream:
    """What of a streamed answer has been handed on."""

    on_text: OnText
    handed_on: bool = False

    def hand_on(self, text: str) -> None:
        self.handed_on = True
        self.on_text(text)


class LiteLLMProvider:
    """Calls `litellm.acompletion`, without LiteLLM's own retries: what fails is tried again as elsewhere.

    Errors become those of an OpenAI-compatible endpoint with the same status (see `Reply`).
    """

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        total_seconds: float = 600.0,
        retry: RetryPolicy | None = None,
        breaker: BreakerPolicy | None = None,
        most: int = DEFAULT_MOST,
        table: str = "llm",
    ) -> None:
        """`model` is PROVIDER/MODEL. Without `api_key` LiteLLM takes the provider's own variables.

        Raises UsageError, which names the `table` of the configuration, for a provider that LiteLLM does not
        know, and when its key is missing.
        """
        self._litellm = _imported()
        self._model = model
        self._name = f"LiteLLM's {model}"
        self._options = {"model": model, "timeout": total_seconds, "num_retries": 0, "max_retries": 0}
        if api_key:
            self._options["api_key"] = api_key
        self._check(api_key, table)
        self._total_seconds = total_seconds
        self._patience = Patience(self._name, retry, most=most, breaker=breaker)

    def _check(self, api_key: str | None, table: str) -> None:
        try:
            self._litellm.get_llm_provider(self._model)
        except self._litellm.exceptions.BadRequestError as error:
            provider = self._model.partition("/")[0]
            raise UsageError(
                f"{table}.model = {self._model!r}: without a base_url this is PROVIDER/MODEL in the words of "
                f"LiteLLM, and LiteLLM knows no provider {provider!r}. Give {table}.base_url, or a name like "
                '"anthropic/claude-sonnet-4-5".'
            ) from error
        missing = self._litellm.validate_environment(self._model)["missing_keys"]
        keys = " or ".join(name for name in missing if name.endswith("_API_KEY"))
        if keys and not api_key:
            raise UsageError(
                f"{table}.model = {self._model!r} needs a key: export {keys}=... first, and name the "
                f"variable in {table}.api_key_env, so that the agents do not get it."
            )

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        body = self._body(request)
        stream = None if on_text is None else _Stream(on_text)
        key = hash(orjson.dumps([*request.messages, request.params]))
        send = partial(self._send, body, stream)
        return await self._patience.answer(Try(send, key, lambda: stream is not None and stream.handed_on))

    def state(self) -> ProviderState:
        return self._patience.state()

    async def close(self) -> None:
        self._patience.close()
        await self._litellm.close_litellm_async_clients()

    def _body(self, request: ProviderRequest) -> dict[str, Any]:
        if request.prompt is not None:
            raise _refusal(
                "raw text completions are for an endpoint with llm.base_url; call chat completions"
            )
        if foreign := sorted(request.params.keys() - PARAMS):
            raise _refusal(
                f"{', '.join(foreign)} cannot be passed to {self._name}. It takes {', '.join(sorted(PARAMS))}"
            )
        body = {"messages": list(request.messages), **request.params}
        if "claude" in self._model and body.get("top_p") == 1:
            del body["top_p"]  # it says nothing, and newer models refuse it beside a temperature
        return {**body, "tools": list(request.tools)} if request.tools else body

    async def _send(self, body: Mapping[str, Any], stream: _Stream | None) -> ProviderAnswer:
        return (await self._reply(body, stream)).answer(self._model)

    async def _reply(self, body: Mapping[str, Any], stream: _Stream | None) -> Reply:
        """The response, as an OpenAI-compatible endpoint would have given it."""
        try:
            async with asyncio.timeout(self._total_seconds):
                document = await (self._plain(body) if stream is None else self._streamed(body, stream))
        except (TimeoutError, self._litellm.exceptions.Timeout) as error:
            raise ProviderError(
                f"{self._name} did not answer: no whole answer within {self._total_seconds:g} s", status=504
            ) from error
        except ProviderError:
            raise
        # LiteLLM raises its own kinds for what an API answered, and anything at all for what it cannot read.
        except Exception as error:
            return self._failure(error)
        return Reply(self._name, 200, _JSON, document=document)

    async def _plain(self, body: Mapping[str, Any]) -> dict[str, Any]:
        response = await self._litellm.acompletion(**body, **self._options)
        document: dict[str, Any] = response.model_dump(exclude_none=True)
        return document

    async def _streamed(self, body: Mapping[str, Any], stream: _Stream) -> dict[str, Any]:
        answer = StreamedAnswer(stream.hand_on)
        options = {**self._options, "stream": True, "stream_options": {"include_usage": True}}
        try:
            async for chunk in await self._litellm.acompletion(**body, **options):
                answer.feed(b"data: " + orjson.dumps(chunk.model_dump(exclude_none=True)) + b"\n")
        except StreamedError as error:
            raise ProviderError(f"{self._name} broke its stream off with an error: {error}") from error
        if not answer.is_whole:
            raise ProviderError(f"{self._name} ended its stream early, without a finish_reason")
        return answer.document

    def _failure(self, error: Exception) -> Reply:
        """The response that an exception stands for."""
        kinds = self._litellm.exceptions
        code = getattr(error, "code", None)
        if isinstance(error, kinds.ContextWindowExceededError):
            code = "context_length_exceeded"
        elif isinstance(error, kinds.ContentPolicyViolationError):
            code = "content_filter"
        status = getattr(error, "status_code", None)
        answered = getattr(getattr(error, "response", None), "headers", None) or {}
        retry_after = answered.get("retry-after")
        headers = _JSON if retry_after is None else {**_JSON, b"retry-after": str(retry_after).encode()}
        text = str(error) or type(error).__name__
        document = {"error": {"code": code if isinstance(code, str) else None, "message": text}}
        return Reply(
            url=self._name,
            status=status if isinstance(status, int) and status != 200 else 500,
            headers=headers,
            body=orjson.dumps(document),
        )


def _refusal(what: str) -> ProviderError:
    return ProviderError(what, status=400, retryable=False)


def _imported() -> Any:
    # LiteLLM fetches a price list from the network when it is imported, unless this is set.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    litellm.suppress_debug_info = True  # it would print advice to standard output
    return litellm
