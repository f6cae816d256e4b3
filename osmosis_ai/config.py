"""One TOML file for eval and train: what the keys are, what they mean, and every mistake at once.

    [run] [rollout] [dataset] [llm] or [policy] [sampling] [eval] [train] [workflow]

Each table is a model below; `docs/config.md` is generated from them. `[workflow]` is free: its keys
override the fields of the workflow's own config object.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from osmosis_ai.errors import ConfigError

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"  # of a run: it becomes a folder and a part of URLs
NAME_RULE = "at most 96 letters, digits, '.', '_' and '-', a letter or digit first"


class Table(BaseModel):
    """One TOML table: unknown keys are errors, values are never coerced from another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class RunTable(Table):
    """Which run this is."""

    name: str = Field(
        "",
        pattern=rf"^({NAME})?$",
        description="Name of the run; empty: the config file's name. The same name is resumed.",
    )
    seed: int = Field(0, ge=0, description="Seed of data order, sampling and the optimizer's random state.")


class RolloutTable(Table):
    """The user's code and how it is run."""

    entrypoint: str = Field(
        "",
        description="Python file (relative to the config file) or dotted module with workflow and grader.",
    )
    url: str = Field(
        "",
        pattern=r"^(https?://[^/\s]+(/\S*)?)?$",
        description="Instead of entrypoint: a rollout server that runs already, as of `osmosis serve`.",
    )
    api_key_env: str = Field("", description="With url: environment variable that holds the server's key.")
    protocol: Literal["auto", "agent_loop", "workflow"] = Field(
        "auto", description='With url: what the server speaks; "auto" asks its /health.'
    )
    grader_entrypoint: str = Field(
        "",
        description="With url: file or module with a Grader or a function with @osmosis_reward, for what an "
        "agent loop's server gives no reward.",
    )
    gateway_host: str = Field(
        "127.0.0.1", description="With url: address to listen on, which the server must be able to reach."
    )
    workflow: str = Field("", description="Class to use when the entrypoint holds several workflows.")
    grader: str = Field("", description="Class to use when the entrypoint holds several graders.")
    max_concurrent: int = Field(64, ge=1, description="Rollouts in flight at once.")
    agent_timeout_seconds: float = Field(450.0, gt=0, description="Deadline of one run() call.")
    grader_timeout_seconds: float = Field(150.0, gt=0, description="Deadline of one grade() call.")
    retries: int = Field(
        2,
        ge=0,
        description="Further attempts after a failure that is not the user code's.",
    )


class DatasetTable(Table):
    """The rows."""

    path: str = Field(description="JSONL or CSV file, relative to the config file.")
    limit: int | None = Field(None, ge=1, description="Use at most this many rows.")
    offset: int = Field(0, ge=0, description="Skip this many rows first.")


class LlmTable(Table):
    """An external model. Either this or [policy]."""

    model: str = Field(description='Model name at the endpoint, or "scripted".')
    base_url: str = Field("", description="OpenAI-compatible endpoint, up to and including /v1.")
    api_key_env: str = Field("", description="Environment variable with the key; the agents do not get it.")
    script: str = Field(
        "",
        description='For "scripted": path.py:function that answers, or a session (.jsonl) of `osmosis test`.',
    )
    timeout_seconds: float = Field(300.0, gt=0, description="Longest wait for one answer.")
    retries: int = Field(3, ge=0, description="Further tries of a call after 429, 5xx or a lost connection.")
    input_price: float | None = Field(
        None, ge=0, description="Dollars per million prompt tokens; with output_price, costs are shown."
    )
    output_price: float | None = Field(None, ge=0, description="Dollars per million completion tokens.")
    cached_input_price: float | None = Field(
        None, ge=0, description="Dollars per million prompt tokens that the endpoint had cached."
    )


class PolicyTable(Table):
    """A policy of ours: a Hugging Face folder, sampled (and trained) by the embedded engine."""

    path: str = Field(
        description="Folder with config, safetensors, tokenizer and chat template; "
        "or run:NAME, what the newest run of that name has learnt."
    )
    adapter: Literal["none", "lora"] = Field("none", description="Train all weights or a LoRA adapter.")
    lora_rank: int = Field(8, ge=1, description="Rank of the adapter.")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="What the model computes in; weights are kept in float32."
    )
    device: str = Field("auto", description='"auto" takes cuda, then mps, then cpu.')
    max_requests: int = Field(64, ge=1, description="Completions sampled at once.")
    deterministic: bool = Field(
        False, description="One request at a time: runs repeat bit for bit, and are several times slower."
    )


