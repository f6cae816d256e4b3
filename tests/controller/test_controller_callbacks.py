"""Callbacks: only with the rollout's own key, once, and acknowledged when what they say is stored."""

from __future__ import annotations

import json
from typing import Any

from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.results import read_samples
from osmosis_ai.errors import StoreError


async def post(
    app: Callbacks, path: str, key: str, body: bytes = b"{}", method: str = "POST"
) -> tuple[int, Any]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())]
    await app({"type": "http", "method": method, "path": path, "headers": headers}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


class Desk:
    def __init__(self) -> None:
        self.taken: list[str] = []
        self.disk_is_full = False

    async def completed(self, body: dict[str, Any]) -> None:
        if self.disk_is_full:
            raise StoreError("disk full")
        self.taken.append("completed")

    async def graded(self, body: dict[str, Any]) -> None:
        self.taken.append("graded")


async def test_a_callback_counts_once_and_is_acknowledged_each_time():
    app, desk = Callbacks(), Desk()
    key = app.expect("r1", desk.completed, desk.graded)
    answers = [await post(app, "/v1/rollouts/r1/completed", key) for _ in range(3)]
    assert [status for status, _ in answers] == [200, 200, 200]
    assert desk.taken == ["completed"]


async def test_a_callback_needs_the_key_of_its_own_rollout():
    app, desk = Callbacks(), Desk()
    app.expect("r1", desk.completed, desk.graded)
    other = app.expect("r2", desk.completed, desk.graded)
    for key in ("", "guess", other):
        assert (await post(app, "/v1/rollouts/r1/graded", key))[0] == 401
    assert desk.taken == []


async def test_a_callback_to_nowhere_or_without_sense_is_refused():
    app, desk = Callbacks(), Desk()
    key = app.expect("r1", desk.completed, desk.graded)
    assert (await post(app, "/v1/rollouts/r9/graded", key))[0] == 404
    assert (await post(app, "/v1/rollouts/r1/started", key))[0] == 404
    assert (await post(app, "/v1/rollouts/r1/graded", key, method="GET"))[0] == 404
    assert (await post(app, "/v1/rollouts/r1/graded", key, b"{"))[0] == 400
    assert (await post(app, "/v1/rollouts/r1/graded", key, b"[1]"))[0] == 400
    assert desk.taken == []


async def test_what_could_not_be_stored_is_not_acknowledged_and_may_come_again():
    app, desk = Callbacks(), Desk()
    key = app.expect("r1", desk.completed, desk.graded)
    desk.disk_is_full = True
    assert await post(app, "/v1/rollouts/r1/completed", key) == (503, {"error": "disk full"})
    desk.disk_is_full = False
    assert (await post(app, "/v1/rollouts/r1/completed", key))[0] == 200
    assert desk.taken == ["completed"]


async def test_a_late_callback_is_acknowledged_and_changes_nothing():
    app, desk = Callbacks(), Desk()
    key = app.expect("r1", desk.completed, desk.graded)
    app.forget("r1")
    status, body = await post(app, "/v1/rollouts/r1/graded", key)
    assert (status, body) == (200, {"status": "ignored: the rollout has ended"})
    assert (await post(app, "/v1/rollouts/r1/graded", "guess"))[0] == 404
    assert desk.taken == []


def test_rewards_from_a_server_that_somebody_else_wrote_are_checked_again():
    samples, problem = read_samples(
        {"samples": {"a": {"reward": 1}, "b": {"reward": 0.5, "metrics": {"x": 2}}}}
    )
    assert (problem, [s.reward for s in samples], samples[1].metrics) == ("", [1.0, 0.5], {"x": 2.0})
    for reward in (None, True, "1", float("nan"), float("inf")):
        _, problem = read_samples({"samples": {"a": {"reward": reward}}})
        assert problem == f"sample 'a' has reward {reward!r}, which is not a finite number"
    assert read_samples({"samples": {"a": {"remove_sample": True}}})[1] == "no sample was left after grading"
    assert read_samples({})[1] == "no sample was left after grading"
    assert read_samples({"samples": ["a"]})[1] == "samples must be an object of objects, got ['a']"
    assert read_samples({"samples": {"a": 1}})[1] == "samples must be an object of objects, got {'a': 1}"
