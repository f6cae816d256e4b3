"""`python -m osmosis_ai.controller.gateway_worker FD`: a gateway process of a run with [llm]."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from osmosis_ai import process
from osmosis_ai.config import LlmTable
from osmosis_ai.controller.external_model import open_external_model
from osmosis_ai.controller.fleet import report_of
from osmosis_ai.gateway.forward import Forward
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.gateway.worker import Parts, serve
from osmosis_ai.store.sqlite import SqliteStore


@asynccontextmanager
async def open_parts(request: dict[str, Any]) -> AsyncIterator[Parts]:
    """The store, and the provider that `[llm]` names."""
    llm = LlmTable.model_validate(request["llm"])
    async with AsyncExitStack() as stack:
        store = SqliteStore(request["database"])
        stack.push_async_callback(store.close)
        folder = Path(request["folder"])
        provider = await open_external_model(llm, folder, store, most=request["most"])
        stack.push_async_callback(provider.close)
        forward = Forward(request["callbacks_url"])
        stack.push_async_callback(forward.close)
        yield Parts(ProviderTarget(provider), store, lambda: report_of(provider), forward)


if __name__ == "__main__":
    process.raise_file_limit()
    with asyncio.Runner(loop_factory=process.loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1]), open_parts))
