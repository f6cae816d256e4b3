from pathlib import Path

import pytest
from store_nouns import RUN, rollout

from osmosis_ai.store.sqlite import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "osmosis.db"


@pytest.fixture
async def store(path: Path):
    """A store with one run and one running rollout, r1."""
    store = SqliteStore(path)
    await store.create_run(RUN)
    await store.start_rollout(rollout())
    yield store
    await store.close()
