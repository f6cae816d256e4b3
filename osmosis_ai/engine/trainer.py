"""Scoring, gradients, the optimizer and checkpoints of one module. Plain torch, no threads, no event loop."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from osmosis_ai.engine.base import BackwardStats, LossInput, LossSpec, OptimSpec
from osmosis_ai.engine.checks import check_rows
from osmosis_ai.engine.folder import copy_policy_files, no_progress_bars, whole_folder
from osmosis_ai.engine.sampler import log_distribution
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import TrainingSample

TRAINING_FOLDER = "training"  # inside a checkpoint: what a Hugging Face folder has no place for
STATE_FILE = "state.json"
OPTIMIZER_FILE = "optimizer.pt"
ADAPTER_FOLDER = "adapter"


def microbatches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Rows sorted by length and cut so that rows x longest <= budget; a longer row stands alone.

    lengths [3, 9, 4, 2], budget 10 -> [[1], [2, 0], [3]]: 1 x 9, then 2 x 4, then 1 x 2.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


@dataclass(frozen=True, slots=True)
class _Scored:
    """Log-probabilities of N tokens of a microbatch, with where they belong."""

    logprobs: torch.Tensor  # [N]
    row: list[int]  # [N] index into the rows of the call
    position: list[int]  # [N]


class Trainer:
    """Scores rows and accumulates gradients on `model`; knows nothing of versions or sampling."""

    def __init__(self, model: Any, *, device: torch.device, max_context: int, trainable: bool) -> None:
        self.model = model
        self.device = device
        self.max_context = max_context
        self.vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self.parameters = [p for p in model.parameters() if p.requires_grad] if trainable else []
        # The learning rate and the rest come with each step.
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0) if self.parameters else None
        self.has_gradient = False

    # --- scoring -----------------------------------------------------------------------------------

    def forward(self, rows: Sequence[TrainingSample], microbatch_tokens: int) -> list[list[float]]:
        """Log-probability of each token of each row but the first, which is 0.0."""
        self._check(rows)
        wanted = [list(range(1, len(row.token_ids))) for row in rows]
        result = [[0.0] * len(row.token_ids) for row in rows]
        with torch.no_grad():
            for batch in self._batches(rows, wanted, microbatch_tokens):
                _put(result, self._score(rows, batch, wanted))
        return result

    def forward_backward(
        self, rows: Sequence[TrainingSample], loss: LossSpec, microbatch_tokens: int
    ) -> BackwardStats:
        """Add the gradient of `loss` over the trained tokens of `rows` to what is accumulated."""
        if self.optimizer is None:
            raise UsageError("this engine was opened with trainable=False and cannot learn")
        self._check(rows)
        wanted = [[t for t, trained in enumerate(row.loss_mask) if trained] for row in rows]
        if not any(wanted):
            raise EngineError(f"none of the {len(rows)} rows has a trained token (loss_mask is 0 throughout)")
        result = [[0.0] * len(row.token_ids) for row in rows]
        total, sums = 0.0, dict[str, float]()
        for batch in self._batches(rows, wanted, microbatch_tokens):
            scored = self._score(rows, batch, wanted)
            output = loss.function(_loss_input(rows, scored, loss.denominator), **loss.params)
            output.loss.backward()  # type: ignore[no-untyped-call]
            self.has_gradient = True
            total += float(output.loss.detach())
            for name, value in output.sums.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            _put(result, scored)
        return BackwardStats(loss=total, logprobs=result, sums=sums)

    def _batches(
        self, rows: Sequence[TrainingSample], wanted: Sequence[Sequence[int]], budget: int
    ) -> Iterator[list[int]]:
        """Microbatches of the rows that have a wanted position."""
        if budget < 1:
            raise UsageError(f"microbatch_tokens must be at least 1, got {budget}")
        used = [index for index, positions in enumerate(wanted) if positions]
        for batch in microbatches([len(rows[index].token_ids) for index in used], budget):
            yield [used[index] for index in batch]

    def _score(
        self, rows: Sequence[TrainingSample], batch: Sequence[int], wanted: Sequence[Sequence[int]]
    ) -> _Scored:
        """Score the wanted positions of the rows in `batch`.

        Rows [5, 6, 7] (wanted: position 2) and [8, 9] (wanted: 1) become the padded batch [[5, 6, 7], [8, 9,
        0]]; what predicts them stands one position earlier, at 0 * 3 + 1 and 1 * 3 + 0 of the flattened
        batch.
        """
        longest = max(len(rows[index].token_ids) for index in batch)
        padded = torch.tensor(
            [rows[index].token_ids + [0] * (longest - len(rows[index].token_ids)) for index in batch],
            device=self.device,
        )
        row = [index for index in batch for _ in wanted[index]]
        position = [t for index in batch for t in wanted[index]]
        before = [line * longest + t - 1 for line, index in enumerate(batch) for t in wanted[index]]
        with _only_at(self.model.get_output_embeddings(), torch.tensor(before, device=self.device)):
            logits = self.model(input_ids=padded, use_cache=False).logits[0]
        targets = torch.tensor([rows[i].token_ids[t] for i, t in zip(row, position, strict=True)])
        temperatures = torch.tensor([rows[i].temperatures[t] for i, t in zip(row, position, strict=True)])
        logprobs = log_distribution(logits, temperatures.to(self.device))
        return _Scored(logprobs.gather(1, targets.to(self.device)[:, None])[:, 0], row, position)

    def _check(self, rows: Sequence[TrainingSample]) -> None:
        check_rows(rows, max_context=self.max_context, vocab_size=self.vocab_size)

    # --- learning ----------------------------------------------------------------------------------

    def step(self, spec: OptimSpec) -> float:
        """Apply and clear the gradient; returns its norm before clipping. Not finite: changes nothing."""
        if self.optimizer is None:
            raise UsageError("this engine was opened with trainable=False and cannot learn")
        if not self.has_gradient:
            raise EngineError("optim_step without a gradient: call forward_backward first")
        limit = spec.max_grad_norm if spec.max_grad_norm > 0 else math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, limit))
        self.has_gradient = False
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise EngineError(f"the gradient is not finite (norm {norm}); the weights were left as they were")
        for group in self.optimizer.param_groups:
            group.update(
                lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, weight_decay=spec.weight_decay
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        self._round()
        return norm

    @torch.no_grad()
    def _round(self) -> None:
        """Weights are fp32 numbers, also where arithmetic is in doubles: a checkpoint loses nothing."""
        for parameter in self.parameters:
            if parameter.dtype == torch.float64:
                parameter.copy_(parameter.float())

    # --- checkpoints -------------------------------------------------------------------------------

    def save(self, path: Path, source: Path, state: Mapping[str, Any] | None) -> None:
        """Write a Hugging Face folder (with `state`: also what training needs to go on) that appears at once.

        Tokenizer and chat template are copied from `source`. A folder that is already at `path` is replaced.
        """
        if state is not None and self.has_gradient:
            raise EngineError(
                "save between forward_backward and optim_step would lose the gradient; step first"
            )
        way_out = "What was there before is as it was. Free space or memory, then the same command goes on."
        with _trouble(f"{path} cannot be written", way_out), whole_folder(path) as folder:
            self._write(folder, source, state)

    def _write(self, folder: Path, source: Path, state: Mapping[str, Any] | None) -> None:
        with no_progress_bars():
            self.model.save_pretrained(folder, state_dict=self._merged_weights())
        copy_policy_files(source, folder)
        if state is None:
            return
        training = folder / TRAINING_FOLDER
        training.mkdir()
        if self._adapter():
            self._write_adapter(training / ADAPTER_FOLDER)
        optimizer = self.optimizer.state_dict() if self.optimizer is not None else None
        torch.save({"optimizer": optimizer, "random": _random_state()}, training / OPTIMIZER_FILE)
        document = {"format": 1, "base": self._base_fingerprint(), **state}
        (training / STATE_FILE).write_text(json.dumps(document, indent=1), encoding="utf-8")

    def load(self, path: Path) -> dict[str, Any]:
        """Restore what `save` wrote with a state; returns the state. Weights are copied into the module."""
        way_out = "If it is damaged, remove it: the same command then goes on from the one before."
        with _trouble(f"checkpoint {path} cannot be read", way_out):
            return self._load(path)

    def _load(self, path: Path) -> dict[str, Any]:
        """Everything is read before anything changes: a damaged file leaves the module as it was."""
        training = path / TRAINING_FOLDER
        if not (training / STATE_FILE).is_file():
            raise UsageError(
                f"{path} is not a checkpoint (it has no {TRAINING_FOLDER}/{STATE_FILE}). "
                "Open it as a policy instead, or name a folder that a training run wrote."
            )
        document: dict[str, Any] = json.loads((training / STATE_FILE).read_text(encoding="utf-8"))
        if document.pop("base") != self._base_fingerprint():
            raise UsageError(
                f"{path} was saved from another model or adapter than the one that is open. "
                "Open the engine with the policy and the adapter that the run started with."
            )
        document.pop("format")
        weights = _read_weights(training / ADAPTER_FOLDER if self._adapter() else path)
        saved = torch.load(training / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        if self._adapter():
            self._load_adapter(weights, path)
        else:
            self._load_weights(weights, path)
        if self.optimizer is not None and saved["optimizer"] is not None:
            self.optimizer.load_state_dict(saved["optimizer"])
            self.optimizer.zero_grad()
        self.has_gradient = False
        _restore_random_state(saved["random"])
        return document

    def _load_weights(self, weights: Mapping[str, torch.Tensor], path: Path) -> None:
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or {})
        if unexpected or set(missing) - tied:
            raise UsageError(f"{path} lacks weights {sorted(set(missing) - tied)} or has others {unexpected}")

    def _write_adapter(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir()
        weights = {name: p.detach().float().contiguous() for name, p in self._adapter().items()}
        save_file(weights, folder / "adapter_model.safetensors")

    def _load_adapter(self, weights: Mapping[str, torch.Tensor], path: Path) -> None:
        adapter = self._adapter()
        if weights.keys() != adapter.keys():
            raise UsageError(
                f"{path} holds another adapter: {sorted(weights.keys() ^ adapter.keys())[:4]} ..."
            )
        with torch.no_grad():
            for name, parameter in adapter.items():
                parameter.copy_(weights[name])

    def _adapter(self) -> dict[str, torch.nn.Parameter]:
        """The parameters of the LoRA adapter; empty when all weights are trained."""
        return {name: p for name, p in self.model.named_parameters() if ".lora_" in name}

    def _merged_weights(self) -> dict[str, torch.Tensor]:
        """The weights as an ordinary model has them, in fp32: base + adapter, the module left as it is."""
        layers = dict(self.model.named_modules())
        merged: dict[str, torch.Tensor] = {}
        written: set[int] = set()  # a head that is tied to the embedding is written once
        for name, tensor in self.model.state_dict().items():
            if ".lora_" in name or tensor.data_ptr() in written:
                continue
            written.add(tensor.data_ptr())
            module_name, _, kind = name.rpartition(".base_layer.")
            if module_name:
                name = f"{module_name}.{kind}"
                if kind == "weight":
                    tensor = tensor + layers[module_name].get_delta_weight("default")
            merged[name] = tensor.detach().float().contiguous() if tensor.is_floating_point() else tensor
        return merged

    def _base_fingerprint(self) -> str:
        """Names what a checkpoint fits: shapes, and for an adapter the frozen weights under it."""
        digest = hashlib.sha256()
        for name, parameter in self.model.named_parameters():
            digest.update(f"{name}{tuple(parameter.shape)}".encode())
            if not parameter.requires_grad and self.optimizer is not None:
                digest.update(parameter.detach().flatten()[:64].double().cpu().numpy().tobytes())
        return digest.hexdigest()


@contextmanager
def _trouble(what: str, way_out: str) -> Iterator[None]:
    """Files that cannot be read or written, and memory that is short, become an EngineError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, RuntimeError, SafetensorError, UnpicklingError, JSONDecodeError) as error:
        first_line = str(error).partition("\n")[0]
        raise EngineError(f"{what}: {type(error).__name__}: {first_line}. {way_out}") from error


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    weights: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(load_file(file))
    return weights


