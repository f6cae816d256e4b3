"""A gateway in a process of its own, from outside: started, asked, and started again when it dies."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from osmosis_ai.errors import InfrastructureError
from osmosis_ai.gateway.worker import MAX_LINE_BYTES, Message

START_SECONDS = 120.0  # a busy machine takes seconds to import
STOP_SECONDS = 5.0
ANSWER_SECONDS = 60.0  # a process that has not answered its parent by then hangs, and is killed
MAX_BAD_STARTS = 5  # in a row; a process that dies so early so often is given up
GOOD_SECONDS = 0.1  # a process that has been ready for so long was started well


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the processes of a fleet are made."""

    command: Sequence[str]  # the number of the channel's file descriptor is put behind it
    parts: Message  # that `worker.OpenParts` is called with
    log_path: Path  # of what they print


@dataclass(slots=True)
class _Life:
    """One process, and the questions that it has not answered."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    started: float  # time.monotonic()
    open_questions: dict[int, asyncio.Future[Message]] = field(default_factory=dict)


class GatewayProcess:
    """One gateway of several. The socket that agents connect to is the parent's, and stays."""

    def __init__(self, name: str, listener: socket.socket, host: str, recipe: Recipe) -> None:
        self.name = name
        self.base_url = f"http://{host}:{listener.getsockname()[1]}"
        self.restarts = 0
        self.open_rollouts = 0  # kept by who admits them
        self._listener = listener
        self._recipe = recipe
        self._life: _Life | None = None
        self._alive = asyncio.Event()
        self._given_up: InfrastructureError | None = None
        self._stopping = False
        self._bad_starts = 0
        self._num_questions = 0
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process that lives; None between two."""
        return self._life.process.pid if self._life is not None else None

    async def start(self) -> None:
        """Raises InfrastructureError when it does not start."""
        await self._begin()
        self._watching = asyncio.create_task(self._watch())

    async def ask(self, question: Message) -> Message:
        """The answer; when this process dies, of the next. Raises InfrastructureError when none is left."""
        while True:
            await self._alive.wait()
            if self._given_up is not None:
                raise self._given_up
            try:
                return await asyncio.wait_for(self._ask(question), ANSWER_SECONDS)
            except ConnectionError:
                await asyncio.sleep(0.01)  # until its death is noticed
            except TimeoutError:
                self._kill()

    def check(self) -> None:
        """Raise InfrastructureError if it has been given up."""
        if self._given_up is not None:
            raise self._given_up

    async def stop(self) -> None:
        """Safe to call twice, and before `start`."""
        self._stopping = True
        life = self._life
        if life is not None:
            life.writer.close()  # the child leaves when its parent has nothing more to say
            await _end(life.process)
        if self._watching is not None:
            await self._watching
        self._give_up(InfrastructureError(f"gateway process {self.name} was stopped"))

    def _kill(self) -> None:
        """It hangs: the next one goes on."""
        if self._life is not None and self._life.process.returncode is None:
            self._life.process.kill()

    async def _ask(self, question: Message) -> Message:
        life = self._life
        if life is None:
            raise ConnectionResetError
        self._num_questions += 1
        number, answer = self._num_questions, asyncio.get_running_loop().create_future()
        life.open_questions[number] = answer
        life.writer.write(json.dumps({"id": number, **question}).encode() + b"\n")
        answered: Message = await answer
        if "error" in answered:
            raise InfrastructureError(f"gateway process {self.name}: {answered['error']}")
        return answered

    async def _begin(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await self._spawn(theirs.fileno())
            except OSError as error:  # no memory, no file descriptor, no such program
                ours.close()
                raise InfrastructureError(f"gateway process {self.name} did not start: {error}") from error
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MAX_LINE_BYTES)
        request = {"name": self.name, "listener_fd": self._listener.fileno(), "parts": self._recipe.parts}
        writer.write(json.dumps(request).encode() + b"\n")
        try:
            ready = await asyncio.wait_for(_read(reader), START_SECONDS)
        except TimeoutError:
            ready = {"error": f"it was not ready within {START_SECONDS:.0f} s"}
        if "ready" not in ready:
            writer.close()
            status = await _end(process)
            what = ready.get("error") or f"it ended with status {status}; see {self._recipe.log_path}"
            raise InfrastructureError(f"gateway process {self.name} did not start: {what}")
        if self._stopping:  # meanwhile
            writer.close()
        self._life = _Life(process, reader, writer, time.monotonic())
        self._alive.set()

    async def _spawn(self, channel_fd: int) -> asyncio.subprocess.Process:
        self._recipe.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._recipe.log_path.open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *self._recipe.command,
                str(channel_fd),
                pass_fds=(self._listener.fileno(), channel_fd),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches us alone; we then stop the child in order
            )

    async def _watch(self) -> None:
        """Hear the process out, and start the next, until we stop or give up."""
        while (life := self._life) is not None:
            while answer := await _read(life.reader):
                if (waiting := life.open_questions.pop(answer["id"], None)) and not waiting.done():
                    waiting.set_result(answer)
            await _end(life.process)
            self._alive.clear()
            self._life = None
            for waiting in life.open_questions.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError())
            life.writer.close()
            if not self._stopping:
                self.restarts += 1
                await self._begin_again(life)

    async def _begin_again(self, dead: _Life) -> None:
        lived = time.monotonic() - dead.started
        self._bad_starts = 0 if lived >= GOOD_SECONDS else self._bad_starts + 1
        what = f"it ended with status {dead.process.returncode}; see {self._recipe.log_path}"
        while self._bad_starts < MAX_BAD_STARTS and not self._stopping:
            try:
                return await self._begin()
            except InfrastructureError as error:
                self._bad_starts += 1
                what = str(error)
        if not self._stopping:
            deaths = self._bad_starts
            why = f"gateway process {self.name} died {deaths} times at its start: {what}"
            self._give_up(InfrastructureError(why))

    def _give_up(self, why: InfrastructureError) -> None:
        self._given_up = self._given_up or why
        self._listener.close()  # agents hear at once that nobody answers
        self._alive.set()


async def _end(process: asyncio.subprocess.Process) -> int:
    """The status of a process that was told to leave, or has left."""
    try:
        return await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        process.kill()
        return await process.wait()


async def _read(reader: asyncio.StreamReader) -> Message:
    """The next line; {} when the process is gone."""
    try:
        line = await reader.readline()
    except (ConnectionError, ValueError):
        return {}
    return dict(json.loads(line)) if line.endswith(b"\n") else {}
