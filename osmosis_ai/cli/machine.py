"""What a run needs of this machine, check by check: what was found, and how to mend what is wrong."""

from __future__ import annotations

import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from osmosis_ai.config import Config

State = Literal["ok", "warn", "fail"]
OLDEST_PYTHON = (3, 11)
SERVE_PORT = 9000  # of `osmosis serve`
LITTLE_DISK, NO_DISK = 2_000_000_000, 200_000_000  # bytes
FILES_PER_ROLLOUT, OTHER_FILES = 4, 256
NETWORK_FILE_SYSTEMS = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs"}
# what the driver of a GPU leaves behind: NVIDIA's, the one of Windows in its Linux, AMD's
DRIVERS = ("/dev/nvidia0", "/dev/dxg", "/dev/kfd")
TRAINING = ("torch", "transformers", "safetensors", "peft")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `mend` says what to do, and is empty when it is ok."""

    name: str
    state: State
    found: str
    mend: str = ""


def machine_checks(workspace: Path, config: Config | None) -> Iterator[Check]:
    """`config` says what is needed: packages and a GPU for a policy, open files for concurrency."""
    yield python()
    yield packages(config)
    yield sqlite()
    yield disk(workspace)
    yield file_system(workspace)
    yield open_files(64 if config is None else config.rollout.max_concurrent)
    yield from ports()
    yield proxy()
    yield gpu(config)
    yield clock()


def python() -> Check:
    found = f"{sys.version.split()[0]} at {sys.executable}"
    if sys.version_info < OLDEST_PYTHON:
        return Check("python", "fail", found, "install Python 3.11 or newer and make a new environment")
    if sys.maxsize < 2**32:
        return Check("python", "fail", f"{found}, 32 bit", "install a 64-bit Python")
    return Check("python", "ok", found)


def packages(config: Config | None) -> Check:
    """The extras that are there; one that the config needs and that is not there is a failure."""
    extras = {"train": TRAINING, "openai-agents": ("agents",)}
    missing = {name: [p for p in needs if find_spec(p) is None] for name, needs in extras.items()}
    try:
        found = f"osmosis-ai {version('osmosis-ai')}"
    except PackageNotFoundError:
        found = "osmosis-ai, not installed"
    found += "".join(f", {'without' if lacks else 'with'} [{name}]" for name, lacks in missing.items())
    if config is not None and config.policy is not None and missing["train"]:
        lacking = ", ".join(missing["train"])
        return Check(
            "packages", "fail", f"{found}; [policy] needs {lacking}", "pip install 'osmosis-ai[train]'"
        )
    return Check("packages", "ok", found)


def sqlite() -> Check:
    import apsw

    from osmosis_ai.store.schema import OLDEST_SQLITE

    found = apsw.sqlite_lib_version()
    if tuple(map(int, found.split("."))) < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        return Check(
            "sqlite",
            "fail",
            f"{found}; before {oldest} a database in WAL mode can be corrupted",
            "pip install --force-reinstall --only-binary apsw apsw: its wheel brings a current SQLite along",
        )
    return Check("sqlite", "ok", f"{found}, brought along by apsw {version('apsw')}")


def existing(path: Path) -> Path:
    """The folder itself, or the nearest one above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def disk(workspace: Path) -> Check:
    folder = existing(workspace)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".osmosis-doctor-"):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return Check(
            "disk", "fail", f"{folder} cannot be written: {error}", "name another place with --workspace"
        )
    found = f"{free / 1e9:.1f} GB free at {folder}"
    if free < LITTLE_DISK:
        state: State = "fail" if free < NO_DISK else "warn"
        return Check("disk", state, found, "make room, or name another place with --workspace")
    return Check("disk", "ok", found)


def file_system(workspace: Path) -> Check:
    """A write-ahead log needs shared memory between processes, which network file systems do not give."""
    kind = mounted_as(existing(workspace), Path("/proc/mounts"))
    if kind in NETWORK_FILE_SYSTEMS:
        return Check(
            "file system",
            "fail",
            f"{workspace} is on {kind}, where SQLite's write-ahead log is not safe",
            "keep the workspace on a disk of this machine: --workspace, or OSMOSIS_WORKSPACE",
        )
    return Check("file system", "ok", kind or "unknown")


def mounted_as(folder: Path, table: Path) -> str | None:
    """The kind of file system below `folder`, from a table like /proc/mounts; None where there is none."""
    if not table.is_file():
        return None
    mounts = [line.split()[1:3] for line in table.read_text(encoding="utf-8", errors="replace").splitlines()]
    above = {str(path) for path in (folder.resolve(), *folder.resolve().parents)}
    return max(((place, kind) for place, kind in mounts if place in above), default=("", None))[1]


def open_files(max_concurrent: int) -> Check:
    try:
        import resource
    except ImportError:  # not on Windows
        return Check("open files", "ok", "no limit is known here")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = FILES_PER_ROLLOUT * max_concurrent + OTHER_FILES
    found = "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard:,}"
    if hard != resource.RLIM_INFINITY and hard < needed:
        return Check(
            "open files",
            "warn",
            f"{found}; {max_concurrent} rollouts at once need about {needed:,}",
            f"raise the hard limit (ulimit -Hn {needed}), or lower rollout.max_concurrent",
        )
    return Check("open files", "ok", f"{found}; {max_concurrent} rollouts at once need about {needed:,}")


