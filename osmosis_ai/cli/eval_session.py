"""One `osmosis eval run`, from its opening to its report: pilot, plan, question, and the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.cli.display import Display
from osmosis_ai.cli.eval_plan import Stake, go_on, needs_answer, plan_text, run_budget, stake_of
from osmosis_ai.cli.eval_progress import EvalProgress
from osmosis_ai.cli.eval_report import say_report
from osmosis_ai.config import Config
from osmosis_ai.controller.head_start import HeadStart
from osmosis_ai.controller.opening import OpenRun, open_run, prices_of, read_rows
from osmosis_ai.controller.place import Place, is_result
from osmosis_ai.controller.storm import LEAST_BUDGET, Storm
from osmosis_ai.datasets import Dataset
from osmosis_ai.errors import UsageError
from osmosis_ai.eval.budget import Guard, Spending
from osmosis_ai.eval.plan import PILOT, make_plan, spread_evenly
from osmosis_ai.eval.run import Earlier, read_earlier, run_places, waiting
from osmosis_ai.eval.stored import column_of, counted, lineage_note
from osmosis_ai.eval.tally import EvalReport, Tallies
from osmosis_ai.store.base import RolloutFilter
from osmosis_ai.store.workspace import Workspace
from osmosis_ai.types import Outcome, Rollout, Status

if TYPE_CHECKING:  # a run that has all its results needs nothing that makes some
    from osmosis_ai.controller.rollouts import Rollouts

WATCH_SECONDS = 3.0
SLOW = (
    "the endpoint says 'too many requests' ({:,} so far): calls wait as long as it asks, and fewer are sent "
    "at once; rollout.max_concurrent lowers their number (docs/providers.md)"
)
THROTTLED = (
    "note: {:,} answers of the endpoint said 'too many requests'; the deadlines of rollouts went on "
    "meanwhile. A lower rollout.max_concurrent asks it for less at once"
)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the options say: of a run of that name that is there already, of questions, of the report."""

    fresh: bool
    accept_changes: bool
    retry: Collection[Status]
    yes: bool
    by: str | None

    def __post_init__(self) -> None:
        other = "--accept-changes" if self.accept_changes else "--retry" if self.retry else ""
        if self.fresh and other:
            raise UsageError(f"--fresh starts a new run, {other} goes on with the old one: give one of them")


async def run_eval(
    config: Config,
    workspace: Workspace,
    wishes: Wishes,
    display: Display,
    junit: Path | None = None,
    head_start: HeadStart | None = None,
) -> EvalReport:
    column = _column(config, wishes.by)
    how = {"fresh": wishes.fresh, "accept_changes": wishes.accept_changes}
    async with open_run(config, "eval", workspace, **how) as opened:
        if not opened.resumed:  # refused before anything is run; what is left of a run is known later
            needs_answer(config, len(read_rows(config)) * config.eval.attempts, yes=wishes.yes)
        display.note(f"{'resuming' if opened.resumed else 'starting'} run {opened.run_id}")
        tallies = Tallies(config.eval.attempts, config.eval.pass_threshold, prices_of(config), column)
        try:
            await _run_rollouts(opened, tallies, wishes, display, head_start)
        except asyncio.CancelledError:
            await opened.finish(interrupted=True)
            display.note("interrupted; what has a result is kept. The same command goes on.")
            raise
        except BrokenPipeError:  # whoever reads our lines has seen enough
            await opened.finish(interrupted=True)
            raise
        except Exception as error:  # whatever ended the run, also what nobody foresaw: its record says so
            await opened.fail(error)
            raise
        report = tallies.all.report()
        await opened.finish(report.stopped, interrupted=report.by_choice)
        await _say(opened, report, tallies, wishes.by, display)
        if junit is not None:
            from osmosis_ai.eval.junit import write_junit

            outcomes = counted(await opened.store.outcomes(RolloutFilter(opened.run_id)))
            write_junit(junit, opened.run_id, outcomes, config.eval.pass_threshold)
        return report


def _column(config: Config, by: str | None) -> Mapping[int, str]:
    """The metadata column to report by. Raises UsageError before anything is run."""
    return {} if by is None else column_of({row.index: row for row in read_rows(config)}, by)


async def _say(
    opened: OpenRun, report: EvalReport, tallies: Tallies, column: str | None, display: Display
) -> None:
    if opened.record.lineage and (note := await _lineage(opened)):
        display.note(f"note: {note}")
    say_report(display, opened.run_id, report, tallies.by(), column)


async def _lineage(opened: OpenRun) -> str | None:
    outcomes = counted(await opened.store.outcomes(RolloutFilter(opened.run_id)))
    return lineage_note(opened.record, [outcome.started_at for outcome in outcomes])


async def _run_rollouts(
    opened: OpenRun, tallies: Tallies, wishes: Wishes, display: Display, head_start: HeadStart | None
) -> None:
    """What has no result yet, to a result."""
    rows = read_rows(opened.config)
    if opened.resumed and not wishes.retry and (results := await _all_results(opened, rows)):
        if opened.stays():
            display.note("note: nothing was run: all results are from before the change. --fresh begins anew")
        await opened.begin()
        for outcome in results:
            tallies.add(outcome)
        return
    if head_start is not None:
        head_start.begin()
    from osmosis_ai.controller.rollouts import open_rollouts

    if len(rows) > 1:  # the report will want it; now the user's code is imported beside us
        from osmosis_ai.eval import resampling  # noqa: F401
    with display.bar("starting"):
        async with open_rollouts(opened, training=False, notify=display.note, head_start=head_start) as parts:
            earlier = await read_earlier(opened.store, opened.run_id, wishes.retry, parts.rows.indices)
            session = Session(opened, parts, earlier, tallies, display)
            try:
                await session.run(yes=wishes.yes)
            finally:
                session.close()


