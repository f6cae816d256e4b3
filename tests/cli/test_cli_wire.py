"""`osmosis runs wire`: calls as they came."""

import json

import pytest

from osmosis_ai.store.base import Native
from osmosis_ai.store.sqlite import SqliteStore

SENT = b'{"messages": [ {"role":"user","content":"caf\xc3\xa9"} ]}'


@pytest.fixture
def stored(bench, monkeypatch):
    """A run whose first call of each rollout has its bytes."""
    plain = SqliteStore.append_turn

    async def with_bytes(self, turn, call=None, native=None):
        native = Native("chat", SENT, b'{"ok":1}') if turn.ordinal == 0 else None
        await plain(self, turn, call, native)

    monkeypatch.setattr(SqliteStore, "append_turn", with_bytes)
    bench.store("a", {0: [1.0]})
    return bench


def test_calls_are_listed_and_each_comes_out_byte_for_byte(stored):
    done = stored.run("runs", "wire", "a.r0.m0.a0")
    assert done.out == "turn 0  chat  51 bytes sent, answered with 8 bytes\n"
    assert json.loads(stored.run("runs", "wire", "a.r0.m0.a0", "--json").out)["sent"] == SENT.decode()
    assert stored.run("runs", "wire", "a.r0.m0.a0", "--turn", "0").out == SENT.decode()
    assert stored.run("runs", "wire", "a.r0.m0.a0", "--turn", "0", "--answer").out == '{"ok":1}'


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["b"], "there are no calls of a rollout 'b'; osmosis runs show RUN --json has the ids"),
        (["a.r0.m0.a0", "--turn", "1"], "there are no bytes of turn 1; of these there are: [0]"),
        (["a.r0.m0.a0", "--answer"], "--answer is of one call: name it with --turn N"),
    ],
)
def test_what_is_not_there_is_said(stored, arguments, message):
    done = stored.run("runs", "wire", *arguments)
    assert (done.code, done.err) == (2, f"error: {message}\n")
