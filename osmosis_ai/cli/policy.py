"""`osmosis policy new`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Message, ToolSchema


@click.command(epilog="Example: osmosis policy new policy --from-run hello")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--from-run", help="Fit the tokenizer to the conversations of this stored run.")
@click.option(
    "--text", "files", multiple=True, type=click.Path(path_type=Path), help="... or to a text file."
)
@click.option("--hidden-size", type=click.IntRange(8), default=64, show_default=True)
@click.option("--layers", type=click.IntRange(1), default=3, show_default=True)
@click.option("--vocab-size", type=click.IntRange(300), default=768, show_default=True)
@click.option("--max-context", type=click.IntRange(64), default=1024, show_default=True, help="Tokens.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@WORKSPACE
@JSON
def new(
    path: Path,
    from_run: str | None,
    files: tuple[Path, ...],
    hidden_size: int,
    layers: int,
    vocab_size: int,
    max_context: int,
    seed: int,
    workspace: Path,
    as_json: bool,
) -> None:
    """Make a small Qwen3-style policy with random weights at PATH.

    PATH becomes an ordinary Hugging Face folder: config, safetensors, tokenizer, chat template. The
    tokenizer is fitted to the text of a stored run or of files, so that small policies stay fast.
    """
    display = Display(as_json=as_json)
    _refuse_taken(path)
    if not from_run and not files:
        raise UsageError("say what text the tokenizer is fitted to: --from-run RUN or --text FILE")
    from osmosis_ai.engine.policy import conversation_texts, new_policy

    texts = [_read(file) for file in files]
    if from_run:
        conversations = asyncio.run(_conversations(workspace_at(workspace), from_run))
        texts += conversation_texts(conversations)
    new_policy(
        path,
        texts=texts,
        hidden_size=hidden_size,
        layers=layers,
        vocab_size=vocab_size,
        max_context=max_context,
        seed=seed,
    )
    display.data({"event": "done", "policy": str(path)})
    display.out(f"policy {path}: hidden size {hidden_size}, {layers} layers, random weights of seed {seed}")


def _refuse_taken(path: Path) -> None:
    """Nothing is overwritten, and nothing is made below a file."""
    for above in (path, *path.parents):
        if above.exists() and not above.is_dir():
            raise UsageError(f"no folder can be made at {path}: {above} is a file; choose another path")
    if path.exists() and any(path.iterdir()):
        raise UsageError(f"{path} exists and is not empty; choose another path or remove it first")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--text {file}: cannot be read as UTF-8 text: {error}") from error


async def _conversations(workspace: Workspace, run_id: str) -> list[tuple[list[Message], list[ToolSchema]]]:
    store = existing_store(workspace)
    try:
        rollouts = await store.rollouts(RolloutFilter(run_id))
        known = ", ".join(summary.run.run_id for summary in await store.list_runs())
    finally:
        await store.close()

    def leaves() -> Iterator[tuple[list[Message], list[ToolSchema]]]:
        for rollout in rollouts:
            parents = {turn.parent for turn in rollout.turns}
            for turn in rollout.turns:
                if turn.ordinal not in parents:
                    yield [*turn.messages, turn.response], turn.tools

    found = list(leaves())
    if not found:
        raise UsageError(
            f"--from-run {run_id!r}: no stored conversation of that run in {workspace.database}. "
            f"Its runs: {known or 'none'}."
        )
    return found
