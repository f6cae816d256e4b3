"""`osmosis serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osmosis_ai.cli.code import Code, code_options, read_code
from osmosis_ai.cli.display import Display
from osmosis_ai.cli.options import JSON

if TYPE_CHECKING:
    from osmosis_ai.rollout.discovery import Entrypoint

LEVELS = ["debug", "info", "warning", "error", "critical"]


@click.command(epilog="Example: osmosis serve agent.py --port 0")
@code_options
@click.option("-H", "--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("-p", "--port", type=click.IntRange(0, 65535), default=9000, show_default=True, help="0: any.")
@click.option("--api-key", envvar="OSMOSIS_API_KEY", help="What requests must bring; needed off loopback.")
@click.option("--log", "log_dir", type=click.Path(path_type=Path), help="Folder for what log_event logs.")
@click.option("--grader", help="Class to use when the entrypoint holds several graders.")
@click.option("--no-validate", is_flag=True, help="Serve it whatever `osmosis validate` would say.")
@click.option("--log-level", type=click.Choice(LEVELS), default="warning", show_default=True)
@click.option(
    "--skip-register", is_flag=True, hidden=True, help="Always so: there is nothing to register with."
)
@JSON
def serve(
    entrypoint: str | None,
    module: str | None,
    host: str,
    port: int,
    api_key: str | None,
    log_dir: Path | None,
    grader: str | None,
    no_validate: bool,
    log_level: str,
    skip_register: bool,
    as_json: bool,
) -> None:
    """Serve an agent loop or workflow over HTTP until Ctrl-C.

    No account and no network are needed. An eval or training run of this machine uses the server with
    [rollout] url = "http://127.0.0.1:9000" in its configuration. Settings of an agent loop's server come
    from the environment: OSMOSIS_ROLLOUT_CLIENT_... and OSMOSIS_ROLLOUT_SERVER_...
    """
    code = read_code(entrypoint, module)
    display = Display(as_json=as_json)
    from osmosis_ai.rollout.server.serve import listen, serve_app

    listen(host, 0, api_key).close()  # a listener that is refused is refused before anything is imported
    found = _load(code, grader, validate=not no_validate, display=display)
    app, what = _app(found, api_key, log_dir)

    def ready(url: str) -> None:
        display.data({"event": "listening", "url": url, "serves": what, "key_needed": bool(api_key)})
        display.out(f"{what} at {url}")
        display.note(
            f'  use it: [rollout] url = "{url}"   key: {"needed" if api_key else "none"}   Ctrl-C stops it'
        )

    try:
        serve_app(app, host=host, port=port, api_key=api_key, log_level=log_level, on_ready=ready)
    finally:
        display.note("stopped")


def _load(code: Code, grader: str | None, *, validate: bool, display: Display) -> Entrypoint:
    from osmosis_ai.rollout.discovery import load_entrypoint
    from osmosis_ai.rollout.validator import validate_entrypoint

    if not validate:
        return load_entrypoint(code.entrypoint, workflow=code.attribute, grader=grader)
    result, found = validate_entrypoint(code.entrypoint, workflow=code.attribute, grader=grader)
    for warning in result.warnings:
        display.note(f"warning {warning}")
    result.raise_if_invalid()
    assert found is not None
    return found


def _app(found: Entrypoint, api_key: str | None, log_dir: Path | None) -> tuple[Any, str]:
    """The ASGI app, and what it is."""
    from osmosis_ai.rollout.agent_loop_workflow import AgentLoopWorkflow
    from osmosis_ai.rollout.backends.local import LocalBackend
    from osmosis_ai.rollout.server.agent_loop_app import create_app
    from osmosis_ai.rollout.server.app import create_rollout_server

    if issubclass(found.workflow, AgentLoopWorkflow):
        loop = found.workflow.loop
        return create_app(loop, api_key=api_key, debug_dir=log_dir), f"agent loop {loop.name}"
    backend = LocalBackend(
        workflow=found.workflow,
        workflow_config=found.workflow_config,
        grader=found.grader,
        grader_config=found.grader_config,
        debug_dir=log_dir,
    )
    return create_rollout_server(backend=backend, api_key=api_key), f"workflow {backend.workflow_name}"
