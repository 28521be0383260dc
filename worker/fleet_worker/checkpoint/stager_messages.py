"""The messages between a worker and its stagers, over a Unix socket with open files.

```
frame     length of the text, number of files (4 bytes each, big endian) | one byte for each batch of files | JSON
Request   → the files of a checkpoint, and what the pass must do with them
Filling   ← the memory that the pass fills, as files, with a delta's files and the lengths of the first ones
Progress  ← the store has answered since the last message
Done      ← the digests and the blocks of zeros, with the sealed bytes as files
ListObjects, ListFolders, ReadRange   → a question to a store, which FoundObjects, FoundFolders and FoundRange answer
Refused   ← the checkpoint is refused
```

Both sides parse the same headers of the same open files, so files and tensors are named by their numbers. A
name of a file or tensor need not be text that JSON can carry.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from fleet_worker.checkpoint.delta_index import ChecksumFormat
from fleet_worker.checkpoint.files import FileState
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import Encoding

_HEAD = struct.Struct(">II")
_MOST_BYTES = 256 << 20
"""Of a text. A checkpoint with a million tensors needs a third of it."""
_MOST_FILES = 8192
_BATCH = 200
"""Files in one call. The kernel takes 253."""

Number = Annotated[int, Field(ge=0)]
TensorNumbers = tuple[Number, Number]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a peer serves a version.

    Fields:
        host, port: of the peer.
        digest: of the version, or `peer_files.delta_name` of it.
        authorization: the header that lets this worker read it, with one signature for each token.
        certificate: that the peer must have, as PEM; empty for a connection without TLS.
    """

    host: str
    port: int
    digest: str
    authorization: str
    certificate: str = ""


class RequestedObject(_Message):
    """An object in a store, which the stager reads by itself."""

    uri: str
    etag: str


class RequestedPeer(_Message):
    """A file of a peer, which the stager reads by itself; see `peer_files.PeerFile`."""

    place: Place
    number: Number


class RequestedFile(_Message):
    """One file. Its descriptor comes with the message, unless a store or a peer has it.

    Fields:
        name: in hex, as the file system has it.
        casts: number of a tensor → the type to which a load casts it.
    """

    name: str
    state: FileState
    casts: dict[Number, str] = Field(default_factory=dict)
    stored: RequestedObject | None = None
    peer: RequestedPeer | None = None


class RequestedDelta(_Message):
    """A delta to apply, whose files come with the message, too.

    Fields:
        name: for messages, in hex.
    """

    name: str
    encoding: Encoding
    checksums: ChecksumFormat
    files: list[RequestedFile]


class Request(_Message):
    """Read files once. Their descriptors come with the message, and then those of the deltas' files.

    Fields:
        deltas: the oldest first.
        pair: two tensors to compare, each by the numbers of file and tensor.
        budget: largest number of bytes to keep.
        is_checked: refuse infinities and NaNs, and find blocks of zeros.
        is_shown: answer with `Filling` before the read.
        is_delta_shown: with the files of the newest delta.
    """

    kind: Literal["request"] = "request"
    files: list[RequestedFile]
    deltas: list[RequestedDelta] = Field(default_factory=list)
    pair: tuple[TensorNumbers, TensorNumbers] | None
    budget: Number
    is_checked: bool
    is_shown: bool = False
    is_delta_shown: bool = False


class ListObjects(_Message):
    """List the objects below a prefix of a store."""

    kind: Literal["list-objects"] = "list-objects"
    uri: str


class ListFolders(_Message):
    """List the names of the folders below a prefix of a store."""

    kind: Literal["list-folders"] = "list-folders"
    uri: str


class ReadRange(_Message):
    """Read a part of an object.

    Fields:
        etag / size: of the object when it was listed. Another one is refused.
        begin / end: positions in it.
    """

    kind: Literal["read-range"] = "read-range"
    uri: str
    etag: str
    size: Number
    begin: Number
    end: Number


StoreRequest = ListObjects | ListFolders | ReadRange


class FoundObject(_Message):
    """An object as it was listed. `name`: behind the prefix."""

    name: str
    size: Number
    etag: str
    modified_ns: int


class FoundObjects(_Message):
    """The objects below a prefix."""

    kind: Literal["found-objects"] = "found-objects"
    objects: list[FoundObject]


class FoundFolders(_Message):
    """The folders below a prefix, sorted."""

    kind: Literal["found-folders"] = "found-folders"
    names: list[str]


class FoundRange(_Message):
    """A part of an object, which comes with the message as a file."""

    kind: Literal["found-range"] = "found-range"


StoreAnswer = FoundObjects | FoundFolders | FoundRange


