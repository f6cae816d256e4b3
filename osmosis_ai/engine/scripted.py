"""An engine that answers from a script, for tests: no model, no torch, the same verbs and the same rules.

    engine = ScriptedEngine(["The answer is 42.", [17, 5, 2]])
    engine = ScriptedEngine(lambda prompt_ids, sampling: [17, 5, 2] if 9 in prompt_ids else [2])

It makes up log-probabilities from the tokens alone, so what it sampled is what `forward` returns, and an
audit passes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from osmosis_ai.engine.checks import check_request, check_rows
from osmosis_ai.engine.folder import copy_policy_files, whole_folder
from osmosis_ai.engine.gate import Gate
from osmosis_ai.engine.uniform import mix, uniform
from osmosis_ai.errors import EngineError, UsageError
from osmosis_ai.types import PolicyVersion, TrainingSample

Answer = str | Sequence[int]  # a text is encoded by the policy's tokenizer
Script = Sequence[Answer] | Callable[[Sequence[int], Sampling], Answer]

STATE_FILE = "scripted.json"
LEAST_LOGPROB = -3.0


class ScriptedEngine:
    """Answers from `script`: a list in the order of the calls, or a function of prompt and sampling.

    An answer ends as a policy's would: with its end token (put there when it is missing), or cut at
    max_tokens. `log` holds every answered call.
    """

    def __init__(self, script: Script, *, token_seconds: float = 0.0) -> None:
        """`token_seconds` is how long each token takes, for tests of deadlines and cancelling."""
        self.log: list[SampleRecord] = []
        self._script = script
        self._answers: Iterator[Answer] = iter(()) if callable(script) else iter(script)
        self._token_seconds = token_seconds
        self._gate = Gate()
        self._info: EngineInfo | None = None
        self._path = Path()
        self._trainable = True
        self._has_gradient = False
        self._closed = False

    async def open(self, spec: EngineSpec) -> EngineInfo:
        """Read vocabulary, context and end tokens of the policy at `spec.path`, which needs no weights."""
        if self._info is not None or self._closed:
            raise UsageError("this engine was opened before; make a new one")
        if not spec.path.is_dir():
            raise UsageError(f"no policy at {spec.path}: no such folder. Make one with `osmosis policy new`.")
        config = _read_json(spec.path / "config.json")
        if not config:
            raise UsageError(f"{spec.path} is not a policy: it has no config.json")
        generation = _read_json(spec.path / "generation_config.json")
        ends = generation.get("eos_token_id", config.get("eos_token_id"))
        self._path, self._trainable = spec.path, spec.trainable
        self._info = EngineInfo(
            version=0,
            vocab_size=int(config["vocab_size"]),
            max_context=int(config["max_position_embeddings"]),
            num_parameters=0,
            num_trainable=0,
            device="none",
            arithmetic="float64",
            eos_token_ids=() if ends is None else tuple(ends if isinstance(ends, list) else [ends]),
        )
        return self._info

    async def sample(
        self,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        on_token: OnToken | None = None,
    ) -> Completion:
        """The script's answer to this call. Raises EngineError when the script has no more answers."""
        info = self._opened()
        check_request(prompt_ids, sampling, info)
        async with self._gate.sampling() as version:
            self._opened()
            ends = {*info.eos_token_ids, *sampling.stop_ids}
            token_ids = _as_completion(self._answer(prompt_ids, sampling), info, sampling, ends)
            stopped = False
            for count, token_id in enumerate(token_ids, 1):
                await asyncio.sleep(self._token_seconds)
                if on_token is not None and on_token(token_id):
                    token_ids, stopped = token_ids[:count], True
                    break
            completion = Completion(
                token_ids=token_ids,
                logprobs=_logprobs([*prompt_ids, *token_ids])[len(prompt_ids) :],
                finish_reason="stop" if stopped or token_ids[-1] in ends else "length",
                version=version,
            )
        self.log.append(SampleRecord(tuple(prompt_ids), sampling, completion))
        return completion

    async def forward(self, rows: Sequence[TrainingSample]) -> list[list[float]]:
        """The log-probabilities that `sample` made up for the same tokens."""
        info = self._opened()
        check_rows(rows, max_context=info.max_context, vocab_size=info.vocab_size)
        return [_logprobs(row.token_ids) for row in rows]

    async def forward_backward(
        self, rows: Sequence[TrainingSample], loss: LossSpec, microbatch_tokens: int = 16384
    ) -> BackwardStats:
        """Checks the rows. The loss is 0.0, its function is not called: there is nothing to differentiate."""
        self._learns()
        scored = await self.forward(rows)
        if not any(row.trained_tokens for row in rows):
            raise EngineError(f"none of the {len(rows)} rows has a trained token (loss_mask is 0 throughout)")
        self._has_gradient = True
        masked = [
            [value if trained else 0.0 for value, trained in zip(values, row.loss_mask, strict=True)]
            for values, row in zip(scored, rows, strict=True)
        ]
        return BackwardStats(loss=0.0, logprobs=masked, sums={})

    async def optim_step(self, spec: OptimSpec) -> StepStats:
        """The next version, with a gradient norm of 1.0; `sample` waits until `publish`."""
        self._learns()
        if not self._has_gradient:
            raise EngineError("optim_step without a gradient: call forward_backward first")
        await self._gate.shut()
        self._has_gradient = False
        self._gate.version += 1
        return StepStats(version=self._gate.version, grad_norm=1.0)

    async def publish(self) -> PolicyVersion:
        """From now on completions carry the newest version."""
        self._opened()
        self._gate.publish()
        return self._gate.version

    async def save(self, path: Path, state: Mapping[str, Any], *, training: bool = True) -> None:
        """Write version and `state` beside config and tokenizer, to a folder that appears at once."""
        self._opened()
        with whole_folder(Path(path)) as folder:
            copy_policy_files(self._path, folder)
            (folder / "config.json").write_bytes((self._path / "config.json").read_bytes())
            if training:
                document = {"version": self._gate.version, "state": dict(state)}
                (folder / STATE_FILE).write_text(json.dumps(document), encoding="utf-8")

    async def load(self, path: Path) -> dict[str, Any]:
        """Restore the version and publish it; returns `state`."""
        self._opened()
        document = _read_json(Path(path) / STATE_FILE)
        if not document:
            raise UsageError(f"{path} is not a checkpoint of a scripted engine (it has no {STATE_FILE})")
        await self._gate.shut()
        self._gate.version = document["version"]
        self._has_gradient = False
        self._gate.publish()
        return dict(document["state"])

    async def close(self) -> None:
        """Answer no more calls. Safe to call twice."""
        self._closed = True
        self._gate.publish()  # those who wait for it learn that the engine is closed

    def _answer(self, prompt_ids: Sequence[int], sampling: Sampling) -> list[int]:
        if callable(self._script):
            answer = self._script(prompt_ids, sampling)
        else:
            found = next(self._answers, None)
            if found is None:
                raise EngineError(
                    f"the script has {len(self._script)} answers and this is call {len(self._script) + 1}. "
                    "Give it more, or a function that answers any number of calls."
                )
            answer = found
        return self._encode(answer) if isinstance(answer, str) else list(answer)

    def _encode(self, text: str) -> list[int]:
        from tokenizers import Tokenizer

        file = self._path / "tokenizer.json"
        if not file.is_file():
            raise UsageError(f"the script answers with a text and {self._path} has no tokenizer.json for it")
        ids: list[int] = Tokenizer.from_file(str(file)).encode(text, add_special_tokens=False).ids
        return ids

    def _opened(self) -> EngineInfo:
        if self._closed:
            raise EngineError("the engine is closed")
        if self._info is None:
            raise EngineError("the engine is not open: call open()")
        return self._info

    def _learns(self) -> None:
        self._opened()
        if not self._trainable:
            raise UsageError("this engine was opened with trainable=False and cannot learn")


