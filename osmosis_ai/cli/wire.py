"""`osmosis runs wire`: the calls of a rollout as they came over the wire."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON, WORKSPACE, existing_store, workspace_at
from osmosis_ai.errors import UsageError
from osmosis_ai.store.base import Native


@click.command(epilog="Example: osmosis runs wire hello.r0.m0.a0")
@click.argument("rollout_id")
@click.option("--turn", type=int, help="Write the body of this call's request, byte for byte.")
@click.option("--answer", is_flag=True, help="With --turn: what the external model answered instead.")
@WORKSPACE
@JSON
def wire(rollout_id: str, turn: int | None, answer: bool, workspace: Path, as_json: bool) -> None:
    """The calls of ROLLOUT_ID as they came: the agent's requests, an external model's answers.

    What is compared, rendered and trained is in `osmosis runs show`; this is what was sent, spacing included.
    """
    if answer and turn is None:
        raise UsageError("--answer is of one call: name it with --turn N")
    display = Display(as_json=as_json)
    natives = asyncio.run(_read(workspace, rollout_id))
    if not natives:
        raise UsageError(
            f"there are no calls of a rollout {rollout_id!r}; osmosis runs show RUN --json has the ids"
        )
    if turn is not None:
        return _write(natives, turn, answer=answer)
    for ordinal, native in natives.items():
        texts = {"sent": _text(native.sent), "answered": _text(native.answered)}
        display.data({"event": "call", "turn": ordinal, "wire": native.wire, **texts})
        answered = f"answered with {len(native.answered)} bytes" if native.answered else "the policy answered"
        display.out(f"turn {ordinal}  {native.wire}  {len(native.sent)} bytes sent, {answered}")


async def _read(workspace: Path, rollout_id: str) -> dict[int, Native]:
    store = existing_store(workspace_at(workspace))
    try:
        return await store.natives(rollout_id)
    finally:
        await store.close()


def _write(natives: dict[int, Native], turn: int, *, answer: bool) -> None:
    if turn not in natives:
        raise UsageError(f"there are no bytes of turn {turn}; of these there are: {list(natives)}")
    body = natives[turn].answered if answer else natives[turn].sent
    sys.stdout.buffer.write(body)
    sys.stdout.buffer.flush()


def _text(body: bytes) -> str:
    return body.decode("utf-8", "backslashreplace")
