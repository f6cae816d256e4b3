"""One TOML file for eval and train: what the keys are, what they mean, and every mistake at once.

    [run] [rollout] [dataset] [llm] or [policy] [judge] [sampling] [eval] [budget] [train] [workflow]

Each table is a model below; `docs/config.md` and the JSON Schema are made from them. `[workflow]` is free:
its keys override the fields of the workflow's own config object.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from osmosis_ai.errors import ConfigError
from osmosis_ai.findings import COMMAND_LINE, Finding, TomlFile, in_order, model_finding, syntax_finding

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
        json_schema_extra={"patternErrorMessage": f"must be {NAME_RULE}"},
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
        json_schema_extra={"patternErrorMessage": "must be a URL with http:// or https://"},
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
    debug_dir: str = Field(
        "", description="Folder for what ctx.log_event logs, relative to the config file; empty: nothing is."
    )
    workflow: str = Field("", description="Class to use when the entrypoint holds several workflows.")
    grader: str = Field("", description="Class to use when the entrypoint holds several graders.")
    max_concurrent: int = Field(64, ge=1, description="Rollouts in flight at once.")
    gateway_workers: int = Field(
        1,
        ge=1,
        description="Processes that answer LLM calls, each rollout's by one; more than one with [llm] only.",
    )
    agent_timeout_seconds: float = Field(450.0, gt=0, description="Deadline of one run() call.")
    grader_timeout_seconds: float = Field(150.0, gt=0, description="Deadline of one grade() call.")
    retries: int = Field(
        2,
        ge=0,
        description="Further attempts after a failure that is not the user code's.",
    )


class DatasetTable(Table):
    """The rows."""

    path: str = Field(description="JSONL, CSV, Parquet or JSON file, relative to the config file.")
    limit: int | None = Field(None, ge=1, description="Use at most this many rows.")
    offset: int = Field(0, ge=0, description="Skip this many rows first.")
    rows: str = Field("", description='Use these rows only, counted from 0: "3,7,10-20".')
    sample: int | None = Field(None, ge=1, description="Use this many of the rows, drawn at random.")
    seed: int = Field(0, description="Of the draw: the same seed draws the same rows.")


class EndpointTable(Table):
    """A model that answers over HTTP, or a script in its place."""

    model: str = Field(
        description="Model name at base_url, or without one PROVIDER/MODEL as LiteLLM names it; "
        'or "scripted"; for [llm] also "replay".'
    )
    base_url: str = Field("", description="OpenAI-compatible endpoint, up to and including /v1.")
    api_key_env: str = Field("", description="Environment variable with the key; the agents do not get it.")
    script: str = Field(
        "",
        description='For "scripted": path.py:function that answers, or a session (.jsonl) of `osmosis test`.',
    )
    timeout_seconds: float = Field(
        300.0, gt=0, description="Longest wait for one answer, and for a call that gets 429 all in all."
    )
    retries: int = Field(3, ge=0, description="Further tries of a call after 5xx or a lost connection.")


class LlmTable(EndpointTable):
    """An external model. Either this or [policy]."""

    replay: str = Field(
        "", description='For "replay": the run whose answers are given again, or its export (.jsonl).'
    )
    input_price: float | None = Field(
        None, ge=0, description="Dollars per million prompt tokens; with output_price, costs are shown."
    )
    output_price: float | None = Field(None, ge=0, description="Dollars per million completion tokens.")
    cached_input_price: float | None = Field(
        None, ge=0, description="Dollars per million prompt tokens that the endpoint had cached."
    )


class JudgeTable(EndpointTable):
    """A model for the grader to ask (`ctx.judge`). Its tokens are never trained."""


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
    failure_budget: int | None = Field(
        None,
        ge=0,
        description="Rollouts that may fail in one go and not by their own fault, before the run stops with "
        "what it has; default: as many as there are to run, at least 100.",
    )


class BudgetTable(Table):
    """How much may be used up. The deadlines of a rollout are rollout.agent_timeout_seconds and its like."""

    run_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt and completion tokens of an eval, earlier commands included: when they are spent "
        "no further rollout begins.",
    )
    run_dollars: float | None = Field(
        None, gt=0, description="The same in dollars, by the prices in [llm]; cached tokens as priced there."
    )
    run_seconds: float | None = Field(
        None, gt=0, description="Seconds of one `osmosis eval run`; after them no further rollout begins."
    )
    rollout_tokens: int | None = Field(
        None,
        ge=1,
        description="Prompt and completion tokens of one rollout; the call after them is refused, and the "
        "rollout ends as over_budget, without a reward.",
    )
    rollout_dollars: float | None = Field(
        None, gt=0, description="The same in dollars, by the prices in [llm]."
    )


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


def beside(folder: Path, path: str) -> Path:
    """A path that a configuration in `folder` names."""
    return folder / os.path.expanduser(path)  # pathlib's raises for the home of nobody


class Config(Table):
    """The whole file."""

    run: RunTable = RunTable()
    rollout: RolloutTable
    dataset: DatasetTable
    llm: LlmTable | None = None
    policy: PolicyTable | None = None
    judge: JudgeTable | None = None
    sampling: SamplingTable = SamplingTable()
    eval: EvalTable = EvalTable()
    budget: BudgetTable = BudgetTable()
    train: TrainTable = TrainTable()
    workflow: dict[str, Any] = Field(default_factory=dict)

    _source: Path = PrivateAttr(Path())

    @property
    def source(self) -> Path:
        """The file itself."""
        return self._source

    def resolve(self, path: str) -> Path:
        """A path of the file, relative to the file."""
        return beside(self.source.parent, path)

    @property
    def run_name(self) -> str:
        return self.run.name or self.source.stem


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file. `overrides` maps dotted keys ("dataset.limit") to values that win over the file.

    Raises ConfigError with everything that is wrong, each finding as `file:line:col: what, value, way out`.
    """
    text = _read(path)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError([syntax_finding(path, text, error)]) from error
    return config_of(data, path, overrides, text)


