"""The embedded engine: one module of torch and transformers that samples and learns, in this process.

    sample ──> event loop ──> sampling thread (continuous batching) ──┐
    forward, forward_backward, optim_step, save ──> engine thread ────┴──> the module

The weights exist once, so publishing copies nothing. It does end two waits: `optim_step` lets the calls to
`sample` that are under way finish before it changes the weights, and from then on `sample` waits until
`publish`. Scoring and gradients hold sampling between two tokens; requests go on afterwards, with the same
weights.

On a CPU the arithmetic is done in doubles on weights that are fp32 numbers (`exact`). A policy that has
learnt to be sure of itself amplifies the rounding of fp32 to 1e-5 in a log-probability, because a token
sampled step by step and the same token scored in a row take different paths through the kernels. In doubles
both round to the same fp32 logits.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from osmosis_ai.engine import attention
from osmosis_ai.engine.base import (
    BackwardStats,
    Completion,
    EngineInfo,
    EngineSpec,
    LossSpec,
    OnToken,
    OptimSpec,
    SampleRecord,
    Sampling,
    StepStats,
)
from osmosis_ai.engine.checks import check_request
from osmosis_ai.engine.folder import no_progress_bars
from osmosis_ai.engine.gate import Gate
from osmosis_ai.engine.sampler import PAGE_TOKENS, Sampler
from osmosis_ai.engine.trainer import Trainer
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import PolicyVersion, TrainingSample

CPU_CACHE_BYTES = 1 << 30
ACCELERATOR_CACHE_SHARE = 0.3  # of the free memory; the rest is for gradients and optimizer state
FORWARD_TOKENS = 16384  # of a microbatch that is only scored

T = TypeVar("T")


class TorchEngine:
    """Samples from and trains a Hugging Face model in this process. See `engine/base.py` for the verbs."""

    def __init__(
        self, *, record: bool = False, exact: bool | None = None, _unsafe_keep_cache: bool = False
    ) -> None:
        """`record` keeps every completion in `log`; `exact` computes in doubles (None: where it is a CPU).

        `_unsafe_keep_cache` is for one test: it lets old keys and values survive `publish`, which the audit
        must see.
        """
        self.log: list[SampleRecord] | None = [] if record else None
        self._exact = exact
        self._unsafe_keep_cache = _unsafe_keep_cache
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="osmosis-engine")
        self._trainer: Trainer | None = None
        self._sampler: Sampler | None = None
        self._info: EngineInfo | None = None
        self._spec: EngineSpec | None = None
        self._gate = Gate()
        self._closed = False

    # --- the verbs ---------------------------------------------------------------------------------

    async def open(self, spec: EngineSpec) -> EngineInfo:
        """Load the model. Raises UsageError for a folder that is not a policy."""
        if self._info is not None or self._closed:
            raise UsageError("this engine was opened before; make a new one")
        info = await self._run(self._open, spec)
        self._info = info
        return info

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> Completion:
        """One completion from the published weights; waits while newer ones are not published yet."""
        info = self._opened(self._info)
        check_request(prompt_ids, sampling, info)
        async with self._gate.sampling() as version:
            drawn = await self._opened(self._sampler).sample(prompt_ids, sampling, on_token)
            completion = replace(drawn, version=version)
        if self.log is not None:
            self.log.append(SampleRecord(tuple(prompt_ids), sampling, completion))
        return completion

    async def forward(self, rows: Sequence[TrainingSample]) -> list[list[float]]:
        """Log-probabilities [T] per row under the current weights, no gradient; index 0 is 0.0."""
        return await self._run(self._held, self._opened(self._trainer).forward, rows, FORWARD_TOKENS)

    async def forward_backward(
        self, rows: Sequence[TrainingSample], loss: LossSpec, microbatch_tokens: int = 16384
    ) -> BackwardStats:
        """Accumulate the gradient of `loss` over `rows`; call `optim_step` to apply it."""
        trainer = self._opened(self._trainer)
        return await self._run(self._held, trainer.forward_backward, rows, loss, microbatch_tokens)

    async def optim_step(self, spec: OptimSpec) -> StepStats:
        """Apply and clear the gradient: the next version. Waits for completions under way; see `publish`."""
        self._opened(self._trainer)
        await self._gate.shut()
        try:
            return await self._run(self._held, self._step, spec)
        except (EngineError, UsageError):
            self._gate.reopen_if_unchanged()
            raise

    async def publish(self) -> PolicyVersion:
        """From now on `sample` uses the trained weights; no cache of older weights survives."""
        self._opened(self._sampler)
        if not self._unsafe_keep_cache:
            await self._run(self._forget)
        self._gate.publish()
        return self._gate.version

    async def save(self, path: Path, state: Mapping[str, Any], *, training: bool = True) -> None:
        """Write a Hugging Face folder that appears at once or not at all, replacing an older one at `path`.

        LoRA: the folder holds the merged weights; with `training` the adapter lies beside them.
        """
        trainer, spec = self._opened(self._trainer), self._opened(self._spec)
        document = {"version": self._gate.version, "state": dict(state)} if training else None
        await self._run(trainer.save, Path(path), spec.path, document)

    async def load(self, path: Path) -> dict[str, Any]:
        """Restore what `save` wrote, the version included, and publish it; returns `state`."""
        self._opened(self._trainer)
        await self._gate.shut()
        try:
            state: dict[str, Any] = await self._run(self._held, self._load, Path(path))
        except (EngineError, UsageError):
            self._gate.reopen_if_unchanged()
            raise
        await self.publish()
        return state

    async def close(self) -> None:
        """Stop sampling (calls in flight fail) and free the model. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._sampler is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._sampler.close)
        self._worker.shutdown(wait=False)
        self._sampler = self._trainer = None
        self._gate.publish()  # those who wait for it learn that the engine is closed

    # --- on the engine's thread --------------------------------------------------------------------

    def _open(self, spec: EngineSpec) -> EngineInfo:
        device = _device(spec.device)
        exact = device.type == "cpu" and spec.dtype == "float32" if self._exact is None else self._exact
        torch.manual_seed(spec.seed)
        if spec.deterministic and device.type == "cuda":
            torch.use_deterministic_algorithms(True, warn_only=True)
        model = _load_model(spec.path)
        eos_ids = _eos_ids(model)
        if spec.adapter == "lora":
            model = _with_lora(model, spec.lora_rank)
        model.to(device=device, dtype=torch.float64 if exact else torch.float32)
        model.config._attn_implementation = attention.register()
        if spec.dtype == "bfloat16":
            model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
        model.eval()  # also while learning: dropout would make the trainer score another distribution
        requests = 1 if spec.deterministic else spec.max_requests
        context, cache_tokens = _cache_size(model, device, requests)
        if not spec.trainable:
            model.requires_grad_(False)
        self._trainer = Trainer(model, device=device, max_context=context, trainable=spec.trainable)
        self._sampler = Sampler(
            model,
            max_requests=requests,
            cache_tokens=cache_tokens,
            eos_ids=eos_ids,
            share_blocks=self._unsafe_keep_cache,
        )
        self._spec = spec
        return EngineInfo(
            version=0,
            vocab_size=self._trainer.vocab_size,
            max_context=context,
            num_parameters=sum(p.numel() for p in model.parameters()),
            num_trainable=sum(p.numel() for p in self._trainer.parameters),
            device=str(device),
            arithmetic="float64" if exact else spec.dtype,
            eos_token_ids=eos_ids,
        )

    def _held(self, verb: Callable[..., T], *arguments: Any) -> T:
        """Run a verb that uses the module while sampling stands still."""
        with self._opened(self._sampler).pause():
            return verb(*arguments)

    def _step(self, spec: OptimSpec) -> StepStats:
        norm = self._opened(self._trainer).step(spec)
        self._gate.version += 1
        return StepStats(version=self._gate.version, grad_norm=norm)

    def _load(self, path: Path) -> dict[str, Any]:
        document = self._opened(self._trainer).load(path)
        self._gate.version = document["version"]
        return dict(document["state"])

    def _forget(self) -> None:
        sampler = self._opened(self._sampler)
        while True:
            with sampler.pause():
                if sampler.forget():
                    return
            time.sleep(0.001)  # a cancelled request leaves the batch with the next token

    # --- small things ------------------------------------------------------------------------------

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        call = functools.partial(function, *arguments)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, call)
        except RuntimeError as error:
            if not _out_of_memory(error):
                raise
            raise EngineError(
                f"out of memory: {str(error).splitlines()[0]}. Lower train.microbatch_tokens (what is learnt "
                "from at once) or policy.max_requests (what is sampled at once), or use a smaller policy"
            ) from error

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise EngineError(
                "the engine is closed" if self._closed else "the engine is not open: call open()"
            )
        return part