class Filling(_Message):
    """The memory that is being filled comes with the message, and then that of the lengths. Without files: none."""

    kind: Literal["filling"] = "filling"


class Progress(_Message):
    """Bytes have been read since the last message."""

    kind: Literal["progress"] = "progress"


class FoundFile(_Message):
    """The result for one file.

    Fields:
        tensors: the digest of each tensor; empty if the bytes are kept.
        zeros: number of a tensor → its blocks of zeros, as first block and the block behind the last one.
    """

    sha256: Sha256
    tensors: list[Sha256]
    zeros: dict[Number, list[tuple[Number, Number]]]


class Done(_Message):
    """All bytes were read. The kept ones come with the message, in the order of the files."""

    kind: Literal["done"] = "done"
    files: list[FoundFile]
    is_pair_equal: bool | None = None


class OfferedFile(_Message):
    """One file of an offered version, whose descriptor comes with the message. `name` as text."""

    name: str
    size: Number


class Offer(_Message):
    """To the process that serves peers: serve a version, whose files come with the message.

    Fields:
        number: names the offer.
        digest: of the version.
        authorizations: the headers that allow a peer to read it.
        growing: that many files, the first ones, are being filled. Then the lengths come as the last file.
    """

    kind: Literal["offer"] = "offer"
    number: Number
    digest: str
    authorizations: list[str]
    files: list[OfferedFile]
    growing: Number = 0


class Withdraw(_Message):
    """To the process that serves peers: end an offer, and close its files."""

    kind: Literal["withdraw"] = "withdraw"
    number: Number


class Taken(_Message):
    """From the process that serves peers: the last message has its effect."""

    kind: Literal["taken"] = "taken"


class Refused(_Message):
    """A refusal (`errors.Refusal`)."""

    kind: Literal["refused"] = "refused"
    reason: Reason
    message: str
    retry_after_seconds: float | None = None

    @classmethod
    def of(cls, refusal: Refusal) -> Self:
        """The message of a refusal."""
        return cls(
            reason=refusal.reason,
            message=refusal.message,
            retry_after_seconds=refusal.retry_after_seconds,
        )

    @property
    def refusal(self) -> Refusal:
        """The refusal of the message."""
        return Refusal(self.reason, self.message, retry_after_seconds=self.retry_after_seconds)


Message = Annotated[
    Request
    | StoreRequest
    | Filling
    | Progress
    | Done
    | StoreAnswer
    | Refused
    | Offer
    | Withdraw
    | Taken,
    Field(discriminator="kind"),
]
_MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class GoneError(Exception):
    """The other side has closed the connection, or does not keep to the messages."""


def send(to: socket.socket, message: Message, files: list[int] | None = None) -> None:
    """Send a message with open files. Errors: OSError."""
    files = files or []
    text = _MESSAGES.dump_json(message)
    to.sendall(_HEAD.pack(len(text), len(files)))
    for begin in range(0, len(files), _BATCH):
        socket.send_fds(to, [b"f"], files[begin : begin + _BATCH])
    to.sendall(text)


def receive(source: socket.socket) -> tuple[Message, list[int]]:
    """Wait for a message; return it and its files, which are the caller's.

    Errors:
        GoneError: the connection has ended, or the message is beyond the limits.
    """
    with ExitStack() as unless_received:
        try:
            length, count = _limited(*_HEAD.unpack(_exactly(source, _HEAD.size)))
            files: list[int] = []
            while len(files) < count:
                for each in _batch(source):
                    files.append(each)
                    unless_received.callback(os.close, each)
            message = _MESSAGES.validate_json(bytes(_exactly(source, length)))
            if len(files) > count or (
                files and not isinstance(message, Request | Filling | Done | FoundRange | Offer)
            ):
                raise GoneError("a message has files that it cannot have")
        except (OSError, ValidationError) as error:
            raise GoneError(str(error)) from error
        unless_received.pop_all()
    return message, files


def _limited(length: int, count: int) -> tuple[int, int]:
    if length > _MOST_BYTES or count > _MOST_FILES:
        raise GoneError("a message is too large")
    return length, count


def _batch(source: socket.socket) -> list[int]:
    byte, batch, flags, _ = socket.recv_fds(source, 1, _BATCH)
    if not byte or not batch or flags & socket.MSG_CTRUNC:
        for each in batch:
            os.close(each)
        raise GoneError("files of a message are missing")
    return batch


def _exactly(source: socket.socket, length: int) -> bytearray:
    content = bytearray(length)
    view, done = memoryview(content), 0
    while done < length:
        count = source.recv_into(view[done:])
        if count == 0:
            raise GoneError("the connection is closed")
        done += count
    return content
