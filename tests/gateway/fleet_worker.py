"""A gateway process for the tests: `fleet_worker.py FD`, an engine or a provider answers by seed."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from osmosis_ai.gateway.process import Recipe
from osmosis_ai.gateway.targets import PolicyTarget, ProviderTarget, Target
from osmosis_ai.gateway.worker import Parts, serve
from osmosis_ai.providers.scripted import ScriptedProvider
from osmosis_ai.store.sqlite import SqliteStore


def recipe(folder: Path, kind: str, tokenizer: Path | None = None) -> Recipe:
    parts = {"database": str(folder / "osmosis.db"), "kind": kind, "tokenizer": str(tokenizer)}
    return Recipe([sys.executable, __file__], parts, folder / "gateway.log")


def answer(messages: list[Any], tools: list[Any], random: Random) -> dict[str, Any]:
    return {"content": f"{random.random()} of many words " + "so " * 20}


def target(kind: str, tokenizer: str) -> Target:
    if kind == "provider":
        return ProviderTarget(ScriptedProvider(answer))
    from gateway_parts import TextEngine, info

    from osmosis_ai.gateway.render import TemplateRenderer

    renderer = TemplateRenderer(Path(tokenizer))
    engine = TextEngine(lambda _, sampling: f"{sampling.seed} of many words " + "so " * 20, renderer)
    return PolicyTarget(engine, info(10**6, renderer.end_ids), renderer)


@asynccontextmanager
async def open_parts(request):
    if request["kind"] == "broken":
        sys.exit(3)
    store = SqliteStore(request["database"])
    try:
        yield Parts(target(request["kind"], request["tokenizer"]), store, lambda: {"in_flight": 0})
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), open_parts))