def config_of(
    data: dict[str, Any], source: Path, overrides: Mapping[str, Any] | None = None, text: str = ""
) -> Config:
    """The configuration in the tables of a file, whose text the findings' places are from."""
    given = {dotted: value for dotted, value in (overrides or {}).items() if value is not None}
    added = {table for dotted in given if (table := dotted.partition(".")[0]) not in data}
    for dotted, value in given.items():
        table, key = dotted.split(".")
        if isinstance(data.setdefault(table, {}), dict):  # else the file itself is wrong, and says so below
            data[table][key] = value
    file = TomlFile(source, text, frozenset({*given, *added}))
    findings = list(_cross_checks(file, data))
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        findings += [model_finding(file, Config, dict(item)) for item in error.errors()]
    if findings:
        raise ConfigError(in_order(findings))
    config._source = source
    return config


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


NEEDS_LLM = (
    "needs [llm]: a policy is sampled by the engine in the run's own process, and only the gateway there can "
    "ask it. Leave it out."
)


def _cross_checks(file: TomlFile, tables: Mapping[str, Any]) -> Iterator[Finding]:
    """What no table can say for itself. Values may still be of any type: their own findings come beside."""
    if not _table(tables, "run").get("name") and not re.fullmatch(NAME, file.path.stem):
        name = f"{file.path}: the file's name {file.path.stem!r}"
        rule = f"cannot name a run, which must be {NAME_RULE}: give one with --name or [run] name."
        yield COMMAND_LINE, f"{name} {rule}"
    if "rollout" in tables:
        yield from _entrypoint_or_url(file, _table(tables, "rollout"))
        yield from _several_gateways(file, tables)
    if "llm" in tables and "policy" in tables:
        yield file.finding(
            ["policy"],
            "[llm] and [policy] are both given; "
            "keep one: [llm] for an external model, [policy] for a policy folder.",
        )
    for name in ("llm", "judge"):
        if "model" in (table := _table(tables, name)):
            yield from _endpoint_checks(file, name, table)
    yield from _replay_checks(file, _table(tables, "llm"))
    yield from _price_checks(file, _table(tables, "llm"))
    yield from _budget_checks(file, tables)


def _budget_checks(file: TomlFile, tables: Mapping[str, Any]) -> Iterator[Finding]:
    """Dollars are counted by prices."""
    if "input_price" in _table(tables, "llm"):
        return
    for key in ("run_dollars", "rollout_dollars"):
        if key in _table(tables, "budget"):
            needs = "llm.input_price and llm.output_price, in dollars per million tokens"
            yield file.finding(["budget", key], f"budget.{key} needs {needs}.")