@contextmanager
def _only_at(head: torch.nn.Module, flat_positions: torch.Tensor) -> Iterator[None]:
    """Inside, `head` sees hidden states [B, L, H] only at N flattened positions, as [1, N, H].

    The head is the dearest part of a small model, and most positions of an agent's row are context.
    """

    def select(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0].flatten(0, 1)[flat_positions][None],)

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def _loss_input(rows: Sequence[TrainingSample], scored: _Scored, denominator: float) -> LossInput:
    places = list(zip(scored.row, scored.position, strict=True))

    def stream(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=scored.logprobs.dtype, device=scored.logprobs.device)

    return LossInput(
        logprobs=scored.logprobs,
        sampler_logprobs=stream([rows[i].logprobs[t] for i, t in places]),
        advantages=stream([rows[i].advantages[t] for i, t in places]),
        weights=stream([rows[i].weight for i, _ in places]),
        denominator=denominator,
    )


def _put(result: list[list[float]], scored: _Scored) -> None:
    for row, position, value in zip(scored.row, scored.position, scored.logprobs.tolist(), strict=True):
        result[row][position] = value


def _random_state() -> dict[str, Any]:
    """The random states of torch, numpy and Python, as what `torch.load(weights_only=True)` reads."""
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, internal, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [[int(key) for key in keys], int(position), int(has_gauss), float(gauss)],
        "python": [version, list(internal), gauss_next],
    }


def _restore_random_state(saved: Mapping[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    if saved["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(saved["cuda"])
    keys, position, has_gauss, gauss = saved["numpy"]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, gauss))
    version, internal, gauss_next = saved["python"]
    random.setstate((version, tuple(internal), gauss_next))
