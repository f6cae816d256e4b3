"""A rollout server that somebody else wrote, and that says what cannot be read: no rollout waits for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.deck import DispatchSettings
from osmosis_ai.controller.dispatch import Dispatcher
from osmosis_ai.controller.place import Place
from osmosis_ai.controller.rollout_server import Life
from osmosis_ai.controller.user_server import UserCode, UserServer
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.base import InProcess
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.targets import ProviderTarget
from osmosis_ai.providers.scripted import ScriptedProvider
from osmosis_ai.store.base import RunRecord
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.types import Rollout, Row, Status


class ForeignServer(UserServer):
    """Takes each rollout, makes one LLM call for it, and reports what it was told to."""

    def __init__(self, completed: dict[str, Any], graded: dict[str, Any], folder: Path) -> None:
        super().__init__(UserCode("nothing"), folder / "log")
        self._completed = completed
        self._graded = graded
        self._tasks: set[asyncio.Task[None]] = set()

    async def ensure_running(self) -> Life:
        if not self.url:
            app = web.Application()
            app.router.add_post("/rollout", self._take)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return Life()

    async def _take(self, request: web.Request) -> web.Response:
        self._tasks.add(asyncio.create_task(self._run(await request.json())))
        return web.json_response({"status": "accepted"}, status=202)

    async def _run(self, rollout: dict[str, Any]) -> None:
        async with aiohttp.ClientSession() as session:
            call = {"model": "openai/osmosis-rollout", "messages": rollout["initial_messages"]}
            headers = {"Authorization": f"Bearer {rollout['llm_api_key']}"}
            url = f"{rollout['chat_completions_url']}/chat/completions"
            async with session.post(url, json=call, headers=headers) as reply:
                assert reply.status == 200
            headers = {"Authorization": f"Bearer {rollout['controller_api_key']}"}
            for url, body in (
                (rollout["completion_callback_url"], {"status": "success", **self._completed}),
                (rollout["grader_callback_url"], {"status": "success", **self._graded}),
            ):
                with suppress(aiohttp.ClientError):  # after a failure nobody waits for the second one
                    async with session.post(url, json=body, headers=headers):
                        pass


async def run_one(graded: dict[str, Any], folder: Path, **completed: Any) -> Rollout:
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240
    store = SqliteStore(folder / "osmosis.db")
    await store.create_run(RunRecord("x", "eval", "running", 0.0, {}, {}))
    callbacks = Callbacks()
    target = ProviderTarget(ScriptedProvider(lambda messages, tools, random: {"content": "42"}))
    gateway = Gateway(target, store, extra_routes=callbacks)
    await gateway.start()
    settings = DispatchSettings(
        seed=0,
        max_concurrent=1,
        agent_timeout_seconds=5,
        grader_timeout_seconds=5,
        retries=0,
        sampling=SamplingDefaults(),
    )
    server = ForeignServer(completed, graded, folder)
    dispatcher = Dispatcher(server, InProcess(gateway), callbacks, store, settings)
    place = Place("x", 0, Row(0, [{"role": "user", "content": "hi"}]), "r0", 0)
    try:
        attempts = await asyncio.wait_for(dispatcher.run_all([place]), timeout=60)
        return attempts["r0", 0].rollout
    finally:
        await dispatcher.close()
        await gateway.stop()
        await store.close()


async def test_what_it_reports_is_taken(tmp_path: Path):
    rollout = await run_one({"samples": {"main": {"reward": 0.5}}}, tmp_path)
    assert (rollout.status, rollout.reward, len(rollout.turns)) == (Status.GRADED, 0.5, 1)


OURS = {"status": "failure", "err_category": "internal_error", "err_message": "the disk is full"}


async def test_a_failure_of_the_server_itself_is_infrastructure(tmp_path: Path):
    """Neither the workflow's nor the grader's, so the place is tried again."""
    graded = await run_one(OURS, tmp_path / "graded")
    assert (graded.status, graded.reason) == (Status.INFRASTRUCTURE, "the disk is full")
    completed = await run_one({}, tmp_path, **OURS)
    assert (completed.status, completed.reason) == (Status.INFRASTRUCTURE, "the disk is full")


@pytest.mark.parametrize(
    ("graded", "status", "reason"),
    [
        ({}, Status.GRADER_ERROR, "no sample was left after grading"),
        ({"samples": []}, Status.GRADER_ERROR, "no sample was left after grading"),
        ({"samples": ["main"]}, Status.GRADER_ERROR, "samples must be an object of objects, got ['main']"),
        (
            {"samples": {"main": {"reward": "1"}}},
            Status.GRADER_ERROR,
            "has reward '1', which is not a finite",
        ),
        (
            {"samples": {"main": {"reward": 1, "metrics": [1]}}},
            Status.INFRASTRUCTURE,
            "the callback could not be used: AttributeError: 'list' object has no attribute 'items'",
        ),
    ],
)
async def test_what_cannot_be_read_ends_the_rollout_at_once(
    tmp_path: Path, graded: dict[str, Any], status: Status, reason: str
):
    rollout = await run_one(graded, tmp_path)
    assert (rollout.status, reason in rollout.reason) == (status, True), rollout.reason