async def _all_results(opened: OpenRun, rows: Dataset) -> list[Outcome]:
    """Of a run that has one at each of its places; none of one that has not."""
    attempts = opened.config.eval.attempts
    earlier = await read_earlier(opened.store, opened.run_id, rows=rows.indices)
    results = earlier.among(rows.indices, attempts)
    return results if len(results) == len(rows) * attempts else []


class Session:
    """The rollouts of an eval that has been opened."""

    def __init__(
        self, opened: OpenRun, parts: Rollouts, earlier: Earlier, tallies: Tallies, display: Display
    ) -> None:
        config, dispatcher = opened.config, parts.dispatcher
        self._opened, self._parts, self._earlier = opened, parts, earlier
        self._config, self._tallies, self._display = config, tallies, display
        self._results = earlier.among(parts.rows.indices, config.eval.attempts)
        self._planned = self._said_slow = False
        for outcome in self._results:
            tallies.add(outcome)
        self._total = len(parts.rows) * config.eval.attempts
        self._to_do = self._total - len(self._results)
        self._spending = Spending(run_budget(config), prices_of(config), earlier.usage)
        self._progress = EvalProgress(
            display,
            self._to_do,
            pass_threshold=config.eval.pass_threshold,
            dollars=lambda: self._spending.dollars,
            throttled=self._throttled,
        )
        dispatcher.on_retry = self._on_retry
        dispatcher.storm = self._storm = _storm(parts, config.eval.failure_budget, self._to_do)
        self._guard = Guard(self._spending, dispatcher.stop)

    def close(self) -> None:
        self._guard.pause()

    def _throttled(self) -> int:
        return 0 if self._parts.provider is None else self._parts.provider.state().throttled

    async def run(self, *, yes: bool) -> None:
        """Everything that is to do; or a part of it, and why no more."""
        asked = needs_answer(self._config, self._to_do, yes=yes)
        self._guard.start()
        pilot = self._pilot()
        if pilot:
            await self._run(place for i, place in enumerate(self._waiting()) if i in pilot)
        self._guard.pause()  # a question takes as long as it takes
        if not await self._agreed(ask=asked):
            self._parts.dispatcher.stop("you did not want to go on")
        self._guard.start()
        await self._run(place for i, place in enumerate(self._waiting()) if i not in pilot)
        stopped = self._parts.dispatcher.stopped
        self._tallies.all.stopped = stopped
        self._tallies.all.by_choice = bool(stopped) and not self._storm.verdict
        if throttled := self._throttled():
            self._display.note(THROTTLED.format(throttled))

    def _pilot(self) -> set[int]:
        """Which of the places that wait are run first: none where nothing is at stake, or enough is known."""
        if stake_of(self._config) is Stake.NOTHING or len(self._results) >= PILOT or self._to_do <= PILOT:
            return set()
        return spread_evenly(self._to_do)

    async def _agreed(self, *, ask: bool) -> bool:
        """Show the plan, where something is at stake. False: somebody was asked, and does not want it."""
        self._planned = True
        dispatcher, spent = self._parts.dispatcher, self._spending.usage
        if dispatcher.stopped or stake_of(self._config) is Stake.NOTHING:
            return True  # there is nothing to agree to
        plan = make_plan(self._total, self._results, prices_of(self._config), spent, dispatcher.window)
        self._display.data({"event": "plan", "run_id": self._opened.run_id, **asdict(plan)})
        self._display.note(plan_text(plan, self._config))
        if not ask or not plan.to_do:
            return True
        with self._display.paused():
            return await go_on()

    def _waiting(self) -> Iterator[Place]:
        """The same places in the same order, however often they are asked for."""
        attempts = self._config.eval.attempts
        return waiting(self._opened.run_id, self._parts.rows, attempts, self._earlier)

    async def _run(self, places: Iterable[Place]) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            async with aclosing(run_places(self._parts.dispatcher, places, self._earlier)) as ended:
                async for rollout in ended:
                    self._on_result(rollout.outcome)
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        """Say once why nothing comes, and keep the live line true while nothing does."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if not self._said_slow and (throttled := self._throttled()):
                self._said_slow = True
                self._display.note(SLOW.format(throttled))
            self._progress.refresh()

    def _on_result(self, outcome: Outcome) -> None:
        """It is on disk by now; the line of data says so."""
        self._tallies.add(outcome)
        if not self._planned and is_result(outcome.status):
            self._results.append(outcome)
        self._guard.add(outcome)
        self._display.data(_rollout_line(outcome))
        self._progress.on_result(outcome)

    def _on_retry(self, rollout: Rollout) -> None:
        self._guard.add(rollout.outcome)
        self._progress.on_retry(rollout)


def _storm(parts: Rollouts, budget: int | None, to_run: int) -> Storm:
    """When the run is stopped early, for failures that are not the workflow's or the grader's."""
    return Storm(
        window=parts.dispatcher.window,
        budget=max(LEAST_BUDGET, to_run) if budget is None else budget,
        down=parts.down,
    )


def _rollout_line(outcome: Outcome) -> dict[str, Any]:
    return {
        "event": "rollout",
        "rollout_id": outcome.rollout_id,
        "row": outcome.row_index,
        "member": outcome.member,
        "status": outcome.status.value,
        "reward": outcome.reward,
        "reason": outcome.reason,
        "turns": outcome.turns,
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "tool_errors": outcome.tool_errors,
        "duration_seconds": outcome.duration_seconds,
    }
