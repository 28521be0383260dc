"""The stagers of a worker: processes that read the bytes of versions (`stager`), and how they end.

A pass over a checkpoint runs Python for each piece of bytes. In a thread of the server it would wait for the
interpreter's lock each time, and with hundreds of streams a stage would last as long as these do. So the
server only waits for the answer, and takes over the sealed memory.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.keeping import Show
from fleet_worker.checkpoint.stager_messages import (
    Filling,
    GoneError,
    Message,
    Progress,
    Request,
    StoreRequest,
    receive,
    send,
)
from fleet_worker.protocol import ENV_STORE_ENDPOINT, ENV_STORE_KEYS

_LOG = logging.getLogger(__name__)
_MODULE = "fleet_worker.checkpoint.stager"
_ENVIRONMENT = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "TMPDIR",
    # Where the keys of object stores are, and the identity of the pod: names of files and roles.
    ENV_STORE_KEYS,
    ENV_STORE_ENDPOINT,
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_AUTHORITY_HOST",
    "AZURE_CLIENT_ID",
    "AZURE_FEDERATED_TOKEN_FILE",
    "AZURE_TENANT_ID",
)
"""The variables that Python and stores need. Others may be secrets, and a stager parses files of others."""
STORE_THREADS = 6
"""Of the library of stores. By itself it starts one for each processor: with 256 of them, their stacks leave no memory
for a question (`stager`).
"""
_LEAVE_SECONDS = 1.0
"""Time for a stager to end by itself; then it is killed."""
_FREE_SECONDS = 10.0
"""How often to look whether the kernel still frees the memory of a killed stager: it takes 0.2 s per GB."""


def process_environment() -> dict[str, str]:
    """Return the variables of a process that handles the bytes of versions."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # numpy's library for linear algebra, which these processes do not use, would start threads.
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return environment | threads | {"TOKIO_WORKER_THREADS": str(STORE_THREADS)}


class DiedError(Exception):
    """A stager has ended, and this worker has not ended it. The text follows its name in a sentence."""

    def __init__(self, message: str, *, is_out_of_memory: bool = False) -> None:
        super().__init__(message)
        self.is_out_of_memory = is_out_of_memory


class Stagers:
    """The stagers of a worker. One is kept ready, since a start takes a quarter of a second."""

    def __init__(self) -> None:
        self._ready: list[Stager] = []
        self._lock = threading.Lock()

    def take(self) -> Stager:
        """Return a stager that runs and is idle. Errors: OSError, if no process can be started."""
        with self._lock:
            while self._ready:
                stager = self._ready.pop()
                if stager.is_running:
                    return stager
                stager.end()
        return Stager()

    def give_back(self, stager: Stager) -> None:
        """Keep an idle stager ready, or end it if there is another one."""
        with self._lock:
            others, self._ready = self._ready, [stager]
        for other in others:
            other.end()

    def keep_ready(self) -> None:
        """Start a stager unless one is ready: at the start of a worker, and after one has ended."""
        with self._lock:
            if any(stager.is_running for stager in self._ready):
                return
        try:
            self.give_back(Stager())
        except OSError as error:
            _LOG.warning("no stager can be started now: %s", error.strerror)

    def close(self) -> None:
        """End the stagers that are ready."""
        with self._lock:
            ready, self._ready = self._ready, []
        for stager in ready:
            stager.end()


class Stager:
    """One process, and the connection to it."""

    def __init__(self) -> None:
        """Start it. Errors: OSError."""
        self._connection, theirs = socket.socketpair()
        self._asking = threading.Lock()
        self._kills = memory.oom_kills()
        command = [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno())]
        with theirs, ExitStack() as unless_started:
            unless_started.enter_context(self._connection)
            # A program of its own: a fork of a process with threads may hang.
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                env=process_environment(),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            unless_started.pop_all()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def ask(
        self,
        request: Request | StoreRequest,
        files: list[int],
        progress: Callable[[], None],
        show: Show | None = None,
    ) -> tuple[Message, list[int]]:
        """Send a request and wait for the answer to it. Blocks, without the interpreter's lock.

        `show` gets the memory that is being filled.

        Errors:
            GoneError: the stager has ended.
        """
        with self._asking:
            try:
                send(self._connection, request, files)
            except OSError as error:
                raise GoneError(str(error)) from error
            while True:
                answer, received = receive(self._connection)
                if not isinstance(answer, Filling | Progress):
                    return answer, received
                try:
                    if isinstance(answer, Filling) and show is not None:
                        show(received[:-1], received[-1] if received else -1)
                finally:
                    for each in received:
                        os.close(each)
                progress()

    def end(self) -> None:
        """End the process and free its memory. Safe to call again, and from any thread."""
        with suppress(OSError):  # it has ended by itself
            self._connection.shutdown(socket.SHUT_RDWR)
        with self._asking:  # what waits for an answer has seen the end
            self._connection.close()
        if self._has_ended(_LEAVE_SECONDS):
            return
        self._process.kill()
        while not self._has_ended(_FREE_SECONDS):
            if _hangs(self.pid):
                _LOG.warning("the stager with process id %d hangs in a read of its store", self.pid)
                return

    def why_it_ended(self) -> DiedError:
        """Return how a stager has ended that this worker did not end, and what to do."""
        self.end()
        code = self._process.returncode
        if code == -signal.SIGKILL and memory.oom_kills() > self._kills:
            return DiedError(
                "was killed because the container is out of memory; raise the memory limit of the pod, or"
                " lower --staging-memory-bytes",
                is_out_of_memory=True,
            )
        if code == -signal.SIGABRT:  # as libraries end without memory
            return DiedError(
                "took more memory than the listing or an error of a store needs, and was ended; check that the endpoint"
                " is one of an object store"
            )
        if code is not None and code < 0:
            return DiedError(f"was killed by {signal.Signals(-code).name}")
        return DiedError(f"has ended with exit code {code}; the worker's log says more")

    def _has_ended(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True


def _hangs(pid: int) -> bool:
    """Return whether a thread of a process waits where no signal ends it: the state `D` of proc(5)."""
    with suppress(OSError):  # it has ended
        for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
            if stat.read_text().rpartition(") ")[2].startswith("D"):
                return True
    return False
