"""Opening a run: what it needs, in order, and closed in reverse. The only place that knows all the parts.

A run is named; the same name with the same inputs goes on where it stopped (see `identity.py`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from osmosis_ai.config import NEEDS_LLM, Config, JudgeTable, PolicyTable
from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.deck import DispatchSettings
from osmosis_ai.controller.dispatch import Dispatcher
from osmosis_ai.controller.external_model import from_environment, open_external_model, open_provider
from osmosis_ai.controller.fleet import FleetProvider, recipe
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.head_start import HeadStart, source_of
from osmosis_ai.controller.identity import changes_of, refuse_changes, refuse_kind, run_identity
from osmosis_ai.controller.judging import Judging
from osmosis_ai.controller.remote import Address, check_reachable, connect
from osmosis_ai.controller.rollout_server import RolloutServer
from osmosis_ai.controller.user_server import UserCode, UserServer
from osmosis_ai.datasets import Dataset, Selection, open_dataset
from osmosis_ai.engine.base import Engine, EngineInfo, EngineSpec
from osmosis_ai.errors import OsmosisError, ProviderDownError, StoreError, UsageError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.base import InProcess, RolloutGateway
from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.fleet import Fleet
from osmosis_ai.gateway.render import TemplateRenderer
from osmosis_ai.gateway.targets import PolicyTarget, ProviderTarget, Target
from osmosis_ai.providers.base import Provider
from osmosis_ai.providers.prices import Prices
from osmosis_ai.store.base import Amendment, RolloutFilter, RunKind, RunRecord, RunState, Store
from osmosis_ai.store.lock import RunLock
from osmosis_ai.store.sqlite import SqliteStore
from osmosis_ai.store.workspace import Workspace, newest_number, numbered
from osmosis_ai.types import Rollout

Notify = Callable[[str], None]


@dataclass(slots=True)
class OpenRun:
    """A run that this process holds the lock of."""

    record: RunRecord
    folder: Path
    store: Store
    config: Config
    workspace: Workspace
    resumed: bool
    stored: bool  # a run is stored when all its inputs have been found to hold
    amended: bool = False  # it goes on with inputs that are not what they were

    @property
    def run_id(self) -> str:
        return self.record.run_id

    async def begin(self) -> None:
        """Store the run, or that it goes on. A run whose inputs do not hold leaves nothing behind."""
        if not self.stored:
            await self.store.create_run(self.record)
            self.stored = True
        elif self.resumed:
            if self.amended:
                await self.store.amend_run(self.record)
            await self.store.resume_run(self.run_id)

    async def finish(self, error: str = "", *, interrupted: bool = False) -> None:
        state: RunState = "interrupted" if interrupted else "failed" if error else "done"
        if self.stored:
            await self.store.finish_run(self.run_id, state, error)

    async def fail(self, error: Exception) -> None:
        """Store that the run has failed, and why."""
        ours = isinstance(error, OsmosisError)
        with suppress(StoreError):  # the full disk that ended the run may refuse this too
            await self.finish(str(error) if ours else f"{type(error).__name__}: {error}")


@asynccontextmanager
async def open_run(
    config: Config, kind: RunKind, workspace: Workspace, *, fresh: bool = False, accept_changes: bool = False
) -> AsyncIterator[OpenRun]:
    """Create the run that `config` names, or take it up again; holds its lock until the end.

    Raises UsageError when the run exists with another identity and `accept_changes` does not say that it goes
    on with this one, RunLockedError when another process has it.
    """
    identity = run_identity(config, kind, workspace)
    async with AsyncExitStack() as stack:
        store = SqliteStore(workspace.database)
        stack.push_async_callback(store.close)
        run_id = await run_id_of(store, config.run_name, fresh=fresh)
        folder = workspace.run_folder(run_id)
        stack.enter_context(RunLock(folder))
        known = await store.get_run(run_id)
        plain = {**config.model_dump(mode="json"), "source": str(config.source.absolute())}
        if known is None:
            record = RunRecord(run_id, kind, "running", time.time(), identity, plain)
            yield OpenRun(record, folder, store, config, workspace, resumed=False, stored=False)
            return
        refuse_kind(known, kind)
        changes = changes_of(known, identity)
        if not accept_changes:
            refuse_changes(known, changes)
        record = known if not changes else _amended(known, identity, plain, changes)
        yield OpenRun(
            record, folder, store, config, workspace, resumed=True, stored=True, amended=bool(changes)
        )


def _amended(
    known: RunRecord, identity: dict[str, Any], config: dict[str, Any], changes: dict[str, list[Any]]
) -> RunRecord:
    """The run as it goes on: what it was made with until now is in its lineage."""
    lineage = [*known.lineage, Amendment(time.time(), changes)]
    return replace(known, identity=identity, config=config, lineage=lineage)


async def run_id_of(store: Store, name: str, *, fresh: bool) -> str:
    """The newest run of that name, or with `fresh` the next one: name, name-2, name-3, ..."""
    names = await store.run_names()
    number = newest_number(name, names) or 1
    while fresh and numbered(name, number) in names:
        number += 1
    return numbered(name, number)


# --- the parts that run rollouts ---------------------------------------------------------------------


@dataclass(slots=True)
class Rollouts:
    """What runs rollouts: the user's server, the gateway, and who answers behind it."""

    dispatcher: Dispatcher
    rows: Dataset
    engine: Engine | None
    info: EngineInfo | None
    provider: Provider | None  # None: the policy answers
    judging: Judging | None  # None: graders have nobody to ask

    def down(self) -> ProviderDownError | None:
        """The endpoint that answers nothing at all: the model's or the judge's. Rollouts could only fail."""
        model = None if self.provider is None else self.provider.state().down
        return model or (None if self.judging is None else self.judging.down)