class SamplingTable(Table):
    """Defaults for calls that do not say otherwise."""

    temperature: float = Field(1.0, ge=0, description="0 takes the likeliest token (not in training).")
    top_p: float = Field(1.0, gt=0, le=1, description="Nucleus; 1 in training.")
    max_tokens: int = Field(256, ge=1, description="Longest completion of one call.")


class EvalTable(Table):
    """How `osmosis eval run` samples the dataset."""

    attempts: int = Field(1, ge=1, description="Rollouts per row.")
    pass_threshold: float = Field(1.0, description="A reward of at least this is a pass (pass@k).")


class TrainTable(Table):
    """How `osmosis train run` learns."""

    algorithm: Literal["grpo", "sft"] = Field(
        "grpo", description="grpo: from rewards of fresh rollouts; sft: from stored rollouts."
    )
    steps: int = Field(50, ge=1, description="Optimizer updates.")
    rows_per_step: int = Field(8, ge=1, description="grpo: groups per step, one row each.")
    group_size: int = Field(8, ge=2, description="grpo: rollouts per row.")
    advantage: Literal["group_standardised", "mean_baseline"] = Field(
        "group_standardised", description="How a reward is set against its group."
    )
    loss: Literal["grpo", "reinforce"] = Field("grpo", description="Policy-gradient loss.")
    normalisation: Literal["token_mean", "sample_mean", "rollout_mean"] = Field(
        "token_mean", description="What counts the same: every token, every training sample, every rollout."
    )
    clip_low: float = Field(0.2, ge=0, description="Lower bound of the ratio is 1 - clip_low.")
    clip_high: float = Field(0.2, ge=0, description="Upper bound of the ratio is 1 + clip_high.")
    learning_rate: float = Field(1e-4, gt=0, description="AdamW.")
    warmup_steps: int = Field(0, ge=0, description="Steps over which the learning rate rises linearly.")
    final_learning_rate: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Share of the learning rate left at the last step.",
    )
    weight_decay: float = Field(0.0, ge=0, description="AdamW.")
    max_grad_norm: float = Field(1.0, ge=0, description="Gradient clipping; 0: none.")
    microbatch_tokens: int = Field(16384, ge=1, description="Tokens of one forward and backward pass.")
    max_sample_tokens: int = Field(4096, ge=2, description="Longer training samples are dropped.")
    audit_gate: float | None = Field(
        None,
        gt=0,
        description="Largest accepted difference of sampler and trainer log-probabilities; "
        "default 2e-6 on a CPU (doubles), 1e-4 in float32, 0.25 in bfloat16. "
        "The gate on their mean moves with it.",
    )
    checkpoint_every: int = Field(1, ge=1, description="Steps between checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints kept.")
    from_run: str = Field("", description="sft: the run whose rollouts are learnt from.")
    min_reward: float = Field(1.0, description="sft: only rollouts with at least this reward.")
    batch_samples: int = Field(32, ge=1, description="sft: conversations per step.")


class Config(Table):
    """The whole file."""

    run: RunTable = RunTable()
    rollout: RolloutTable
    dataset: DatasetTable
    llm: LlmTable | None = None
    policy: PolicyTable | None = None
    sampling: SamplingTable = SamplingTable()
    eval: EvalTable = EvalTable()
    train: TrainTable = TrainTable()
    workflow: dict[str, Any] = Field(default_factory=dict)

    _source: Path = PrivateAttr(Path())

    @property
    def source(self) -> Path:
        """The file itself."""
        return self._source

    def resolve(self, path: str) -> Path:
        """A path of the file, relative to the file."""
        return (self.source.parent / path).expanduser()

    @property
    def run_name(self) -> str:
        return self.run.name or self.source.stem


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file. `overrides` maps dotted keys ("dataset.limit") to values that win over the file.

    Raises ConfigError with everything that is wrong, each finding as `file:line: what, value, way out`.
    """
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([f"{path}: not valid TOML: {error}"]) from error
    return config_of(data, path, overrides, text)


def config_of(
    data: dict[str, Any], source: Path, overrides: Mapping[str, Any] | None = None, text: str = ""
) -> Config:
    """The configuration in the tables of a file, whose text the findings' lines are from."""
    given = {dotted: value for dotted, value in (overrides or {}).items() if value is not None}
    added = {table for dotted in given if (table := dotted.partition(".")[0]) not in data}
    for dotted, value in given.items():
        table, key = dotted.split(".")
        if isinstance(data.setdefault(table, {}), dict):  # else the file itself is wrong, and says so below
            data[table][key] = value
    file = _File(source, text, frozenset({*given, *added}))
    sources = list(_entrypoint_or_url(file, data.get("rollout")))
    try:
        config = Config.model_validate(data)
        config._source = source
    except ValidationError as error:
        found = [_finding(file, dict(item)) for item in error.errors()]
        raise ConfigError(_in_order([*sources, *found])) from None
    if sources:
        raise ConfigError(_in_order(sources))
    if findings := list(_cross_checks(file, config)):
        raise ConfigError(findings)
    return config


