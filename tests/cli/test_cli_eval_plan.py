"""Who is asked before an eval spends money, and what the plan says."""

from pathlib import Path

import pytest

from osmosis_ai.cli.eval_plan import Stake, needs_answer, plan_text, stake_of
from osmosis_ai.config import Config, config_of
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.plan import Expected, Plan

PRICES = {"input_price": 1.0, "output_price": 2.0}
FREE = {"input_price": 0.0, "output_price": 0.0}
ELSEWHERE = "https://api.example.com/v1"


def config(base_url: str = ELSEWHERE, *, prices: dict = {}, budget: dict = {}, attempts: int = 1) -> Config:
    tables = {
        "rollout": {"entrypoint": "agent.py"},
        "dataset": {"path": "rows.jsonl"},
        "llm": {"model": "gpt-x", "base_url": base_url, **prices},
        "budget": budget,
        "eval": {"attempts": attempts},
    }
    return config_of(tables, Path("eval.toml"))


@pytest.mark.parametrize(
    ("base_url", "prices", "stake"),
    [
        (ELSEWHERE, PRICES, Stake.MONEY),
        (ELSEWHERE, FREE, Stake.NOTHING),
        (ELSEWHERE, {}, Stake.UNKNOWN),
        ("http://8.8.8.8/v1", {}, Stake.UNKNOWN),
        ("http://localhost:8000/v1", PRICES, Stake.MONEY),
        ("http://localhost:8000/v1", {}, Stake.NOTHING),
        ("http://127.0.0.1:8000/v1", {}, Stake.NOTHING),
        ("http://192.168.1.7:8000/v1", {}, Stake.NOTHING),
        ("http://[::1]:8000/v1", {}, Stake.NOTHING),
        ("http://vllm:8000/v1", {}, Stake.NOTHING),
        ("http://gpu.local:8000/v1", {}, Stake.NOTHING),
    ],
)
def test_what_is_at_stake_is_said_by_prices_or_else_by_where_the_model_is(base_url, prices, stake):
    assert stake_of(config(base_url, prices=prices)) is stake


@pytest.mark.parametrize(
    ("prices", "to_do", "yes", "terminal", "asked"),
    [
        (PRICES, 9, False, True, True),
        (PRICES, 8, False, True, False),  # too few to make a plan from
        (PRICES, 9, True, True, False),
        (PRICES, 9, True, False, False),
        (FREE, 9, False, True, False),
        ({}, 9, False, True, True),
        ({}, 9, False, False, False),  # nobody said that it costs
    ],
)
def test_a_person_is_asked_where_there_is_one(monkeypatch, prices, to_do, yes, terminal, asked):
    monkeypatch.setattr("osmosis_ai.cli.eval_plan.somebody_is_there", lambda: terminal)
    assert needs_answer(config(prices=prices), to_do, yes=yes) is asked


def test_without_a_person_money_needs_a_yes_or_a_budget(monkeypatch):
    monkeypatch.setattr("osmosis_ai.cli.eval_plan.somebody_is_there", lambda: False)
    with pytest.raises(UsageError, match="9 rollouts of gpt-x cost money"):
        needs_answer(config(prices=PRICES, budget={"run_seconds": 60.0}), 9, yes=False)
    for budget in ({"run_tokens": 1000}, {"run_dollars": 0.5}):
        assert needs_answer(config(prices=PRICES, budget=budget), 9, yes=False) is False


def test_the_plan_is_a_table_with_intervals_and_says_when_a_budget_will_not_do():
    plan = Plan(
        rollouts=1000, done=12, pilot=12, at_once=64,
        tokens=Expected(988_000, 900_000, 1_076_000), dollars=Expected(3.2, 2.8, 3.6),
        seconds=Expected(125, 90, 160), dollars_spent=0.04, tokens_spent=12_000,
    )  # fmt: skip
    shown = plan_text(plan, config(prices=PRICES, budget={"run_dollars": 3.0}, attempts=2))
    assert shown.splitlines() == [
        "plan",
        "  rollouts  988 to do (500 rows x 2 attempts, 12 of 1,000 done), 64 at once",
        "  tokens    988,000 [900,000, 1,076,000]",
        "  cost      $3.20 [$2.80, $3.60], $0.04 spent so far",
        "  time      2:05 [1:30, 2:40]",
        "  budget    budget.run_dollars = 3, less than all of it is expected to take",
        "            95% intervals, from 12 rollouts of this run, which count as results",
    ]


def test_a_plan_of_small_money_has_digits_enough():
    plan = Plan(
        rollouts=20, done=8, pilot=8, at_once=2, tokens=Expected(1200, 1100, 1300),
        dollars=Expected(0.0123, 0.00981, 0.0149), seconds=None, dollars_spent=0.0004, tokens_spent=800,
    )  # fmt: skip
    shown = plan_text(plan, config(prices=PRICES))
    assert "  cost      $0.0123 [$0.00981, $0.0149], $0.0004 spent so far" in shown.splitlines()


def test_tokens_that_are_spent_already_count_against_the_budget_of_the_plan():
    plan = Plan(
        rollouts=20, done=10, pilot=10, at_once=2, tokens=Expected(1_200_000, 1_100_000, 1_300_000),
        dollars=None, seconds=None, dollars_spent=None, tokens_spent=1_200_000,
    )  # fmt: skip
    shown = plan_text(plan, config(budget={"run_tokens": 2_000_000}))
    assert "budget.run_tokens = 2000000, less than all of it is expected to take" in shown
    shown = plan_text(plan, config(budget={"run_tokens": 3_000_000}))
    assert shown.splitlines()[4] == "  budget    budget.run_tokens = 3000000"


def test_a_plan_without_prices_says_what_is_missing():
    nothing = Expected(0.0, None, None)
    plan = Plan(
        10, 1, 1, tokens=nothing, dollars=None, seconds=nothing, dollars_spent=None, tokens_spent=0, at_once=4
    )
    assert "  cost      unknown: give llm.input_price and llm.output_price" in plan_text(plan, config())