def read_rows(config: Config) -> Dataset:
    """The rows that the config selects, checked. Raises DatasetError."""
    table = config.dataset
    selection = Selection(table.limit, table.offset, table.rows, table.sample, table.seed)
    return open_dataset(config.resolve(table.path), selection)


@asynccontextmanager
async def open_rollouts(
    run: OpenRun,
    *,
    training: bool,
    notify: Notify,
    provider: Provider | None = None,
    through: Callable[[Target], Target] | None = None,
    head_start: HeadStart | None = None,
) -> AsyncIterator[Rollouts]:
    """Start engine or provider, gateway and the user's server; stop them in reverse.

    `provider` answers instead of what the config names; `through` stands before whoever answers. With one of
    them the gateway is in this process, whatever `rollout.gateway_workers` says.
    """
    config, stepped = run.config, provider is not None or through is not None
    rows = read_rows(config)
    async with AsyncExitStack() as stack:
        server = await _open_server(run, notify, head_start)
        stack.push_async_callback(server.stop)
        starting = asyncio.ensure_future(server.ensure_running())
        stack.callback(starting.cancel)
        if provider is None and config.llm is not None:
            folder, most = config.source.parent, config.rollout.max_concurrent
            provider = await open_external_model(config.llm, folder, run.store, most=most)
            stack.push_async_callback(provider.close)
        target, engine, info = await _open_target(run, stack, provider, training=training, notify=notify)
        target = target if through is None else through(target)
        await starting
        grading = await _open_grading(run, stack, server)
        judging = await _open_judging(run, stack, server)
        callbacks = Callbacks()
        own = Gateway(target, run.store, extra_routes=callbacks)
        await own.start(config.rollout.gateway_host)
        stack.push_async_callback(own.stop)
        gateway: RolloutGateway = InProcess(own)
        if config.rollout.gateway_workers > 1 and not stepped:
            gateway, provider = await _open_fleet(run, stack, own, provider)
        settings = dispatch_settings(config, training=training)
        parts = (server, gateway, callbacks, run.store, settings, grading, judging)
        dispatcher = Dispatcher(*parts, failing=lambda: "" if provider is None else provider.state().failing)
        stack.push_async_callback(dispatcher.close)
        await run.begin()
        yield Rollouts(dispatcher, rows, engine, info, provider, judging)


async def _open_server(run: OpenRun, notify: Notify, head_start: HeadStart | None) -> RolloutServer:
    """A child process with the user's code, or the server that the config names."""
    config, table = run.config, run.config.rollout
    if not table.url:
        notify(f"starting the rollout server with {table.entrypoint}")
        path = source_of(config.source.parent, table.entrypoint)
        artifacts = str((run.folder / "artifacts").absolute())
        debug_dir = str(config.resolve(table.debug_dir).absolute()) if table.debug_dir else None
        code = UserCode(
            path, table.workflow, table.grader, config.workflow, artifacts_dir=artifacts, debug_dir=debug_dir
        )
        return UserServer(code, run.folder / "rollout-server.log", _withheld(config), head_start)
    notify(f"asking the rollout server at {table.url}")
    check_reachable(table.url, table.gateway_host)
    key = "" if not table.api_key_env else from_environment("rollout.api_key_env", table.api_key_env)
    address = Address(table.url.rstrip("/"), key)
    return await connect(address, table.protocol, config.workflow, config.sampling.model_dump())


async def _open_fleet(
    run: OpenRun, stack: AsyncExitStack, own: Gateway, provider: Provider | None
) -> tuple[Fleet, Provider]:
    """The gateway processes of the run, and what stands for the providers in them.

    Callbacks that come to them reach the controller at `own`.
    """
    config, count = run.config, run.config.rollout.gateway_workers
    if provider is None:
        raise UsageError(f"rollout.gateway_workers = {count} {NEEDS_LLM}")
    log_path = run.folder / "gateway.log"
    how = recipe(config, run.workspace.database, log_path, callbacks_url=own.base_url)
    fleet = Fleet(run.store, how, count)
    stack.push_async_callback(fleet.stop)
    await fleet.start(config.rollout.gateway_host)
    return fleet, FleetProvider(provider, fleet)


