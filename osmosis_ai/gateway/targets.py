"""Who answers: the policy, through an engine, with tokens; or a provider, with messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from osmosis_ai.engine.base import Completion, Engine, EngineInfo, Sampling
from osmosis_ai.engine.completions import ParsedCompletion, parse_completion
from osmosis_ai.errors import ProviderError
from osmosis_ai.gateway.call import MODEL, Answer, ModelCall, Refusal, SamplingDefaults, SamplingWish
from osmosis_ai.gateway.messages import BadMessageError, canonical
from osmosis_ai.gateway.render import TextStream
from osmosis_ai.gateway.tree import ConversationTree, Renderer, TemplateRefusedError
from osmosis_ai.providers.base import Provider, ProviderAnswer, ProviderRequest
from osmosis_ai.types import Message

OnText = Callable[[str], None]


class Target(Protocol):
    """What stands behind the gateway."""

    is_policy: bool  # True: requests are read in full, and refused where the policy cannot honour them

    def new_tree(self) -> ConversationTree:
        """An empty tree for a sample."""
        ...

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnText | None,
    ) -> Answer:
        """Answer one call; `seed` holds unless the call brings its own; `on_text` gets text as it comes.

        Raises Refusal for what is not supported, EngineError or ProviderError for what failed.
        """
        ...


class PolicyTarget:
    """The policy: the prompt is placed in the sample's tree, sampled from, and parsed."""

    is_policy = True

    def __init__(self, engine: Engine, info: EngineInfo, renderer: Renderer) -> None:
        self._engine = engine
        self._info = info
        self._renderer = renderer

    def new_tree(self) -> ConversationTree:
        return ConversationTree(self._renderer)

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnText | None,
    ) -> Answer:
        stop_ids = self._stop_ids(call.wish.stop)
        sampling = _sampling(call.wish, defaults, seed, stop_ids)
        try:
            placement = tree.place(call.messages, call.tools)
        except TemplateRefusedError as error:
            raise Refusal(
                400,
                f"the policy's chat template does not take these messages: {error}",
                code="template_refused",
                param="messages",
            ) from error
        sampling = self._within_context(sampling, len(placement.prompt_ids))
        ends = {*self._info.eos_token_ids, *stop_ids}
        calls_tools = call.wish.tools_allowed and bool(call.tools)
        on_token = None if on_text is None else self._on_token(on_text, ends, calls_tools)
        completion = await self._engine.sample(placement.prompt_ids, sampling, on_token)
        text_ids = completion.token_ids
        if text_ids and text_ids[-1] in ends:
            text_ids = text_ids[:-1]
        text = self._renderer.decode(text_ids)
        parsed = parse_completion(text) if calls_tools else ParsedCompletion(content=text)
        return Answer(
            message=_message(parsed),
            finish_reason=_finish_reason(completion, parsed),
            placement=placement,
            completion_ids=completion.token_ids,
            logprobs=completion.logprobs,
            policy_version=completion.version,
            prompt_tokens=len(placement.prompt_ids),
            completion_tokens=len(completion.token_ids),
            sampling=_in_force(sampling, call),
            model=MODEL,
            malformed_tool_calls=len(parsed.malformed),
            token_logprobs=self._token_logprobs(completion, len(text_ids)) if call.wish.logprobs else None,
        )

    def _on_token(self, on_text: OnText, ends: set[int], calls_tools: bool) -> Callable[[int], None]:
        stream = TextStream(self._renderer.decode, tool_calls=calls_tools)

        def on_token(token_id: int) -> None:
            if token_id not in ends and (text := stream.push(token_id)):
                on_text(text)

        return on_token

    def _stop_ids(self, stop: tuple[str, ...]) -> tuple[int, ...]:
        ids = []
        for text in stop:
            token_id = self._renderer.special_id(text)
            if token_id is None:
                raise Refusal(
                    400,
                    f"stop {text!r} is not supported: the policy stops at single special tokens only, and "
                    "its tokenizer has none of this text. Cut the text in the agent, or set max_tokens",
                    code="unsupported_parameter",
                    param="stop",
                )
            ids.append(token_id)
        return tuple(ids)

    def _within_context(self, sampling: Sampling, prompt_tokens: int) -> Sampling:
        rest = self._info.max_context - prompt_tokens
        if rest < 1:
            raise Refusal(
                400,
                f"the prompt has {prompt_tokens} tokens and the policy's context is "
                f"{self._info.max_context}, prompt and completion together. Shorten the conversation",
                code="context_length_exceeded",
                param="messages",
            )
        return replace(sampling, max_tokens=min(sampling.max_tokens, rest) if sampling.max_tokens else rest)

    def _token_logprobs(self, completion: Completion, shown: int) -> list[tuple[str, float]]:
        pairs = zip(completion.token_ids[:shown], completion.logprobs[:shown], strict=True)
        return [(self._renderer.decode([token_id]), logprob) for token_id, logprob in pairs]


