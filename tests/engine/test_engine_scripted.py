"""What only the scripted engine does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.engine.base import EngineSpec, Sampling
from osmosis_ai.engine.scripted import ScriptedEngine
from osmosis_ai.errors import EngineError


async def opened(folder: Path, *arguments, **options) -> ScriptedEngine:
    engine = ScriptedEngine(*arguments, **options)
    await engine.open(EngineSpec(folder))
    return engine


async def test_answers_come_in_order_and_a_used_up_script_says_so(policy_folder: Path):
    engine = await opened(policy_folder, [[7, 8], [9]])
    end = (await engine.sample([1], Sampling(max_tokens=50))).token_ids[-1]
    assert (await engine.sample([1], Sampling(max_tokens=50))).token_ids == [9, end]
    with pytest.raises(EngineError, match="the script has 2 answers and this is call 3"):
        await engine.sample([1], Sampling(max_tokens=50))


async def test_a_text_is_encoded_by_the_policys_tokenizer(policy_folder: Path):
    from tokenizers import Tokenizer

    engine = await opened(policy_folder, ["The answer is 84."])
    completion = await engine.sample([1], Sampling(max_tokens=50))
    tokenizer = Tokenizer.from_file(str(policy_folder / "tokenizer.json"))
    assert tokenizer.decode(completion.token_ids) == "The answer is 84."
    assert completion.finish_reason == "stop"


async def test_an_answer_longer_than_max_tokens_is_cut(policy_folder: Path):
    engine = await opened(policy_folder, [[7, 8, 9]])
    completion = await engine.sample([1], Sampling(max_tokens=2))
    assert (completion.token_ids, completion.finish_reason) == ([7, 8], "length")


async def test_an_answer_outside_of_the_vocabulary_is_an_error(policy_folder: Path):
    engine = await opened(policy_folder, [[99999]])
    with pytest.raises(EngineError, match="token 99999 is not in the vocabulary"):
        await engine.sample([1], Sampling(max_tokens=50))


async def test_a_slow_answer_can_be_cancelled_and_the_step_does_not_wait_for_it(policy_folder: Path):
    engine = await opened(policy_folder, lambda prompt, sampling: [7] * 100, token_seconds=100)
    task = asyncio.create_task(engine.sample([1], Sampling(max_tokens=50)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(engine.load(await saved(engine, policy_folder)), 9)


async def saved(engine: ScriptedEngine, folder: Path) -> Path:
    path = folder.parent / "scripted_checkpoint"
    await engine.save(path, {})
    return path


def test_it_needs_no_torch():
    code = "import sys, osmosis_ai.engine.scripted; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