async def _open_grading(run: OpenRun, stack: AsyncExitStack, server: RolloutServer) -> Grading | None:
    """A child process with the grader, for an agent loop's server that gives no rewards."""
    table = run.config.rollout
    if not table.grader_entrypoint:
        return None
    if not server.one_result:
        raise UsageError(
            "rollout.grader_entrypoint is for the server of an agent loop: the one at "
            f"{table.url} is a workflow's, and has its own grader"
        )
    path = source_of(run.config.source.parent, table.grader_entrypoint)
    code = UserCode(path, grader=table.grader, graded_sample=server.sample_id)
    grading = Grading(UserServer(code, run.folder / "grading-server.log"))
    stack.push_async_callback(grading.stop)
    await grading.start()
    return grading


async def _open_judging(run: OpenRun, stack: AsyncExitStack, server: RolloutServer) -> Judging | None:
    """The model of [judge], for the graders of the run."""
    table = run.config.rollout
    if run.config.judge is None:
        return None
    if server.one_result and not table.grader_entrypoint:
        raise UsageError(
            f"[judge] is for a grader, and the agent loop at {table.url} is rewarded where it runs: leave "
            "[judge] out, or name a grader with rollout.grader_entrypoint"
        )
    folder, most = run.config.source.parent, table.max_concurrent
    judging = open_judge(run.config.judge, folder, run.folder, most=most)
    stack.push_async_callback(judging.stop)
    await judging.start(table.gateway_host)
    return judging


def open_judge(table: JudgeTable, folder: Path, run_folder: Path, *, most: int) -> Judging:
    """The model of the [judge] of a configuration in `folder`, to be started."""
    return Judging(open_provider(table, folder, most=most, name="judge"), run_folder / "judge.jsonl")


def _withheld(config: Config) -> frozenset[str]:
    """The variables with the keys of [llm] and [judge]: calls go through gateways, so no agent needs them."""
    return frozenset(t.api_key_env for t in (config.llm, config.judge) if t and t.api_key_env)


def dispatch_settings(config: Config, *, training: bool) -> DispatchSettings:
    sampling = SamplingDefaults(
        temperature=config.sampling.temperature,
        top_p=config.sampling.top_p,
        max_tokens=config.sampling.max_tokens,
        training=training,
    )
    return DispatchSettings(
        seed=config.run.seed,
        max_concurrent=config.rollout.max_concurrent,
        agent_timeout_seconds=config.rollout.agent_timeout_seconds,
        grader_timeout_seconds=config.rollout.grader_timeout_seconds,
        retries=config.rollout.retries,
        sampling=sampling,
        budget=Budget(config.budget.rollout_tokens, config.budget.rollout_dollars, prices_of(config)),
    )


async def _open_target(
    run: OpenRun, stack: AsyncExitStack, provider: Provider | None, *, training: bool, notify: Notify
) -> tuple[Target, Engine | None, EngineInfo | None]:
    if provider is not None:
        return ProviderTarget(provider), None, None
    config = run.config
    if config.policy is None:
        raise UsageError(
            f"{config.source}: neither [llm] nor [policy] is given: say which model answers the workflow."
        )
    notify(f"loading the policy {config.policy.path}")
    engine, info = await open_engine(run, config.policy, trainable=training)
    stack.push_async_callback(engine.close)
    return PolicyTarget(engine, info, open_renderer(run, config.policy)), engine, info


def open_renderer(run: OpenRun, policy: PolicyTable) -> TemplateRenderer:
    """The chat template and tokenizer of the policy."""
    return TemplateRenderer(run.workspace.policy_folder(policy.path, run.config.source.parent))


async def open_engine(run: OpenRun, policy: PolicyTable, *, trainable: bool) -> tuple[Engine, EngineInfo]:
    """The embedded engine, with the policy's weights loaded."""
    from osmosis_ai.engine.torch import TorchEngine

    engine = TorchEngine()
    spec = EngineSpec(
        path=run.workspace.policy_folder(policy.path, run.config.source.parent),
        adapter=policy.adapter,
        lora_rank=policy.lora_rank,
        dtype=policy.dtype,
        device=policy.device,
        seed=run.config.run.seed,
        max_requests=policy.max_requests,
        deterministic=policy.deterministic,
        trainable=trainable,
    )
    return engine, await engine.open(spec)


def prices_of(config: Config) -> Prices | None:
    """What the model's tokens cost, by the config; None: it does not say."""
    llm = config.llm
    if llm is None or llm.input_price is None or llm.output_price is None:
        return None
    return Prices(llm.input_price, llm.output_price, llm.cached_input_price)


async def leftovers(run: OpenRun, *, step: int | None = None) -> list[Rollout]:
    """What an earlier life of the run left behind (of one step)."""
    if not run.resumed:
        return []
    return await run.store.rollouts(RolloutFilter(run.run_id, step=step))
