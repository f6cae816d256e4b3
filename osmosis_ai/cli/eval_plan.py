"""The plan of an eval as a table, and who is asked before money is spent."""

from __future__ import annotations

import asyncio
import ipaddress
import sys
from collections.abc import Callable
from enum import Enum
from urllib.parse import urlsplit

import click

from osmosis_ai.cli.display import minutes
from osmosis_ai.config import Config
from osmosis_ai.controller.opening import prices_of
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.budget import RunBudget
from osmosis_ai.eval.plan import PILOT, Expected, Plan
from osmosis_ai.providers.prices import as_dollars

NO_CONSENT = (
    "{to_do} rollouts of {model} cost money ([llm] input_price, output_price), and nobody can be asked here: "
    "add --yes, or say how much they may cost, e.g. --set budget.run_dollars=5"
)


class Stake(Enum):
    """What an eval costs, as far as the config says."""

    NOTHING = "nothing"  # a policy, a script, a model on this machine or network, prices of 0
    UNKNOWN = "unknown"  # a model elsewhere, without prices
    MONEY = "money"  # a model with prices


def stake_of(config: Config) -> Stake:
    prices, llm = prices_of(config), config.llm
    if prices is not None:
        return Stake.MONEY if prices.input or prices.output or prices.cached_input else Stake.NOTHING
    return Stake.UNKNOWN if llm is not None and llm.base_url and _is_remote(llm.base_url) else Stake.NOTHING


def _is_remote(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".internal", ".localhost"))


def run_budget(config: Config) -> RunBudget:
    budget = config.budget
    return RunBudget(budget.run_tokens, budget.run_dollars, budget.run_seconds)


def somebody_is_there() -> bool:
    """Whether a question would be seen, and can be answered."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def needs_answer(config: Config, to_do: int, *, yes: bool) -> bool:
    """Whether a person is asked before all `to_do` rollouts are run. Raises UsageError where that cannot be.

    Nobody is asked about what costs nothing, nor about the few rollouts from which a plan is made. Without a
    terminal, money needs --yes or a budget; a model without prices is run, for nobody said that it costs.
    """
    stake = stake_of(config)
    if yes or to_do <= PILOT or stake is Stake.NOTHING:
        return False
    if somebody_is_there():
        return True
    if stake is Stake.MONEY and not run_budget(config).limits_money:
        model = config.llm.model if config.llm is not None else ""
        raise UsageError(NO_CONSENT.format(to_do=to_do, model=model))
    return False


def plan_text(plan: Plan, config: Config) -> str:
    """The plan as a table: what is to do, and what it takes."""
    attempts = config.eval.attempts
    rows = f"{plan.rollouts // attempts:,} rows" + (f" x {attempts} attempts" if attempts > 1 else "")
    done = f", {plan.done:,} of {plan.rollouts:,} done" if plan.done else ""
    lines = [("rollouts", f"{plan.to_do:,} to do ({rows}{done}), {plan.at_once} at once")]
    if plan.tokens is not None and plan.to_do:
        lines.append(("tokens", _amount(plan.tokens, "{:,.0f}".format)))
        lines.append(("cost", _cost(plan)))
    if plan.seconds is not None and plan.to_do:
        lines.append(("time", _time(plan.seconds)))
    lines += [("budget", text) for text in _limits(plan, config)]
    if plan.tokens is not None and plan.to_do:
        lines.append(("", f"95% intervals, from {plan.done} rollouts of this run, which count as results"))
    return "\n".join(["plan", *(f"  {name:<8}  {text}".rstrip() for name, text in lines)])


def _amount(amount: Expected, shown: Callable[[float], str]) -> str:
    if amount.low is None or amount.high is None:
        return shown(amount.total)
    return f"{shown(amount.total)} [{shown(amount.low)}, {shown(amount.high)}]"


def _cost(plan: Plan) -> str:
    if plan.dollars is None:
        return "unknown: give llm.input_price and llm.output_price, 0 for what costs nothing"
    spent = "" if plan.dollars_spent is None else f", {as_dollars(plan.dollars_spent)} spent so far"
    return _amount(plan.dollars, as_dollars) + spent


def _time(seconds: Expected) -> str:
    values = [seconds.total, seconds.low, seconds.high]
    total, *interval = ["" if value is None else minutes(value) for value in values]
    return f"{total} [{interval[0]}, {interval[1]}]" if all(interval) else total


def _limits(plan: Plan, config: Config) -> list[str]:
    """The budgets, and of those of the run whether the rest is expected to keep to them."""
    expected = {"run_tokens": plan.tokens, "run_dollars": plan.dollars, "run_seconds": plan.seconds}
    spent = {"run_tokens": float(plan.tokens_spent), "run_dollars": plan.dollars_spent or 0.0}
    texts = []
    for key, value in config.budget.model_dump(exclude_none=True).items():
        amount = expected.get(key)
        short = amount is not None and amount.total + spent.get(key, 0.0) > value
        texts.append(
            f"budget.{key} = {value:.15g}" + (", less than all of it is expected to take" if short else "")
        )
    return texts


async def go_on() -> bool:
    """The question. What was typed before is no answer; Ctrl-C ends it like anything else that waits."""
    import termios

    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    click.echo("go on? [y/N] ", nl=False, err=True)
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        loop.remove_reader(sys.stdin.fileno())
        answered.set_result(sys.stdin.readline())

    loop.add_reader(sys.stdin.fileno(), read)
    try:
        return (await answered).strip().lower() in ("y", "yes")
    finally:
        loop.remove_reader(sys.stdin.fileno())
