"""The identity of a run: what must not change between two of its lives, and who says what did.

Data, code, model and every setting that changes a result, as flat keys, so that a refusal can name them.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from osmosis_ai.config import Config, EndpointTable, beside
from osmosis_ai.datasets import dataset_fingerprint
from osmosis_ai.errors import EntrypointError, UsageError
from osmosis_ai.store.base import RunKind, RunRecord
from osmosis_ai.store.workspace import Workspace

FILE = "code."  # before the name of a file, in a key
# Settings that change how fast or how far a run goes, not what a step computes.
FREE_TRAIN_KEYS = {"checkpoint_every", "keep_checkpoints", "audit_gate"}


def changes_of(known: RunRecord, identity: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is not as it was when the run began, or was amended last: key -> [was, is]."""
    keys = sorted({*known.identity, *identity})
    pairs = {key: [known.identity.get(key), identity.get(key)] for key in keys}
    changes = {key: pair for key, pair in pairs.items() if pair[0] != pair[1]}
    if any(key.startswith(FILE) for key in changes):
        changes.pop("entrypoint", None)  # the digest of all files, which says less than their names
    return changes


def refuse_kind(known: RunRecord, kind: RunKind) -> None:
    """Raise UsageError when the name is that of a run of the other kind."""
    if known.kind != kind:
        raise UsageError(
            f"run {known.run_id!r} is a run of kind {known.kind!r}, not {kind!r}; "
            "give this one another name ([run] name, or --name)."
        )


def refuse_changes(known: RunRecord, changes: Mapping[str, Sequence[Any]]) -> None:
    """Raise UsageError naming everything that has changed."""
    if not changes:
        return
    accept = ", go on with what has changed (--accept-changes)" if known.kind == "eval" else ""
    raise UsageError(
        f"run {known.run_id!r} exists and was made with other inputs:\n"
        + "\n".join(f"  {key}: was {was!r}, is {now!r}" for key, (was, now) in changes.items())
        + "\nUndo the change to go on with it, start a new run with --fresh (the old one is kept)"
        f"{accept}, or choose another name (--name)."
    )


def run_identity(config: Config, kind: RunKind, workspace: Workspace) -> dict[str, Any]:
    """Everything that a resumed run must share with its first life, as flat keys that can be named."""
    identity: dict[str, Any] = {
        "seed": config.run.seed,
        "dataset": dataset_fingerprint(config.resolve(config.dataset.path))[:16],
        "model": _model_identity(config, workspace),
    }
    if config.judge is not None:
        identity["judge"] = endpoint_identity(config.judge, config.source.parent)
    identity |= _code_identity(config)
    identity |= {f"sampling.{k}": v for k, v in config.sampling.model_dump().items()}
    identity |= {f"workflow.{k}": repr(v) for k, v in config.workflow.items()}
    of_rollout = ("rollout_tokens", "rollout_dollars")  # those of the run say how far it goes, not what comes
    identity |= {f"budget.{k}": v for k in of_rollout if (v := getattr(config.budget, k)) is not None}
    if kind == "train":  # an eval may go on with other rows: each has its own result
        identity |= {f"dataset.{k}": v for k, v in config.dataset.model_dump().items() if k != "path"}
        train = config.train.model_dump()
        free = FREE_TRAIN_KEYS | ({"steps"} if config.train.final_learning_rate == 1.0 else set())
        identity |= {f"train.{k}": v for k, v in train.items() if k not in free}
    else:
        identity["eval.attempts"] = config.eval.attempts
    return identity


def _code_identity(config: Config) -> dict[str, str]:
    """The user's code: digests of its sources, or the URL of what runs it elsewhere."""
    table = config.rollout
    if table.url:
        identity = {"entrypoint": f"at {table.url}"}
    else:
        main = source_of(config, "entrypoint", table.entrypoint)
        sources = local_sources(main)
        identity = {"entrypoint": _digest(sources)}  # of all of them, and of each, to be named
        identity |= {f"{FILE}{path.relative_to(main.parent)}": _digest([path]) for path in sources}
    if table.grader_entrypoint:
        path = source_of(config, "grader_entrypoint", table.grader_entrypoint)
        identity["grader"] = _digest(local_sources(path))
    identity |= {f"rollout.{key}": name for key in ("workflow", "grader") if (name := getattr(table, key))}
    return identity


def local_sources(entrypoint: Path) -> list[Path]:
    """The entrypoint and every module beside it that it imports, directly or not.

    main.py with `import tools` and a tools.py beside it: [main.py, tools.py]; what is installed elsewhere,
    and what is imported under a computed name, is not followed.
    """
    found, waiting = {entrypoint}, [entrypoint]
    while waiting:
        for name in _imported(waiting.pop()):
            top = entrypoint.parent / name.split(".")[0]
            sources = (
                sorted(top.rglob("*.py")) if (top / "__init__.py").is_file() else [top.with_suffix(".py")]
            )
            new = [path for path in sources if path.is_file() and path not in found]
            found.update(new)
            waiting += new
    return sorted(found)


def _imported(path: Path) -> set[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return set()  # the rollout server will say so, with the line
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update([node.module] if node.module else [alias.name for alias in node.names])
    return names


def _digest(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def source_of(config: Config, key: str, entrypoint: str) -> Path:
    """The file or module that [rollout] names. Raises EntrypointError when there is none."""
    path = config.resolve(entrypoint)
    if not entrypoint.endswith(".py"):
        try:
            spec = importlib.util.find_spec(entrypoint)
        except (ImportError, ValueError) as error:
            raise EntrypointError(f"rollout.{key} = {entrypoint!r}: {error}") from error
        if spec is None or spec.origin is None:
            raise EntrypointError(
                f"rollout.{key} = {entrypoint!r} is neither a .py file nor a module that can be found"
            )
        path = Path(spec.origin)
    if not path.is_file():
        near = sorted(p.name for p in path.parent.glob("*.py")) if path.parent.is_dir() else []
        raise EntrypointError(
            f"rollout.{key} = {entrypoint!r}: there is no file {path}. "
            f"Python files beside it: {', '.join(near) or 'none'}."
        )
    return path


def _model_identity(config: Config, workspace: Workspace) -> str:
    if config.policy is not None:
        folder = workspace.policy_folder(config.policy.path, config.source.parent)
        files = sorted(folder.glob("*.safetensors")) + sorted(folder.glob("*.j*"))
        table = config.policy
        adapter = f"lora of rank {table.lora_rank}" if table.adapter == "lora" else "all weights"
        order = ", one request at a time" if table.deterministic else ""
        return f"policy {_digest(files)}, {adapter}, {table.dtype}{order}"
    if config.llm is not None and config.llm.model == "replay":
        file = config.resolve(config.llm.replay)
        return f"replay of {config.llm.replay}" + (f" {_digest([file])}" if file.is_file() else "")
    return "none" if config.llm is None else endpoint_identity(config.llm, config.source.parent)


def endpoint_identity(table: EndpointTable, folder: Path) -> str:
    """Who answers: the model and its endpoint, or the digest of the script."""
    script = beside(folder, table.script.partition(":")[0])
    if table.model == "scripted" and script.is_file():
        return f"script {table.script} {_digest([script])}"
    where = table.base_url or table.script
    return f"{table.model} at {where}" if where else f"{table.model} through LiteLLM"