def _table(tables: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of the file; nothing where something else stands, of which it is said where tables are read."""
    found = tables.get(name)
    return found if isinstance(found, dict) else {}


def _several_gateways(file: TomlFile, tables: Mapping[str, Any]) -> Iterator[Finding]:
    """Who answers must be able to do so in several processes at once."""
    workers = _table(tables, "rollout").get("gateway_workers")
    if not isinstance(workers, int) or workers < 2:
        return
    what = f"rollout.gateway_workers = {workers}"
    if "policy" in tables:
        yield file.finding(["rollout", "gateway_workers"], f"{what} {NEEDS_LLM}")
    elif _table(tables, "llm").get("model") == "replay":
        why = "cannot answer a replay, which gives each recorded answer once and counts them in one process"
        yield file.finding(["rollout", "gateway_workers"], f"{what} {why}. Leave it out.")


def _entrypoint_or_url(file: TomlFile, rollout: Mapping[str, Any]) -> Iterator[Finding]:
    """The user's code is named once: by its file, or by the server that runs it."""
    entrypoint, url = rollout.get("entrypoint"), rollout.get("url")
    if entrypoint and url:
        yield file.finding(["rollout", "url"], "rollout.entrypoint and rollout.url are both given; keep one.")
    elif not entrypoint and not url:
        about = RolloutTable.model_fields["entrypoint"].description
        yield file.finding(
            ["rollout", "entrypoint"], f"rollout.entrypoint is missing: {about} Or give rollout.url."
        )
    of_a_url = ("api_key_env", "protocol", "grader_entrypoint", "gateway_host")
    foreign = ("workflow", "debug_dir") if url else of_a_url
    belongs = "rollout.entrypoint" if url else "rollout.url"
    for key in foreign:
        if rollout.get(key):
            yield file.finding(["rollout", key], f"rollout.{key} is for {belongs} only; leave it out.")


def _endpoint_checks(file: TomlFile, name: str, table: Mapping[str, Any]) -> Iterator[Finding]:
    """A model needs a way to be reached."""
    place = [name, "model"]
    if table["model"] == "scripted" and not table.get("script"):
        yield file.finding(place, f'{name}.model = "scripted" needs {name}.script = "file.py:function".')
    stands_alone = table["model"] in ("scripted", _replayed(name)) or "/" in str(table["model"])
    if not stands_alone and not table.get("base_url"):
        yield file.finding(
            place,
            f"{name}.base_url is missing: the endpoint of {table['model']!r}, "
            'e.g. base_url = "http://localhost:8000/v1". '
            'Or name the model as LiteLLM does, like "anthropic/claude-sonnet-4-5".',
        )
    url = table.get("base_url") or "http://"
    if not str(url).startswith(("http://", "https://")):
        expected = f"{name}.base_url must be a URL like https://api.example.com/v1, got {url!r}"
        yield file.finding([name, "base_url"], expected)


def _replayed(name: str) -> str | None:
    """The name that stands for a recorded run; a judge has none."""
    return "replay" if name == "llm" else None


def _replay_checks(file: TomlFile, llm: Mapping[str, Any]) -> Iterator[Finding]:
    model, run = llm.get("model"), llm.get("replay")
    if model == "replay" and not run:
        yield file.finding(["llm", "model"], 'llm.model = "replay" needs llm.replay = "RUN".')
    if model != "replay" and run:
        yield file.finding(["llm", "replay"], 'llm.replay is for llm.model = "replay" only; leave it out.')


def _price_checks(file: TomlFile, llm: Mapping[str, Any]) -> Iterator[Finding]:
    """Half a price list would give half the cost."""
    given = [key for key in ("input_price", "output_price", "cached_input_price") if key in llm]
    missing = [f"llm.{key}" for key in ("input_price", "output_price") if given and key not in given]
    if missing:
        yield file.finding(
            ["llm", given[0]],
            f"llm.{given[0]} needs {' and '.join(missing)} too, in dollars per million tokens; "
            "0 for what costs nothing.",
        )


TABLES: Mapping[str, type[Table]] = {
    "run": RunTable,
    "rollout": RolloutTable,
    "dataset": DatasetTable,
    "llm": LlmTable,
    "policy": PolicyTable,
    "judge": JudgeTable,
    "sampling": SamplingTable,
    "eval": EvalTable,
    "budget": BudgetTable,
    "train": TrainTable,
}
