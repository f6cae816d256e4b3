"""`python -m osmosis_ai.controller.gateway_worker FD`: a gateway process of a run with [llm]."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from osmosis_ai.config import Config
from osmosis_ai.controller.opening import open_provider
from osmosis_ai.errors import UsageError
from osmosis_ai.gateway.process import Recipe
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.gateway.worker import Parts, serve
from osmosis_ai.providers.base import Provider
from osmosis_ai.store.sqlite import SqliteStore


def recipe(config: Config, database: Path, log_path: Path) -> Recipe:
    """How the gateway processes of a run are made."""
    parts = {
        "database": str(database),
        "source": str(config.source.absolute()),
        "config": config.model_dump_json(),
    }
    return Recipe([sys.executable, "-m", "osmosis_ai.controller.gateway_worker"], parts, log_path)


@asynccontextmanager
async def open_parts(request: dict[str, Any]) -> AsyncIterator[Parts]:
    """The store, and the provider that the config names."""
    config = Config.model_validate_json(request["config"])
    config._source = Path(request["source"])
    if config.llm is None:
        raise UsageError("a gateway process answers with an external model: the config has no [llm]")
    provider = open_provider(config.llm, config)
    store = SqliteStore(request["database"])
    try:
        yield Parts(ProviderTarget(provider), store, lambda: _state_of(provider))
    finally:
        await provider.close()
        await store.close()


def _state_of(provider: Provider) -> dict[str, Any]:
    state = provider.state()
    return {**asdict(state), "down": None if state.down is None else str(state.down)}


if __name__ == "__main__":
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), open_parts))
