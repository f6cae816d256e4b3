"""Sampling from the policy: transformers' continuous batching, with our own way of choosing tokens.

The manager of transformers batches, pages and schedules. It has one global random state and knows no seed of
a request, so the choice of tokens is replaced by `draw_tokens`: the token at position i of a completion
depends on the weights, the prompt, the request's seed and i, never on what else is in the batch.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from osmosis_ai.engine.base import Completion, OnToken, Sampling
from osmosis_ai.engine.uniform import uniform
from osmosis_ai.errors import EngineError

TESTED = "transformers>=5.22,<5.24"  # of which private parts are used: see `_take_over`
PAGE_TOKENS = 32
BATCH_TOKENS = 2048  # of prompts, in one forward pass


def log_distribution(logits: torch.Tensor, temperatures: torch.Tensor) -> torch.Tensor:
    """log_softmax(logits / temperature) of [N, V] logits, temperatures [N]; 0 counts as 1.

    The sampler and the trainer both call this, on logits rounded to fp32, so that they cannot differ in it.
    """
    divisors = torch.where(temperatures == 0, 1.0, temperatures).to(torch.float32)
    return torch.log_softmax(logits.float() / divisors[:, None], dim=-1)


def draw_tokens(
    logits: torch.Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Choose one token per row of `logits` [R, V]; returns ids [R] and their log-probabilities [R].

    The token is where the cumulated probability passes the row's uniform number: probabilities [0.5, 0.2,
    0.3] and 0.6 give token 1. The log-probability is that of the distribution it was drawn from: after
    temperature, then top_k, then top_p. Temperature 0 takes the likeliest token, with its log-probability at
    temperature 1.
    """
    temperatures = torch.tensor([s.temperature for s in samplings], dtype=torch.float32, device=logits.device)
    logprobs = log_distribution(logits, temperatures)
    for row, sampling in enumerate(samplings):
        if sampling.temperature > 0 and (sampling.top_k > 0 or sampling.top_p < 1):
            logprobs[row] = _truncate(logprobs[row], sampling.top_k, sampling.top_p)
    # MPS has no doubles; there the cumulated sum is made on the CPU.
    exact = logprobs.cpu() if logprobs.device.type == "mps" else logprobs
    cumulated = exact.double().exp().cumsum(dim=-1)
    numbers = torch.tensor(uniforms, dtype=torch.float64, device=cumulated.device)[:, None]
    # right=True never lands on a token of probability 0; u < 1 keeps the target below the last sum.
    ids = torch.searchsorted(cumulated, numbers * cumulated[:, -1:], right=True).to(logprobs.device)
    greedy = (temperatures == 0)[:, None]
    ids = torch.where(greedy, logprobs.argmax(dim=-1, keepdim=True), ids)
    return ids[:, 0].tolist(), logprobs.gather(1, ids)[:, 0].tolist()