class ProviderTarget:
    """An external model. Its turns have no tokens, so they can be graded and imitated, not reinforced.

    A streaming agent gets the whole message as one delta: what a provider streams is not passed through yet.
    """

    is_policy = False

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def new_tree(self) -> ConversationTree:
        return ConversationTree(None)

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnText | None,
    ) -> Answer:
        params = _with_defaults(call.native_params, defaults)
        own_seed = params.get("seed")
        seed = own_seed if isinstance(own_seed, int) else seed
        answer = await self._provider.complete(
            ProviderRequest(messages=call.native_messages, tools=call.tools, params=params, seed=seed)
        )
        message = _provider_message(answer)
        return Answer(
            message=message,
            finish_reason=answer.finish_reason,
            placement=tree.place(call.messages, call.tools),
            completion_ids=[],
            logprobs=[],
            policy_version=None,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            sampling={**params, "seed": seed},
            model=answer.model,
        )


def _sampling(
    wish: SamplingWish, defaults: SamplingDefaults, seed: int, stop_ids: tuple[int, ...]
) -> Sampling:
    """What to sample with; max_tokens 0 stands for "the rest of the context"."""
    sampling = Sampling(
        temperature=_first(wish.temperature, defaults.temperature, 1.0),
        top_p=_first(wish.top_p, defaults.top_p, 1.0),
        top_k=int(_first(wish.top_k, defaults.top_k, 0)),
        max_tokens=min(
            wish.max_tokens or defaults.max_tokens or 0, defaults.max_tokens or wish.max_tokens or 0
        ),
        seed=seed if wish.seed is None else wish.seed,
        stop_ids=stop_ids,
    )
    if defaults.training:
        _same_distribution(sampling)
    return sampling


def _same_distribution(sampling: Sampling) -> None:
    """In training, only what the trainer can score: softmax(logits / temperature) over all tokens."""
    problem = None
    if sampling.temperature <= 0:
        problem = ("temperature", sampling.temperature, "above 0")
    elif sampling.top_p < 1:
        problem = ("top_p", sampling.top_p, "1")
    elif sampling.top_k > 0:
        problem = ("top_k", sampling.top_k, "0")
    if problem:
        name, value, allowed = problem
        raise Refusal(
            400,
            f"{name} must be {allowed} while the policy is trained, got {value}: the trainer must score the "
            "very distribution that was sampled. Leave it out, or set it in eval only",
            code="unsupported_in_training",
            param=name,
        )


def _first(wished: float | None, default: float | None, otherwise: float) -> float:
    return wished if wished is not None else default if default is not None else otherwise


def _in_force(sampling: Sampling, call: ModelCall) -> dict[str, Any]:
    in_force: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "seed": sampling.seed,
    }
    if call.wish.stop:
        in_force["stop"] = list(call.wish.stop)
    if not call.wish.tools_allowed:
        in_force["tool_choice"] = "none"
    return {**in_force, **call.recorded}


def _message(parsed: ParsedCompletion) -> Message:
    message: Message = {"role": "assistant", "content": parsed.content or ""}
    if parsed.tool_calls:
        message["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in parsed.tool_calls
        ]
    return message


def _finish_reason(completion: Completion, parsed: ParsedCompletion) -> str:
    """An answer that was cut short says so, even behind a whole tool call."""
    if completion.finish_reason == "length":
        return "length"
    return "tool_calls" if parsed.tool_calls else "stop"


def _with_defaults(params: dict[str, Any], defaults: SamplingDefaults) -> dict[str, Any]:
    named = {"temperature": defaults.temperature, "top_p": defaults.top_p, "top_k": defaults.top_k}
    if "max_completion_tokens" not in params:
        named["max_tokens"] = defaults.max_tokens
    return {**{key: value for key, value in named.items() if value is not None}, **params}


def _provider_message(answer: ProviderAnswer) -> Message:
    raw = dict(answer.message)
    calls = raw.get("tool_calls")
    if isinstance(calls, list):  # a scripted answer may leave the ids to the gateway, which fills "" in
        raw["tool_calls"] = [{"id": "", **call} if isinstance(call, dict) else call for call in calls]
    try:
        message = canonical({"role": "assistant", **raw}, "message", text_only=False)
    except BadMessageError as error:
        raise ProviderError(
            f"{answer.model} answered with a message that is no assistant message: {error}", retryable=False
        ) from error
    if message["role"] != "assistant":
        raise ProviderError(
            f"{answer.model} answered as {message['role']!r}, not as assistant", retryable=False
        )
    return message
