"""A stager: the process that reads the bytes of versions for a worker. `python -m fleet_worker.checkpoint.stager FD`.

It reads one checkpoint at a time and ends with its connection: a worker cancels a stage by closing it. So
it has no state that a crash could lose. It gets what processor time and disk the engine leaves, and it is
the first process that the kernel ends if the container is out of memory.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

from fleet_worker.checkpoint.deltas import Delta, delta_of
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.headers import specs_of
from fleet_worker.checkpoint.keeping import Found, OwnPass, Work
from fleet_worker.checkpoint.objects import StoredFile
from fleet_worker.checkpoint.peer_files import PeerFile
from fleet_worker.checkpoint.stager_messages import (
    Done,
    Filling,
    FoundFile,
    GoneError,
    Progress,
    Refused,
    Request,
    RequestedDelta,
    RequestedFile,
    StoreAnswer,
    StoreRequest,
    receive,
    send,
)
from fleet_worker.errors import Refusal

_NICE = 10
"""Of a processor that the engine wants, too, this leaves a tenth. With 19 a stage would take minutes there. The
kernel derives the priority of reads from disks from it.
"""
_PROGRESS_SECONDS = 0.25
_QUESTION_BYTES = 512 * 1024 * 1024
"""Memory for a question to a store, whose library reads a whole listing, or error, before it judges it."""
_PASS_BYTES = 2 * 1024 * 1024 * 1024
"""The same for a pass over objects. Kept bytes do not count: they are in memory that processes share."""


def main() -> int:
    """Serve requests until the connection ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the worker ends its stagers
    os.nice(_NICE)
    with suppress(OSError):  # some sandboxes have no such file
        Path("/proc/self/oom_score_adj").write_text("1000")
    stager = _Stager(socket.socket(fileno=int(sys.argv[1])))
    threading.Thread(target=stager.end_with_connection, daemon=True).start()
    stager.serve()
    return 0


class _Stager:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._reading: OwnPass | None = None
        self._told = 0.0

    def serve(self) -> None:
        """Answer requests, one at a time."""
        while True:
            try:
                request, files = receive(self._connection)
            except GoneError:
                return
            if isinstance(request, Request):
                self._answer(request, files)
            elif isinstance(request, StoreRequest):
                self._ask_store(request)
            else:
                raise TypeError(f"a worker sends no {request.kind}")

    def end_with_connection(self) -> None:
        """Wait for the end of the connection and end the process.

        Its memory is freed first: a thread that hangs in a read would keep the process, and the memory.
        """
        waiting = select.poll()
        waiting.register(self._connection, select.POLLRDHUP)
        waiting.poll()
        if (reading := self._reading) is not None:
            reading.release()
        os._exit(0)

    def _ask_store(self, request: StoreRequest) -> None:
        from fleet_worker.checkpoint.object_requests import answer_of  # noqa: PLC0415 - as below

        _limit_memory(_QUESTION_BYTES)
        try:
            answer, content = answer_of(request)
        except Refusal as refusal:
            self._send(Refused.of(refusal))
            return
        if content is None:
            self._send(answer)
            return
        with os.fdopen(os.memfd_create("range", os.MFD_CLOEXEC), "r+b") as file:
            file.write(content)
            file.seek(0)
            self._send(answer, [file.fileno()])

    def _answer(self, request: Request, descriptors: list[int]) -> None:
        others = [file for delta in request.deltas for file in delta.files]
        is_stored = any(file.stored for file in (*request.files, *others))
        _limit_memory(_PASS_BYTES if is_stored else None)
        try:
            found, specs = self._read(request, descriptors)
        except Refusal as refusal:
            self._send(Refused.of(refusal))
        else:
            files = [_found_file(found, name, of_file) for name, of_file in specs.items()]
            done = Done(files=files, is_pair_equal=found.is_pair_equal)
            self._send(done, [each.descriptor for each in found.held.values()])
            for each in found.held.values():
                each.close()
        finally:
            self._reading = None
            for descriptor in descriptors:
                os.close(descriptor)

    def _read(
        self, request: Request, descriptors: list[int]
    ) -> tuple[Found, dict[str, tuple[TensorSpec, ...]]]:
        files: list[OpenFile] = []
        specs: dict[str, tuple[TensorSpec, ...]] = {}
        casts: dict[str, str] = {}
        left = iter(descriptors)
        for asked in request.files:
            file = _opened(asked, left)
            of_file = specs_of(file)
            casts |= {of_file[number].name: dtype for number, dtype in asked.casts.items()}
            files.append(file)
            specs[file.name] = of_file
        deltas = [_delta(each, left) for each in request.deltas]
        pair = None
        if request.pair is not None:
            one, other = (specs[files[file].name][tensor].name for file, tensor in request.pair)
            pair = (one, other)
        self._reading = own_pass(casts if request.is_checked else None)
        work = Work(
            files=files,
            specs=specs,
            deltas=deltas,
            pair=pair,
            budget=request.budget,
            check_cancelled=self._tell_progress,
            show=self._show if request.is_shown else None,
            is_delta_shown=request.is_delta_shown,
        )
        return self._reading.run(work), specs

    def _show(self, kept: Sequence[int], lengths: int) -> None:
        self._send(Filling(), [*kept, lengths] if kept else [])

    def _tell_progress(self) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._send(Progress())

    def _send(
        self,
        message: Filling | Progress | Done | StoreAnswer | Refused,
        files: list[int] | None = None,
    ) -> None:
        with self._sending:
            send(self._connection, message, files)


def _limit_memory(more: int | None) -> None:
    """Limit the memory of this process to what it has and `more` bytes; None for no limit. Beyond that it ends."""
    with suppress(OSError, ValueError):  # some sandboxes have no such file or limit
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        pages = int(Path("/proc/self/statm").read_text().split()[5])
        limit = most if more is None else pages * resource.getpagesize() + more
        resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def _opened(asked: RequestedFile, left: Iterator[int]) -> OpenFile:
    name = os.fsdecode(bytes.fromhex(asked.name))
    if (peer := asked.peer) is not None:
        return PeerFile.of(peer.place, name, peer.number, asked.state)
    if (stored := asked.stored) is None:
        return OpenFile(name, next(left), asked.state)
    from fleet_worker.checkpoint.object_requests import fetched  # noqa: PLC0415 - 15 MB of code

    return StoredFile(name, -1, asked.state, stored.uri, stored.etag, fetched)


def _delta(asked: RequestedDelta, left: Iterator[int]) -> Delta:
    name = os.fsdecode(bytes.fromhex(asked.name))
    files = [_opened(file, left) for file in asked.files]
    return delta_of(name, asked.encoding, asked.checksums, files)


def _found_file(found: Found, name: str, specs: tuple[TensorSpec, ...]) -> FoundFile:
    content = found.content[name]
    zeros = content.zero_blocks or {}
    return FoundFile(
        sha256=content.sha256,
        tensors=[content.tensors[spec.name] for spec in specs] if content.tensors else [],
        zeros={
            number: _ranges(sorted(zeros[spec.name]))
            for number, spec in enumerate(specs)
            if spec.name in zeros
        },
    )


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    """Return ascending numbers as ranges: the first one, and the one behind the last one."""
    groups = groupby(enumerate(numbers), key=lambda each: each[1] - each[0])
    runs = ([number for _, number in group] for _, group in groups)
    return [(run[0], run[-1] + 1) for run in runs]


if __name__ == "__main__":
    sys.exit(main())