def _out_of_memory(error: RuntimeError) -> bool:
    """A CUDA device has a class for it, the CPU a text."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(1, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UsageError(f"device {name!r} cannot be used here: {error}") from error
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def _load_model(path: Path) -> Any:
    """The model of a Hugging Face folder, whole or not at all; nothing downloaded, nothing unpickled."""
    if not path.is_dir():
        raise UsageError(f"no policy at {path}: no such folder. Make one with `osmosis policy new`.")
    if not (path / "config.json").is_file():
        raise UsageError(f"{path} is not a policy: it has no config.json. Name a Hugging Face model folder.")
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with no_progress_bars():
            model, report = AutoModelForCausalLM.from_pretrained(
                path,
                local_files_only=True,
                use_safetensors=True,
                dtype=torch.float32,
                attn_implementation="sdpa",
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError) as error:
        raise UsageError(f"{path} cannot be opened as a policy: {type(error).__name__}: {error}") from error
    wrong = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if wrong:
        raise UsageError(f"{path} is not whole: {len(wrong)} weights are missing or misshapen, as {wrong[0]}")
    kinds = set(getattr(model.config, "layer_types", None) or []) - {"full_attention"}
    if kinds or (getattr(model.config, "sliding_window", None) and not hasattr(model.config, "layer_types")):
        raise UsageError(
            f"{path} has {', '.join(sorted(kinds)) or 'sliding_attention'} layers; "
            "the embedded engine knows full attention only"
        )
    return model


def _eos_ids(model: Any) -> tuple[int, ...]:
    """The end tokens that the folder names: those of its generation config, else of its config."""
    found = model.generation_config.eos_token_id
    if found is None:
        found = model.config.eos_token_id
    if found is None:
        return ()
    return tuple(found) if isinstance(found, list | tuple) else (int(found),)


def _with_lora(model: Any, rank: int) -> Any:
    """The same module with an adapter on all its linear layers but the head; all else is frozen."""
    from peft import LoraConfig, get_peft_model

    if rank < 1:
        raise UsageError(f"lora_rank must be at least 1, got {rank}")
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    return get_peft_model(model, config).get_base_model()


def _cache_size(model: Any, device: torch.device, requests: int) -> tuple[int, int]:
    """(tokens of context, tokens that the cache holds): all requests at full length, if memory allows.

    A request may not be longer than the cache; a context that does not fit is made shorter, and reported so.
    """
    config = model.config.get_text_config()
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    bytes_per_token = 2 * config.num_hidden_layers * heads * head_dim * model.dtype.itemsize
    budget = CPU_CACHE_BYTES
    if device.type == "cuda":
        budget = int(torch.cuda.mem_get_info(device)[0] * ACCELERATOR_CACHE_SHARE)
    elif device.type == "mps":
        budget = int(torch.mps.recommended_max_memory() * ACCELERATOR_CACHE_SHARE)
    context = int(config.max_position_embeddings)
    pages = -(-context // PAGE_TOKENS) * requests
    affordable = max(1, budget // bytes_per_token // PAGE_TOKENS)
    tokens = min(pages, affordable) * PAGE_TOKENS
    return min(context, tokens), tokens