def ports() -> Iterator[Check]:
    """The gateway takes any free port of loopback; `osmosis serve` takes 9000 unless told otherwise."""
    if error := refused(0):
        yield Check("ports", "fail", f"127.0.0.1: {error}", "allow listening on loopback (sandbox, firewall)")
    elif error := refused(SERVE_PORT):
        yield Check(
            "ports",
            "warn",
            f"127.0.0.1 can be listened on, its port {SERVE_PORT} cannot: {error}",
            "matters to `osmosis serve` only: give it another port with --port",
        )
    else:
        yield Check("ports", "ok", f"127.0.0.1 can be listened on, port {SERVE_PORT} of `osmosis serve` too")


def refused(port: int) -> OSError | None:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return None
    except OSError as error:
        return error


def proxy() -> Check:
    """Agents call the gateway on loopback; a proxy that is asked for it answers with an error."""
    from urllib.request import getproxies, proxy_bypass

    if "http" not in getproxies() or proxy_bypass("127.0.0.1"):
        return Check("proxy", "ok", "calls to 127.0.0.1 go there directly")
    return Check(
        "proxy",
        "warn",
        "HTTP_PROXY is set, and NO_PROXY does not leave out 127.0.0.1: agents may not reach the gateway",
        "export NO_PROXY=127.0.0.1,localhost",
    )


def gpu(config: Config | None) -> Check:
    """Torch takes seconds to import: where no driver is, it is not asked. An eval needs neither."""
    has_driver = any(Path(path).exists() for path in DRIVERS) or shutil.which("nvidia-smi") is not None
    if find_spec("torch") is None:
        return Check(
            "gpu",
            "ok",
            f"{'there is one' if has_driver else 'none seen'}; torch is not installed, evals need none",
        )
    seen = seen_by_torch() if has_driver or sys.platform == "darwin" else ""
    if seen and seen != "mps":
        return Check("gpu", "ok", f"{seen}, torch {version('torch')}")
    if has_driver:
        return Check(
            "gpu",
            "warn",
            f"there is one, and torch {version('torch')} does not see it",
            "install a torch for this driver's CUDA (nvidia-smi names it); look at CUDA_VISIBLE_DEVICES",
        )
    device = seen or "none: policies run on the CPU"
    wanted = config.policy.device if config is not None and config.policy is not None else "auto"
    if wanted.startswith("cuda"):
        return Check("gpu", "fail", f"{device}; policy.device = {wanted!r}", 'set policy.device = "auto"')
    return Check("gpu", "ok", f"{device}, torch {version('torch')}")


def seen_by_torch() -> str:
    """ "NVIDIA H200, NVIDIA H200", or "mps"; empty where there is none."""
    import torch

    if torch.cuda.is_available():
        return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return "mps" if torch.backends.mps.is_available() else ""


def clock() -> Check:
    """A clock that is behind the files of this installation is wrong: certificates will not hold."""
    now, installed = time.time(), Path(__file__).stat().st_mtime
    found = time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
    if now < installed - 86_400:
        return Check(
            "clock",
            "warn",
            f"{found}, which is before Osmosis was installed",
            "set the clock: keys and certificates of endpoints are checked against it",
        )
    return Check("clock", "ok", found)


def keys(config: Config, environment: Mapping[str, str]) -> Iterator[Check]:
    """The variables that the config names; their values are never shown."""
    named = {"rollout.api_key_env": config.rollout.api_key_env}
    if config.llm is not None:
        named["llm.api_key_env"] = config.llm.api_key_env
    for key, variable in named.items():
        if not variable:
            continue
        value = environment.get(variable, "")
        if not value:
            yield Check("keys", "fail", f"{key} = {variable!r} is not set", f"export {variable}=...")
        elif value != value.strip() or not value.isascii():
            yield Check(
                "keys",
                "warn",
                f"{key} = {variable!r} has blanks around it or letters that no key has",
                f"export {variable} again, without quotes and line ends inside",
            )
        else:
            yield Check("keys", "ok", f"{key} = {variable!r} is set")
    if not any(named.values()):
        yield Check("keys", "ok", "the config needs none")


def endpoints(config: Config) -> Iterator[Check]:
    """Whether somebody listens at the config's URLs. Nothing is sent."""
    from urllib.parse import urlsplit

    urls = {"rollout.url": config.rollout.url}
    if config.llm is not None:
        urls["llm.base_url"] = config.llm.base_url
    for key, url in urls.items():
        if not url:
            continue
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname or "", port), timeout=3).close()
            yield Check("endpoint", "ok", f"{key}: {parts.hostname}:{port} is there")
        except OSError as error:
            yield Check(
                "endpoint",
                "fail",
                f"{key} = {url!r}: {parts.hostname}:{port} cannot be reached: {error}",
                "start the server, or correct the URL",
            )
