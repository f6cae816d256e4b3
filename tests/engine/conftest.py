"""A small policy with sharp random weights: what it says is near to certain in places, as after training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from osmosis_ai.engine.policy import new_policy

TEXTS = ["What is 12 times 7?", "The answer is 84.", "Add 5 to 31, please."]


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "small"
    return new_policy(
        folder, texts=TEXTS, hidden_size=32, layers=2, vocab_size=300, max_context=256, init_std=0.2
    )


@pytest.fixture(scope="session")
def endless_folder(policy_folder: Path) -> Path:
    """The same policy without an end token: each completion takes all of its max_tokens."""
    folder = policy_folder.with_name("endless")
    shutil.copytree(policy_folder, folder)
    for name in ("config.json", "generation_config.json"):
        document = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**document, "eos_token_id": None}))
    return folder
