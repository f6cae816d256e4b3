"""What runs the rollouts of a run: opened in order, closed in reverse. Only here are all the parts known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.config import NEEDS_LLM, Config, JudgeTable, PolicyTable
from osmosis_ai.controller.callbacks import Callbacks
from osmosis_ai.controller.deck import DispatchSettings
from osmosis_ai.controller.dispatch import Dispatcher
from osmosis_ai.controller.external_model import from_environment, open_external_model, open_provider
from osmosis_ai.controller.grading import Grading
from osmosis_ai.controller.head_start import HeadStart, source_of
from osmosis_ai.controller.judging import Judging
from osmosis_ai.controller.opening import OpenRun, prices_of, read_rows
from osmosis_ai.controller.rollout_server import RolloutServer
from osmosis_ai.controller.user_server import UserCode, UserServer
from osmosis_ai.datasets import Dataset
from osmosis_ai.engine.base import Engine, EngineInfo, EngineSpec
from osmosis_ai.errors import ProviderDownError, UsageError
from osmosis_ai.gateway.app import Gateway
from osmosis_ai.gateway.base import InProcess, RolloutGateway
from osmosis_ai.gateway.budget import Budget
from osmosis_ai.gateway.call import SamplingDefaults
from osmosis_ai.gateway.targets import PolicyTarget, ProviderTarget, Target
from osmosis_ai.providers.base import Provider

if TYPE_CHECKING:  # of what most runs do not have
    from osmosis_ai.gateway.fleet import Fleet
    from osmosis_ai.gateway.render import TemplateRenderer

Notify = Callable[[str], None]


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
        await asyncio.sleep(0)  # it begins now: what comes next may import for seconds
        if provider is None and config.llm is not None:
            folder, most = config.source.parent, config.rollout.max_concurrent
            provider = await open_external_model(config.llm, folder, run.store, most=most)
            stack.push_async_callback(provider.close)
        target, engine, info = await _open_target(run, stack, provider, training=training, notify=notify)
        target = target if through is None else through(target)
        callbacks = Callbacks()
        own = Gateway(target, run.store, extra_routes=callbacks)
        await own.start(config.rollout.gateway_host)
        stack.push_async_callback(own.stop)
        await starting
        grading = await _open_grading(run, stack, server)
        judging = await _open_judging(run, stack, server)
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
    from osmosis_ai.controller.remote import Address, check_reachable, connect

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
    from osmosis_ai.controller.fleet import FleetProvider, recipe
    from osmosis_ai.gateway.fleet import Fleet

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
    grading = Grading(UserServer(code, run.folder / "grading-server.log", _withheld(run.config)))
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
    from osmosis_ai.gateway.render import TemplateRenderer

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
