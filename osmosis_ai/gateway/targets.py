"""Who answers: the policy, through an engine, with tokens; or a provider, with messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from osmosis_ai.engine.base import Completion, Engine, EngineInfo, OnToken, Sampling
from osmosis_ai.engine.completions import ParsedCompletion, parse_completion
from osmosis_ai.errors import ProviderError
from osmosis_ai.gateway.call import MODEL, Answer, ModelCall, Refusal, SamplingDefaults, SamplingWish
from osmosis_ai.gateway.messages import BadMessageError, canonical, read_arguments
from osmosis_ai.gateway.render import TextStream
from osmosis_ai.gateway.stops import StopFilter, first_stop, tokens_until
from osmosis_ai.gateway.text_prompts import SampleTree
from osmosis_ai.gateway.tree import ConversationTree, Placement, Renderer, TemplateRefusedError
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
        """One answer to the call, sampled with `seed`; `on_text` gets text as it comes.

        Raises Refusal for what is not supported, EngineError or ProviderError for what failed.
        """
        ...

    def count(self, call: ModelCall, tree: ConversationTree) -> int:
        """How many tokens the prompt of the call has. Raises Refusal."""
        ...


class PolicyTarget:
    """The policy: the prompt is placed in the sample's tree, sampled from, and parsed."""

    is_policy = True

    def __init__(self, engine: Engine, info: EngineInfo, renderer: Renderer) -> None:
        self._engine = engine
        self._info = info
        self._renderer = renderer

    def new_tree(self) -> SampleTree:
        return SampleTree(self._renderer)

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnText | None,
    ) -> Answer:
        stop_ids, stop_texts = self._stops(call.wish.stop)
        sampling = _sampling(call.wish, defaults, seed, stop_ids)
        placement = self._place(call, tree)
        sampling = self._within_context(sampling, len(placement.prompt_ids))
        ends = {*self._info.eos_token_ids, *stop_ids}
        calls_tools = call.wish.tools_allowed and bool(call.tools)
        on_token = None
        if on_text is not None or stop_texts:
            on_token = self._on_token(on_text, ends, stop_texts, calls_tools)
        completion = await self._engine.sample(placement.prompt_ids, sampling, on_token)
        read = self._read(completion, ends, stop_texts)
        parsed = parse_completion(read.text) if calls_tools else ParsedCompletion(content=read.text)
        return Answer(
            message=_message(parsed),
            finish_reason=_finish_reason(read.completion, parsed),
            placement=placement,
            completion_ids=read.completion.token_ids,
            logprobs=read.completion.logprobs,
            policy_version=completion.version,
            prompt_tokens=len(placement.prompt_ids),
            completion_tokens=len(read.completion.token_ids),
            sampling={**_in_force(sampling, call), **read.stopped},
            model=MODEL,
            malformed_tool_calls=len(parsed.malformed),
            token_logprobs=self._token_logprobs(read) if call.wish.logprobs else None,
        )

    def count(self, call: ModelCall, tree: ConversationTree) -> int:
        """How many tokens the prompt of the call has, at this place of its sample."""
        return len(self._place(call, tree).prompt_ids)

    def _place(self, call: ModelCall, tree: ConversationTree) -> Placement:
        try:
            return _placed(call, tree)
        except TemplateRefusedError as error:
            raise Refusal(
                400,
                f"the policy's chat template does not take these messages: {error}",
                code="template_refused",
                param="messages",
            ) from error

    def _on_token(
        self, on_text: OnText | None, ends: set[int], stop_texts: Sequence[str], calls_tools: bool
    ) -> OnToken:
        """Hands the text on, and ends the engine's work where a stop text is complete."""
        stream = TextStream(self._renderer.decode, tool_calls=calls_tools)
        stops = StopFilter(stop_texts) if stop_texts else None

        def on_token(token_id: int) -> bool:
            text = "" if token_id in ends else stream.push(token_id)
            if stops is not None and text:
                text = stops.push(text)
            if text and on_text is not None:
                on_text(text)
            return stops is not None and stops.stopped

        return on_token

    def _stops(self, stop: tuple[str, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The stops that are single special tokens, and the texts."""
        ids = {text: self._renderer.special_id(text) for text in stop}
        tokens = tuple(token_id for token_id in ids.values() if token_id is not None)
        return tokens, tuple(text for text, token_id in ids.items() if token_id is None)

    def _read(self, completion: Completion, ends: set[int], stop_texts: Sequence[str]) -> _Read:
        ids = completion.token_ids
        ended = bool(ids) and ids[-1] in ends
        shown = ids[:-1] if ended else ids
        text = self._renderer.decode(shown)
        found = first_stop(text, stop_texts)
        if found is None:
            by_token = ended and ids[-1] not in self._info.eos_token_ids
            stopped = {"stopped_by": self._renderer.decode(ids[-1:])} if by_token else {}
            return _Read(completion, text, len(shown), stopped)
        place, stop = found
        kept = tokens_until(shown, text[: place + len(stop)], self._renderer.decode)
        cut = replace(
            completion, token_ids=ids[:kept], logprobs=completion.logprobs[:kept], finish_reason="stop"
        )
        return _Read(cut, text[:place], kept, {"stopped_by": stop, "tokens_after_stop": len(ids) - kept})

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

    def _token_logprobs(self, read: _Read) -> list[tuple[str, float]]:
        completion, shown = read.completion, read.shown
        pairs = zip(completion.token_ids[:shown], completion.logprobs[:shown], strict=True)
        return [(self._renderer.decode([token_id]), logprob) for token_id, logprob in pairs]


@dataclass(frozen=True, slots=True)
class _Read:
    """A completion as text."""

    completion: Completion  # cut behind the stop text that ends it
    text: str
    shown: int  # tokens that have a text: all but an end token
    stopped: dict[str, Any]  # which stop ended it, for the record


class ProviderTarget:
    """An external model. Its turns have no tokens, so they can be graded and imitated, not reinforced.

    A streaming agent gets the provider's text as it comes, reasoning and tool calls with its end.
    """

    is_policy = False

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def new_tree(self) -> SampleTree:
        return SampleTree(None)

    async def answer(
        self,
        call: ModelCall,
        tree: ConversationTree,
        defaults: SamplingDefaults,
        seed: int,
        on_text: OnText | None,
    ) -> Answer:
        params = _with_defaults(call.native_params, defaults)
        if isinstance(params.get("seed"), int):
            params["seed"] = seed
        placement = _placed(call, tree)
        request = ProviderRequest(
            call.native_messages, call.tools, params, seed, call.prompt, placement.messages
        )
        answer = await self._provider.complete(request, on_text)
        message = _provider_message(answer)
        return Answer(
            message=message,
            finish_reason=answer.finish_reason,
            placement=placement,
            completion_ids=[],
            logprobs=[],
            policy_version=None,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
            sampling=_as_sampled(params, seed, answer),
            model=answer.model,
            malformed_tool_calls=_num_malformed(message),
            native=answer.native,
        )

    def count(self, call: ModelCall, tree: ConversationTree) -> int:
        raise Refusal(
            400,
            "a provider's tokens are known when it has answered, and Osmosis does not estimate them. "
            "Read the usage of the answers",
            code="unsupported_with_provider",
        )


def _as_sampled(params: dict[str, Any], seed: int, answer: ProviderAnswer) -> dict[str, Any]:
    """What is kept of how a provider answered: the parameters, and what it had cached of the prompt."""
    cached = {"cached_tokens": answer.cached_tokens} if answer.cached_tokens else {}
    return {**params, "seed": seed, **cached}


def _num_malformed(message: Message) -> int:
    """Tool calls whose arguments are no JSON object; no arguments at all are none missing."""
    texts = [call["function"]["arguments"] for call in message.get("tool_calls") or []]
    return sum(bool(text) and read_arguments(text) is None for text in texts)


def own_seed(call: ModelCall) -> int | None:
    """The seed that the call brings itself."""
    seed = call.wish.seed if call.wish.seed is not None else call.native_params.get("seed")
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else None


def _placed(call: ModelCall, tree: ConversationTree) -> Placement:
    if call.prompt is not None and isinstance(tree, SampleTree):
        return tree.place_text(call.prompt)
    return tree.place(call.messages, call.tools)


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
        seed=seed,
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