@dataclass(frozen=True, slots=True)
class _File:
    """Where a value came from, for messages."""

    path: Path
    text: str
    overrides: frozenset[str]  # tables and dotted keys that only the command line gave

    def place(self, *where: str) -> tuple[int, str]:
        """The line, and `file:line` or the option of the command line."""
        dotted = ".".join(where)
        if dotted in self.overrides:
            return 0, "--name" if dotted == "run.name" else f"--set {dotted}"
        line = line_of(self.text, *where)
        return line, f"{self.path}:{line}"


def _in_order(findings: Iterable[tuple[int, str]]) -> list[str]:
    """The command line's first, then down the file."""
    return [finding for _, finding in sorted(findings, key=lambda item: item[0])]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = sorted(str(p) for p in path.parent.glob("*.toml")) if path.parent.is_dir() else []
        near = difflib.get_close_matches(str(path), known, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise ConfigError([f"no such config file: {path}.{hint}"]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: cannot be read as UTF-8 text: {error}"]) from error


def _entrypoint_or_url(file: _File, table: Any) -> Iterator[tuple[int, str]]:
    """The user's code is named once: by its file, or by the server that runs it."""
    if not isinstance(table, dict):
        return  # said where the tables are read
    entrypoint, url = table.get("entrypoint"), table.get("url")
    if entrypoint and url:
        line, place = file.place("rollout", "url")
        yield line, f"{place}: rollout.entrypoint and rollout.url are both given; keep one."
    elif not entrypoint and not url:
        line, place = file.place("rollout", "entrypoint")
        about = RolloutTable.model_fields["entrypoint"].description
        yield line, f"{place}: rollout.entrypoint is missing: {about} Or give rollout.url."
    foreign = ("workflow",) if url else ("api_key_env", "protocol", "grader_entrypoint", "gateway_host")
    for key in foreign:
        if table.get(key):
            line, place = file.place("rollout", key)
            belongs = "rollout.entrypoint" if url else "rollout.url"
            yield line, f"{place}: rollout.{key} is for {belongs} only; leave it out."


def _cross_checks(file: _File, config: Config) -> Iterator[str]:
    if not re.fullmatch(NAME, config.run_name):
        yield (
            f"{file.path}: the file's name {config.run_name!r} cannot name a run, which must be {NAME_RULE}: "
            "give one with --name or [run] name."
        )
    if config.llm and config.policy:
        yield (
            f"{file.place('policy')[1]}: [llm] and [policy] are both given; "
            "keep one: [llm] for an external model, [policy] for a policy folder."
        )
    model = file.place("llm", "model")[1]
    if config.llm and config.llm.model == "scripted" and not config.llm.script:
        yield f'{model}: llm.model = "scripted" needs llm.script = "file.py:function".'
    if config.llm and config.llm.model != "scripted" and not config.llm.base_url:
        yield (
            f"{model}: llm.base_url is missing: the endpoint of {config.llm.model!r}, "
            'e.g. base_url = "http://localhost:8000/v1".'
        )
    if config.llm:
        yield from _price_checks(file, config.llm)


def _price_checks(file: _File, llm: LlmTable) -> Iterator[str]:
    """Half a price list would give half the cost."""
    prices = ("input_price", "output_price", "cached_input_price")
    given = [key for key in prices if getattr(llm, key) is not None]
    missing = [key for key in ("input_price", "output_price") if given and key not in given]
    if missing:
        names = " and ".join(f"llm.{key}" for key in missing)
        yield (
            f"{file.place('llm', given[0])[1]}: llm.{given[0]} needs {names} too, in dollars per million "
            "tokens; 0 for what costs nothing."
        )


def _finding(file: _File, item: Mapping[str, Any]) -> tuple[int, str]:
    """One pydantic error as one line for the person who wrote the file, after the line that it is about."""
    where = [str(part) for part in item["loc"]]
    dotted, (line, place) = ".".join(where), file.place(*where)
    if item["type"] == "extra_forbidden":
        allowed = _allowed(where[:-1])
        near = difflib.get_close_matches(where[-1], allowed, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        kind = "table" if len(where) == 1 else "key"
        return line, f"{place}: unknown {kind} {dotted!r}.{hint} Known here: {', '.join(sorted(allowed))}."
    if item["type"] == "missing":
        name = f"the table [{dotted}]" if len(where) == 1 else dotted
        return line, f"{place}: {name} is missing: {_description(where)}"
    return line, f"{place}: {dotted} = {_toml(item.get('input'))} {_must(where, item)}. {_description(where)}"


def _must(where: list[str], item: Mapping[str, Any]) -> str:
    """What pydantic expected, in our words: "Input should be at most 1" -> "must be at most 1"."""
    if item["type"] in ("model_type", "dict_type"):
        return f"must be a table: write [{where[0]}] on a line of its own and its keys below"
    if where == ["run", "name"]:
        return f"must be {NAME_RULE}"
    return str(item["msg"]).replace("Input should be", "must be", 1)


def _toml(value: Any) -> str:
    """A value as the file would write it."""
    return json.dumps(value, ensure_ascii=False, default=str)


def _allowed(where: list[str]) -> list[str]:
    if not where:
        return list(Config.model_fields)
    return list(TABLES[where[0]].model_fields) if where[0] in TABLES else []


def _description(where: list[str]) -> str:
    if where[0] in TABLES and len(where) > 1 and where[1] in TABLES[where[0]].model_fields:
        return TABLES[where[0]].model_fields[where[1]].description or ""
    return (TABLES[where[0]].__doc__ or "") if where[0] in TABLES else ""


def line_of(text: str, *where: str) -> int:
    """The line (from 1) of a table or key in the file; 1 when it is not there."""
    table_line, inside = 1, False
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]+", line):
            inside = header.group(1).split(".")[0].strip("\"'") == where[0]
            table_line = number if inside else table_line
        elif re.match(rf"\s*[\"']?{re.escape(where[-1])}[\"']?\s*=", line) and (inside or len(where) == 1):
            return number
        elif re.match(rf"\s*{re.escape(where[0])}\s*(=|\.\s*{re.escape(where[-1])}\s*=)", line):
            return number  # table = { key = ... }, table.key = ...
    return table_line


TABLES: Mapping[str, type[Table]] = {
    "run": RunTable,
    "rollout": RolloutTable,
    "dataset": DatasetTable,
    "llm": LlmTable,
    "policy": PolicyTable,
    "sampling": SamplingTable,
    "eval": EvalTable,
    "train": TrainTable,
}


def config_reference() -> str:
    """`docs/config.md`: every key with its type, default and meaning, generated from the models above."""
    lines = [
        "# Configuration",
        "",
        "Generated from `osmosis_ai/config.py` by `make docs`. Eval and train read the same file.",
        "Paths are relative to the file. Unknown keys are errors.",
    ]
    for name, table in TABLES.items():
        lines += ["", f"## [{name}]", "", table.__doc__ or "", "", "| key | type | default | meaning |"]
        lines.append("| --- | --- | --- | --- |")
        for key, info in table.model_fields.items():
            default = "required" if info.is_required() else _default(info.default)
            lines.append(f"| `{key}` | {_kind(info.annotation)} | {default} | {info.description} |")
    lines += [
        "",
        "## [workflow]",
        "",
        "Free keys: they override fields of the workflow's own config object.",
        "",
    ]
    return "\n".join(lines)


def _default(value: Any) -> str:
    """A default as it would stand in the file; a key that may be absent has none."""
    return "none" if value is None else f"`{json.dumps(value)}`"


def _kind(annotation: Any) -> str:
    """`Literal["none", "lora"]` as the values to choose from, `int | None` as integer."""
    if get_origin(annotation) is Literal:
        return " or ".join(_default(value) for value in get_args(annotation))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    names = {str: "string", int: "integer", float: "number", bool: "true or false"}
    return " or ".join(names.get(kind, str(kind)) for kind in kinds)
