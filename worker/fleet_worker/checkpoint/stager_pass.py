"""A pass over the bytes of a checkpoint in a stager: the request, the answer, and what if the stager dies."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence

from fleet_worker.checkpoint.blocks import block_bytes
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.keeping import Found, Work
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.objects import StoredFile
from fleet_worker.checkpoint.peer_files import PeerFile
from fleet_worker.checkpoint.reading import FileContent
from fleet_worker.checkpoint.stager_messages import (
    Done,
    FoundFile,
    GoneError,
    Message,
    Refused,
    Request,
    RequestedDelta,
    RequestedFile,
    RequestedObject,
    RequestedPeer,
)
from fleet_worker.checkpoint.stagers import DiedError, Stager, Stagers
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_LOG = logging.getLogger(__name__)
_RETRY_SECONDS = 10.0


class StagerPass:
    """A pass in a stager; see `keeping.Pass`."""

    def __init__(self, stagers: Stagers, casts: Mapping[str, str] | None) -> None:
        """`casts`: see `keeping.Passes`."""
        self._stagers = stagers
        self._casts = casts
        self._stager: Stager | None = None
        self._released = False

    def run(self, work: Work) -> Found:
        """See `Pass.run`. A stager that dies is replaced once."""
        request = _request(work, self._casts)
        try:
            return self._run(work, request)
        except DiedError as died:
            if died.is_out_of_memory:
                raise _unread(died) from died
        try:
            return self._run(work, request)
        except DiedError as died:
            raise _unread(died) from died

    def release(self) -> None:
        """End the stager that reads, which frees its memory."""
        self._released = True
        if (stager := self._stager) is not None:
            stager.end()
            self._stagers.keep_ready()

    def _run(self, work: Work, request: Request) -> Found:
        others = [file for delta in work.deltas for file in delta.files]
        descriptors = [file.descriptor for file in (*work.files, *others) if not file.is_stored]
        try:
            stager = self._stager = self._stagers.take()
        except OSError as error:
            raise DiedError(f"cannot be started: {error.strerror}") from error
        if self._released:  # before there was a stager to end
            stager.end()
        try:
            answer, received = stager.ask(request, descriptors, work.check_cancelled, work.show)
            found = _result(answer, received, work, request)
        except GoneError as gone:
            self._stager = None
            if self._released:
                raise Refusal(Reason.SUPERSEDED, "the stage was cancelled") from gone
            died = stager.why_it_ended()
            _LOG.warning("the stager with process id %d %s", stager.pid, died)
            self._stagers.keep_ready()
            raise died from gone
        except BaseException:
            self.release()
            raise
        self._stager = None
        self._stagers.give_back(stager)
        if isinstance(found, Refusal):
            raise found
        return found


def _unread(died: DiedError) -> Refusal:
    return Refusal(
        Reason.SOURCE_UNREADABLE,
        f"the stager, the process that reads versions, {died}",
        retry_after_seconds=_RETRY_SECONDS,
    )


def _request(work: Work, casts: Mapping[str, str] | None) -> Request:
    files, specs, pair = work.files, work.specs, work.pair
    asked = [
        _requested(
            file,
            {n: casts[spec.name] for n, spec in enumerate(specs[file.name]) if spec.name in casts}
            if casts
            else {},
        )
        for file in files
    ]
    places = {
        spec.name: (file, tensor)
        for file, each in enumerate(files)
        for tensor, spec in enumerate(specs[each.name])
        if pair is not None and spec.name in pair
    }
    return Request(
        files=asked,
        deltas=[
            RequestedDelta(
                name=os.fsencode(delta.name).hex(),
                encoding=delta.encoding,
                checksums=delta.checksums,
                files=[_requested(file, {}) for file in delta.files],
            )
            for delta in work.deltas
        ],
        pair=None if pair is None else (places[pair[0]], places[pair[1]]),
        budget=work.budget,
        is_checked=casts is not None,
        is_shown=work.show is not None,
        is_delta_shown=work.is_delta_shown,
    )


def _requested(file: OpenFile, casts: dict[int, str]) -> RequestedFile:
    return RequestedFile(
        name=os.fsencode(file.name).hex(),
        state=file.state,
        casts=casts,
        stored=_stored(file),
        peer=RequestedPeer(place=file.place, number=file.number)
        if isinstance(file, PeerFile)
        else None,
    )


def _stored(file: OpenFile) -> RequestedObject | None:
    return RequestedObject(uri=file.uri, etag=file.etag) if isinstance(file, StoredFile) else None


def _result(answer: Message, received: list[int], work: Work, request: Request) -> Found | Refusal:
    """Return what an answer says. The sealed bytes belong to the result.

    Errors:
        GoneError: the answer does not fit the files, as if another had sent it.
    """
    if isinstance(answer, Refused):
        return answer.refusal
    files, specs = work.files, work.specs
    left, held = deque(received), dict[str, MemoryFile]()
    try:
        found = answer.files if isinstance(answer, Done) else []
        is_pair_equal = _comparison(answer, request)
        content = {
            file.name: _content(each, specs[file.name], is_checked=request.is_checked)
            for file, each in zip(files, found, strict=True)
        }
        for file, _ in list(zip(files if received else (), received, strict=True)):
            held[file.name] = MemoryFile.received(file.name, file.state.size, left.popleft())
    except (ValueError, IndexError) as error:
        for each in held.values():
            each.close()
        for descriptor in left:
            os.close(descriptor)
        raise GoneError("its answer does not fit its request") from error
    return Found(content, held, is_pair_equal)


def _comparison(answer: Message, request: Request) -> bool | None:
    is_pair_equal = answer.is_pair_equal if isinstance(answer, Done) else None
    if (is_pair_equal is None) != (request.pair is None):
        raise ValueError("two tensors were not compared")
    return is_pair_equal


def _content(found: FoundFile, specs: Sequence[TensorSpec], *, is_checked: bool) -> FileContent:
    tensors = {}
    if found.tensors:
        tensors = {spec.name: sha for spec, sha in zip(specs, found.tensors, strict=True)}
    zeros = {}
    for number, ranges in found.zeros.items():
        spec = specs[number]
        count = -(-(spec.end - spec.begin) // block_bytes(spec))
        if any(end > count for _, end in ranges):
            raise ValueError("a tensor has fewer blocks")
        zeros[spec.name] = frozenset(n for begin, end in ranges for n in range(begin, end))
    return FileContent(found.sha256, tensors, zeros if is_checked else None)