def _as_completion(answer: list[int], info: EngineInfo, sampling: Sampling, ends: set[int]) -> list[int]:
    """Cut after the first end token, or put one there, then cut at max_tokens.

    End token 2: [7, 2, 9] -> [7, 2]; [7] -> [7, 2]; [7, 8] with max_tokens 2 -> [7, 8].
    """
    for index, token_id in enumerate(answer):
        if not 0 <= token_id < info.vocab_size:
            raise EngineError(f"the script's token {token_id} is not in the vocabulary of {info.vocab_size}")
        if token_id in ends:
            answer = answer[: index + 1]
            break
    else:
        answer = answer + list(info.eos_token_ids[:1])
    if not answer:
        raise EngineError("the script's answer is empty and the policy has no end token to stand for it")
    return answer[: sampling.max_tokens]


def _logprobs(token_ids: Sequence[int]) -> list[float]:
    """A made-up log-probability in (-3, 0] per token, a function of the tokens up to it; the first is 0.0."""
    values, state = [0.0], mix(token_ids[0])
    for token_id in token_ids[1:]:
        state = mix(state + token_id)
        values.append(LEAST_LOGPROB * uniform(state, 0))
    return values


def _read_json(file: Path) -> dict[str, Any]:
    """{} when there is no such file."""
    if not file.is_file():
        return {}
    document: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return document
