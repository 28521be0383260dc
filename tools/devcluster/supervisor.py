"""Keeps the components of a node running, as the service manager of a real node would.

Each component starts when those it needs are ready. One that ends by itself is started again
after a second. One that was killed on request stays down until a request starts it, so that a
test decides how long an outage lasts. As pid 1 of the node, it also reaps every orphaned process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from devcluster.components import Component, HttpProbe, SocketProbe

_RESTART_SECONDS = 1.0
_PROBE_SECONDS = 0.05


@dataclass(slots=True)
class _State:
    """The state of one component."""

    component: Component
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    pid: int | None = None
    starts: int = 0
    exit_code: int | None = None


class Supervisor:
    """Runs components until it is killed with all of them."""

    def __init__(
        self, components: Sequence[Component], logs: Path, environment: Mapping[str, str]
    ) -> None:
        self._states = {component.name: _State(component) for component in components}
        self._logs = logs
        self._environment = dict(environment)

    async def run(self) -> None:
        """Start everything and keep it running; never returns."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        for state in self._states.values():
            state.wanted.set()
        await asyncio.gather(*(self._keep(state) for state in self._states.values()))

    async def kill(self, name: str) -> None:
        """SIGKILL a component; it stays down. LookupError: there is no component of this name."""
        state = self._state(name)
        state.wanted.clear()
        if state.pid is not None:
            os.kill(state.pid, signal.SIGKILL)
            await state.ended.wait()

    def start(self, name: str) -> None:
        """Start a killed component again. LookupError: there is no component of this name."""
        self._state(name).wanted.set()

    def status(self) -> list[dict[str, object]]:
        """One record a component, in order of start."""
        return [
            {
                "name": name,
                "pid": state.pid,
                "ready": state.ready.is_set(),
                "wanted": state.wanted.is_set(),
                "starts": state.starts,
                "exit_code": state.exit_code,
            }
            for name, state in self._states.items()
        ]

    def _state(self, name: str) -> _State:
        if name not in self._states:
            raise LookupError(f"there is no component {name!r}, only {', '.join(self._states)}")
        return self._states[name]

    async def _keep(self, state: _State) -> None:
        for name in state.component.after:
            await self._states[name].ready.wait()
        while True:
            await state.wanted.wait()
            self._spawn(state)
            probing = asyncio.create_task(_wait_until_ready(state))
            await state.ended.wait()
            probing.cancel()
            state.ready.clear()
            if state.component.task and state.exit_code == 0:
                state.ready.set()
                return
            if state.wanted.is_set():
                await asyncio.sleep(_RESTART_SECONDS)

    def _spawn(self, state: _State) -> None:
        state.ended.clear()
        state.starts += 1
        with (self._logs / f"{state.component.name}.log").open("ab") as log:
            process = subprocess.Popen(
                state.component.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        state.pid = process.pid
        # `_reap` waits for every child by itself: the object must not think it still runs.
        process.returncode = 0

    def _reap(self) -> None:
        by_pid = {state.pid: state for state in self._states.values() if state.pid is not None}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if state := by_pid.get(pid):
                state.pid, state.exit_code = None, os.waitstatus_to_exitcode(status)
                state.ended.set()


async def _wait_until_ready(state: _State) -> None:
    if state.component.task:
        return
    # Other programs do not report when they are ready.
    while state.component.ready is not None and not await _probe(state.component.ready):  # noqa: ASYNC110 - see above
        await asyncio.sleep(_PROBE_SECONDS)
    state.ready.set()


async def _probe(probe: SocketProbe | HttpProbe) -> bool:
    try:
        async with asyncio.timeout(2.0):
            if isinstance(probe, SocketProbe):
                _, writer = await asyncio.open_unix_connection(probe.path)
                writer.close()
                return True
            return await _answers_ok(probe.url)
    except (OSError, TimeoutError):
        return False


async def _answers_ok(url: str) -> bool:
    parts = urlsplit(url)
    context = ssl._create_unverified_context() if parts.scheme == "https" else None  # noqa: S323, SLF001 - a probe
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        writer.write(f"GET {parts.path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    finally:
        writer.close()
