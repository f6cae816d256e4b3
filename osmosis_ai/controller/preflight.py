"""Everything that would keep a run from starting, found at once and without starting it.

configuration -> the user's code (in a child process) -> dataset -> who answers -> installed packages
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from osmosis_ai.config import Config, load_config
from osmosis_ai.controller.head_start import source_of
from osmosis_ai.errors import ConfigError, OsmosisError
from osmosis_ai.store.workspace import Workspace

IMPORT_SECONDS = 120.0  # an agent framework on a busy machine takes seconds
TRAINING_PACKAGES = ("torch", "transformers", "safetensors")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to mend."""

    code: str  # CONFIG, ENTRYPOINT or a code of `osmosis validate`, DATASET, MODEL, DEPENDENCY
    message: str


async def preflight(
    path: Path, overrides: Mapping[str, Any], kind: Literal["eval", "train"], workspace: Workspace
) -> tuple[list[Finding], dict[str, Any]]:
    """What is wrong with a run of the config file, and in a few words what it would be."""
    try:
        config = load_config(path, overrides)
    except ConfigError as error:
        findings = [Finding("CONFIG", finding) for finding in error.findings]
        return [*findings, *await _of_half_a_config(path, workspace)], {}
    code = asyncio.ensure_future(_remote(config) if config.rollout.url else _code(config))
    await asyncio.sleep(0)  # the process with the code begins now, beside all that is imported here
    from osmosis_ai.controller.opening import read_rows

    others: list[Finding] = []
    rows = _tried(others, "DATASET", lambda: read_rows(config)) or []
    others += _model(config, workspace)
    others += _packages(config)
    if kind == "train":
        others += _training(config)
    findings = [*await code, *others]
    rollouts = len(rows) * config.eval.attempts
    if kind == "train":
        rollouts = config.train.steps * config.train.rows_per_step * config.train.group_size
    return findings, {"run": config.run_name, "rows": len(rows), "rollouts": rollouts}


def _tried(findings: list[Finding], code: str, work: Callable[[], Any]) -> Any:
    """What `work` gives; None, and its findings, when it raises."""
    try:
        return work()
    except OsmosisError as error:
        findings += [Finding(code, line) for line in str(error).splitlines() if line.strip()]
        return None


async def _of_half_a_config(path: Path, workspace: Workspace) -> list[Finding]:
    """Of a file that does not hold: code, dataset and policy, where it names them."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))  # noqa: ASYNC240  a small file, once
    except (OSError, ValueError):
        return []
    findings: list[Finding] = []
    rollout, dataset, policy = tables.get("rollout"), tables.get("dataset"), tables.get("policy")
    if isinstance(rollout, dict) and isinstance(entrypoint := rollout.get("entrypoint"), str):
        findings += await _validated([source_of(path.parent, entrypoint)])
    if isinstance(dataset, dict) and isinstance(data := dataset.get("path"), str):
        from osmosis_ai.datasets import open_dataset

        _tried(findings, "DATASET", lambda: open_dataset(path.parent / data))
    if isinstance(policy, dict) and isinstance(weights := policy.get("path"), str):
        findings += _policy(weights, path.parent, workspace)
    return findings


async def _code(config: Config) -> list[Finding]:
    """The entrypoint, imported and discovered in a process of its own: it is the user's code."""
    table = config.rollout
    target = source_of(config.source.parent, table.entrypoint) + (
        f":{table.workflow}" if table.workflow else ""
    )
    arguments = [target, "--overrides", json.dumps(config.workflow, default=str)]
    return await _validated(arguments + (["--grader", table.grader] if table.grader else []))


async def _validated(arguments: list[str]) -> list[Finding]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "osmosis_ai", "validate", *arguments, "--json",
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), IMPORT_SECONDS)
    except TimeoutError:
        return [Finding("ENTRYPOINT", f"{arguments[0]} was not imported within {IMPORT_SECONDS:.0f} s")]
    finally:  # after Ctrl-C, too, and after an error beside it
        if process.returncode is None:
            process.kill()
            await process.wait()
    for line in reversed(out.decode(errors="replace").splitlines()):
        if line.startswith('{"event": "validation"'):
            return [Finding(error["code"], error["message"]) for error in json.loads(line)["errors"]]
    status, text = process.returncode, err.decode(errors="replace").strip()[-500:]
    return [Finding("ENTRYPOINT", f"importing {arguments[0]} ended the process with status {status}: {text}")]


async def _remote(config: Config) -> list[Finding]:
    from osmosis_ai.controller.external_model import from_environment
    from osmosis_ai.controller.remote import Address, check_reachable, connect

    table = config.rollout
    try:
        check_reachable(table.url, table.gateway_host)
        key = from_environment("rollout.api_key_env", table.api_key_env) if table.api_key_env else ""
        address = Address(table.url.rstrip("/"), key)
        await connect(address, table.protocol, config.workflow, config.sampling.model_dump())
    except OsmosisError as error:
        return [Finding("ENTRYPOINT", str(error))]
    return []


def _model(config: Config, workspace: Workspace) -> list[Finding]:
    from osmosis_ai.controller.external_model import REPLAY, check_replay, open_provider

    findings: list[Finding] = []
    llm, policy, folder = config.llm, config.policy, config.source.parent
    if llm is not None:
        if llm.model == REPLAY:
            _tried(findings, "MODEL", lambda: check_replay(llm, folder, workspace))
        else:
            _tried(findings, "MODEL", lambda: open_provider(llm, folder, most=1))
    elif policy is None:
        findings.append(Finding("MODEL", "neither [llm] nor [policy] is given: say which model answers"))
    else:
        findings += _policy(policy.path, folder, workspace)
    if (judge := config.judge) is not None:
        _tried(findings, "MODEL", lambda: open_provider(judge, folder, most=1, name="judge"))
    return findings


def _policy(path: str, folder: Path, workspace: Workspace) -> list[Finding]:
    findings: list[Finding] = []
    weights = _tried(findings, "MODEL", lambda: workspace.policy_folder(path, folder))
    if weights is not None and not (weights / "config.json").is_file():
        message = f"policy.path = {path!r}: there is no config.json in {weights}, so it is no policy"
        findings.append(Finding("MODEL", message))
    return findings


def _training(config: Config) -> list[Finding]:
    from osmosis_ai.controller.training import refuse_other_distributions, refuse_run_budgets

    findings: list[Finding] = []
    if config.policy is None:
        findings.append(Finding("MODEL", "training needs [policy] path = a policy folder"))
    if config.train.algorithm == "sft" and not config.train.from_run:
        message = 'train.algorithm = "sft" needs train.from_run = the name of a run with stored rollouts'
        findings.append(Finding("CONFIG", message))
    _tried(findings, "CONFIG", lambda: refuse_run_budgets(config))
    if config.train.algorithm != "sft":
        _tried(findings, "CONFIG", lambda: refuse_other_distributions(config))
    return findings


def _packages(config: Config) -> Iterator[Finding]:
    if config.policy is None:
        return
    needed = [*TRAINING_PACKAGES, *(["peft"] if config.policy.adapter == "lora" else [])]
    for name in needed:
        if importlib.util.find_spec(name) is None:
            message = f"the package {name!r} is not installed: pip install 'osmosis-ai[train]'"
            yield Finding("DEPENDENCY", message)
