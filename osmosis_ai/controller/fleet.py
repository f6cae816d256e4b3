"""The gateway processes of a run with an external model: how they are made, and how their providers do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from osmosis_ai.config import Config
from osmosis_ai.errors import ProviderDownError
from osmosis_ai.gateway.fleet import Fleet
from osmosis_ai.gateway.process import Recipe
from osmosis_ai.providers.base import OnText, Provider, ProviderAnswer, ProviderRequest, ProviderState


def recipe(config: Config, database: Path, log_path: Path, *, callbacks_url: str) -> Recipe:
    """How they are made; together they send the model as many calls at once as one would."""
    assert config.llm is not None
    table = config.rollout
    parts = {
        "database": str(database),
        "callbacks_url": callbacks_url,
        "folder": str(config.source.parent.absolute()),
        "llm": config.llm.model_dump(mode="json"),
        "most": -(-table.max_concurrent // table.gateway_workers),
    }
    return Recipe([sys.executable, "-m", "osmosis_ai.controller.gateway_worker"], parts, log_path)


class FleetProvider:
    """The providers of all processes as one: `state` is what they said last, with the end of a rollout."""

    def __init__(self, own: Provider, fleet: Fleet) -> None:
        self._own = own
        self._fleet = fleet

    async def complete(self, request: ProviderRequest, on_text: OnText | None = None) -> ProviderAnswer:
        return await self._own.complete(request, on_text)

    def state(self) -> ProviderState:
        reports = list(self._fleet.provider_reports.values())
        limits = [report["limit"] for report in reports if report["limit"] is not None]
        down = next((report["down"] for report in reports if report["down"] is not None), None)
        return ProviderState(
            limit=sum(limits) if limits else None,
            in_flight=sum(report["in_flight"] for report in reports),
            waiting=sum(report["waiting"] for report in reports),
            throttled=sum(report["throttled"] for report in reports),
            failing=next((report["failing"] for report in reports if report["failing"]), ""),
            down=None if down is None else ProviderDownError(down),
        )

    async def close(self) -> None:
        await self._own.close()


def report_of(provider: Provider) -> dict[str, Any]:
    """The state of a process's provider, on its way to the parent."""
    state = provider.state()
    return {
        "limit": state.limit,
        "in_flight": state.in_flight,
        "waiting": state.waiting,
        "throttled": state.throttled,
        "failing": state.failing,
        "down": None if state.down is None else str(state.down),
    }