def _truncate(logprobs: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Keep the top_k likeliest of [V] tokens, then the fewest whose probabilities reach top_p."""
    ordered, order = logprobs.sort(descending=True, stable=True)
    kept = ordered.clone()
    if top_k > 0:
        kept[top_k:] = -math.inf
    kept = torch.log_softmax(kept, dim=-1)
    if top_p < 1:
        probabilities = kept.exp()
        before = probabilities.cumsum(dim=-1) - probabilities
        kept[1:][before[1:] >= top_p] = -math.inf  # the likeliest always stays
    return torch.full_like(logprobs, -math.inf).scatter(0, order, torch.log_softmax(kept, dim=-1))


@dataclass(slots=True)
class _Request:
    """One completion under way. The sampling thread appends tokens; the event loop waits for the end."""

    sampling: Sampling
    end_ids: frozenset[int]
    on_token: OnToken | None
    loop: asyncio.AbstractEventLoop
    ended: asyncio.Future[None]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    reported: int = 0  # tokens that `on_token` has got
    enough: bool = False  # it wants no more; what was sampled meanwhile is dropped

    @property
    def next_uniform(self) -> float:
        return uniform(self.sampling.seed, len(self.token_ids))

    def append(self, token_id: int, logprob: float) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        if self.on_token is not None:
            self.loop.call_soon_threadsafe(self._report, token_id)

    def _report(self, token_id: int) -> None:
        if self.on_token is None or self.ended.done():
            return
        self.reported += 1
        if self.on_token(token_id):
            self.enough = True
            self.ended.set_result(None)

    def end(self, error: str | None) -> None:
        """On the event loop."""
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(EngineError(f"sampling failed: {error}"))


class Sampler:
    """A thread that samples from `model` for any number of callers at once."""

    def __init__(
        self, model: Any, *, max_requests: int, cache_tokens: int, eos_ids: Sequence[int], share_blocks: bool
    ) -> None:
        self._eos_ids = frozenset(eos_ids)
        self._requests: dict[str, _Request] = {}
        self._numbers = itertools.count()
        self._closed = False
        self._last_error: str | None = None  # known before the manager records why its thread ended
        self._manager = _new_manager(model, max_requests, cache_tokens, share_blocks)
        self._processor = _take_over(self._manager, self._choose)
        started = threading.Event()
        # Daemon threads start daemon threads: a program that forgets `close` still ends.
        threading.Thread(target=self._watch, args=(started,), name="osmosis-sampler", daemon=True).start()
        started.wait()
        atexit.register(self.close)

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_token: OnToken | None
    ) -> Completion:
        """Sample one completion (its version is -1: the engine knows). Cancelling drops the request."""
        loop = asyncio.get_running_loop()
        name = f"osmosis-{next(self._numbers)}"
        request = _Request(
            sampling, self._eos_ids | set(sampling.stop_ids), on_token, loop, loop.create_future()
        )
        self._requests[name] = request
        try:
            self._submit(name, list(prompt_ids), request)
            await request.ended
        finally:
            self._requests.pop(name, None)
            if request.ended.cancelled() or not request.ended.done() or request.enough:
                self._manager.cancel_request(name)
                self._manager.output_router.result_handlers.pop(name, None)
        if request.enough:
            kept = request.reported
            return Completion(request.token_ids[:kept], request.logprobs[:kept], "stop", version=-1)
        finish = "stop" if request.token_ids[-1] in request.end_ids else "length"
        return Completion(request.token_ids, request.logprobs, finish, version=-1)  # type: ignore[arg-type]

    def _submit(self, name: str, prompt_ids: list[int], request: _Request) -> None:
        manager = self._manager
        manager.register_result_handler(
            name, lambda output: self._end(request, output) if output.is_finished() else None
        )
        accepted = (
            None
            if self._closed
            else manager.add_request(
                prompt_ids,
                request_id=name,
                max_new_tokens=request.sampling.max_tokens,
                eos_token_id=sorted(request.end_ids),
            )
        )
        # Asked again after the request was queued: the thread may have ended between the two.
        if accepted is None or not manager.is_running():
            raise self._ended()

    def _end(self, request: _Request, output: Any) -> None:
        """On the event loop, with the manager's last word on the request."""
        self._last_error = output.error or self._last_error
        request.end(output.error)

    def _choose(self, scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Stands in for the manager's `_sample`: scores [1, N, V], of which the first R rows sample a token.

        The rows follow the order of the batch, leaving out requests whose prompt is not read to its end yet:
        batch [a (decoding), b (first chunk of its prompt), c (decoding)] has scores for a, c, then padding.
        """
        batch = self._processor.inputs_and_outputs.requests_in_batch
        names = [future.state.request_id for future in batch if future.has_new_token]
        if not names:
            return
        # None: the caller was cancelled while this batch was running, and nobody will read the token.
        requests = [self._requests.get(name) for name in names]
        ids, logprobs = draw_tokens(
            scores[0, : len(names)],
            [r.sampling if r else Sampling(temperature=0.0) for r in requests],
            [r.next_uniform if r else 0.0 for r in requests],
        )
        for request, token_id, logprob in zip(requests, ids, logprobs, strict=True):
            if request is not None:
                request.append(token_id, logprob)
        output_ids[0, : len(ids)].copy_(torch.tensor(ids, dtype=output_ids.dtype, device=output_ids.device))

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold sampling between two tokens while the calling thread uses the model."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self._manager.pause())
            except RuntimeError as error:  # the thread has ended, or ends while we wait for it
                raise self._ended() from error
            yield

    def forget(self) -> bool:
        """Inside `pause`: drop everything cached. False, and nothing done, while requests are in flight."""
        if self._processor.has_pending_requests():
            return False
        self._processor.cache.reset()
        return True

    def close(self) -> None:
        """End the thread; calls in flight fail. Safe to call twice."""
        if not self._closed:
            self._closed = True
            atexit.unregister(self.close)
            status = self._manager.background_thread_status
            status.request_stop(status.HARD_STOP, global_rank=0)
            self._manager.cancel_request("")  # wakes the thread, which looks up ten times a second by itself
            self._manager.join(time.perf_counter(), timeout=10)
            self._manager.batch_processor = None

    def _watch(self, started: threading.Event) -> None:
        """Start the manager's thread and fail whoever still waits when it ends, whatever the cause."""
        self._manager.start()
        thread = self._manager._generation_thread
        started.set()
        thread.join()
        for request in list(self._requests.values()):
            if not request.loop.is_closed():
                request.loop.call_soon_threadsafe(request.end, self._reason())

    def _ended(self) -> EngineError:
        return EngineError(f"the sampling thread has ended: {self._reason()}. Open the engine again.")

    def _reason(self) -> str:
        if self._closed:
            return "the engine was closed"
        error = self._manager.background_thread_status.fatal_error
        return f"{type(error).__name__}: {error}" if error is not None else self._last_error or "it stopped"


def _new_manager(model: Any, max_requests: int, cache_tokens: int, share_blocks: bool) -> Any:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    # No processors at all (temperature 1.0, no top_k, no top_p): `draw_tokens` gets the bare logits.
    generation = GenerationConfig(
        do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0, max_new_tokens=1
    )
    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=math.ceil(cache_tokens / PAGE_TOKENS),
        max_batch_tokens=max(BATCH_TOKENS, max_requests),
        max_requests_per_batch=max_requests,
        max_blocks_per_request=0,
        allow_block_sharing=share_blocks,
        # The choice of tokens runs in Python between two forward passes, which neither can contain.
        use_async_batching=False,
        use_cuda_graph=False,
    )
    try:
        return model.init_continuous_batching(generation_config=generation, continuous_batching_config=config)
    except ValueError as error:  # before 5.22 it accepts no attention of ours
        raise _unknown_transformers(str(error)) from error


def _take_over(manager: Any, choose: Callable[[torch.Tensor, torch.Tensor], None]) -> Any:
    """Replace how the manager chooses tokens; returns its batch processor."""
    manager.warmup()  # makes the batch processor, which `start` then uses
    runner: Any = getattr(manager.batch_processor, "model_runner", None)
    batch = getattr(manager.batch_processor, "inputs_and_outputs", None)
    if not hasattr(runner, "_sample") or not hasattr(batch, "requests_in_batch"):
        raise _unknown_transformers("ModelRunner._sample or ContinuousBatchingIOs.requests_in_batch is gone")
    if manager.logit_processor.do_processing:
        raise EngineError("continuous batching would change the logits before they are sampled from")
    runner._sample = choose
    return manager.batch_processor


def _unknown_transformers(what: str) -> EngineError:
    import transformers

    return EngineError(
        f"transformers {transformers.__version__} does continuous batching in another way ({what}). "
        f"Install a version that this engine was tested with: pip install '{TESTED}'."
    )
