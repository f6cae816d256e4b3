# ruff: noqa: RUF013, UP006, UP035, UP045  authors write it in every way
"""Reward functions: a signature that is checked where it is written."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from osmosis_ai import osmosis_reward, osmosis_rubric

SEEDS = Path(__file__).parents[1] / "seeds"


def test_r11_the_documents_reward_function_and_helpers_run():
    seed = runpy.run_path(str(SEEDS / "seed_003_rewards.py"))
    assert seed["compute_reward"](" 4 ", "4") == 1.0
    assert seed["compute_reward"]("4", "5", extra_info={}, data_source="x") == 0.0
    messages = [{"role": "user", "content": "4"}, {"role": "assistant", "content": "4"}]
    assert seed["compute_reward_from_messages"](messages, "4") == 1.0
    assert seed["compute_reward_from_messages"](messages, None) is None
    assert seed["compute_reward_from_messages"]([], "4") == 0.0
    assert seed["extract_answer"]("so #### 42") == "42"


@pytest.mark.parametrize("info", [dict, dict[str, Any], Dict[str, Any], Optional[dict], dict | None])
def test_r11_every_spelling_of_a_dict_is_one(info):
    def reward(solution_str, ground_truth, extra_info=None):
        return 1.0

    reward.__annotations__ = {"solution_str": str, "ground_truth": str, "extra_info": info}
    assert osmosis_reward(reward)("a", "b") == 1.0


def two(solution_str: str, ground_truth: str) -> float: ...
def untyped(solution_str, ground_truth: str, extra_info: dict = None) -> float: ...
def wrong_type(solution_str: str, ground_truth: int, extra_info: dict = None) -> float: ...
def not_a_dict(solution_str: str, ground_truth: str, extra_info: list = None) -> float: ...
def no_default(solution_str: str, ground_truth: str, extra_info: dict) -> float: ...


@pytest.mark.parametrize("function", [two, untyped, wrong_type, not_a_dict, no_default])
def test_r11_a_signature_that_does_not_hold_is_an_error_that_shows_the_right_one(function):
    with pytest.raises(TypeError, match=r"extra_info: dict = None, \*\*kwargs"):
        osmosis_reward(function)


def test_r11_other_functions_are_not_checked():
    assert osmosis_reward(lambda messages: 3)([]) == 3


@pytest.mark.parametrize("value", [1, None, "1.0"])
def test_r11_what_is_no_float_is_an_error(value):
    @osmosis_reward
    def reward(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
        return value

    with pytest.raises(TypeError, match="reward must return a float, got"):
        reward("a", "b")


async def test_r11_a_coroutine_is_checked_when_it_is_awaited_and_a_data_source_is_left_out():
    @osmosis_reward
    async def reward(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
        return 0.5 if solution_str == ground_truth else 1

    assert await reward("a", "a", data_source="x") == 0.5
    with pytest.raises(TypeError, match="must return a float"):
        await reward("a", "b")


def test_a_rubric_function_needs_its_extra_info():
    @osmosis_rubric
    def polite(solution_str: str, ground_truth: str | None, extra_info: dict, **kwargs) -> float:
        return 0.5

    assert polite("a", None, {}) == polite("a", None, extra_info={"x": 1}) == 0.5
    with pytest.raises(TypeError, match="needs extra_info"):
        polite("a", None, extra_info=None)


def has_default(solution_str: str, ground_truth: str | None = None, extra_info: dict = None) -> float: ...
def other_names(text: str, ground_truth: str | None, extra_info: dict) -> float: ...
def not_text(solution_str: str, ground_truth: dict | None, extra_info: dict) -> float: ...


@pytest.mark.parametrize("function", [has_default, other_names, not_text])
def test_a_rubric_functions_signature_is_checked(function):
    with pytest.raises(TypeError, match="@osmosis_rubric"):
        osmosis_rubric(function)
