"""Apply deltas to the bytes of a base, piece by piece, and check each tensor's checksum.

A delta comes from others, so no number in it is trusted. At any time there are only a piece of the base, the
windows of the decompressors, and a few positions in memory, whatever the frames say.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import IO, Any, Protocol, cast

import blake3
import numpy as np
import xxhash
import zstandard

from fleet_worker.checkpoint.delta_index import ChecksumFormat
from fleet_worker.checkpoint.deltas import Change, Delta, delta_mismatch
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import Encoding

_WINDOW_BYTES = 8 * 1024 * 1024
"""The largest window that every decoder must accept (RFC 8878, 3.1.1.1.2)."""
_ALL_WINDOWS_BYTES = 256 * 1024 * 1024
"""Of all frames that are read at the same time."""
_READ_BYTES = 128 * 1024
_COUNT = struct.Struct("<I")
_POSITION = np.dtype("<u4")
_POSITIONS_AT_ONCE = 64 * 1024
_XOR_BYTES = 256 * 1024


def files_at_once(deltas: Sequence[Delta], most: int) -> int:
    """Return how many files may be read at the same time, so that there is memory for the windows."""
    return max(1, min(most, _ALL_WINDOWS_BYTES // (_WINDOW_BYTES * max(1, 2 * len(deltas)))))


class Patches:
    """Applies deltas to one file, whose pieces come in order."""

    def __init__(self, deltas: Sequence[Delta]) -> None:
        """`deltas`: the oldest first."""
        self._deltas = deltas
        threads = files_at_once(deltas, 1 << 30)
        room = _ALL_WINDOWS_BYTES // max(1, 2 * len(deltas) * threads)
        self._window = min(_WINDOW_BYTES, room)
        self._running: list[_Patch] = []

    def apply(self, spec: TensorSpec, first: int, content: memoryview) -> None:
        """Change the next bytes of a tensor in place.

        Args:
            spec: The tensor.
            first: Position of the bytes in the file.
            content: The bytes, writable.

        Errors:
            Refusal: `CheckpointMalformed` for a frame that is not valid, `DeltaMismatch` if the tensor's new
                bytes have another checksum.
        """
        if first == spec.begin:
            self._running = [
                _Patch(delta, spec, delta.changes[spec.name], self._window)
                for delta in self._deltas
                if spec.name in delta.changes
            ]
        for patch in self._running:
            patch.apply(content)
        if first + len(content) == spec.end:
            for patch in self._running:
                patch.finish()
            self._running = []


class _Hash(Protocol):
    def update(self, content: memoryview, /) -> Any: ...

    def hexdigest(self) -> str: ...


class _Adler32:
    def __init__(self) -> None:
        self._value = 1

    def update(self, content: memoryview, /) -> None:
        self._value = zlib.adler32(content, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_HASHES: dict[ChecksumFormat, Callable[[], _Hash]] = {
    ChecksumFormat.XXH3: xxhash.xxh3_128,
    ChecksumFormat.BLAKE3: blake3.blake3,
    ChecksumFormat.ADLER32: _Adler32,
}


class _Patch:
    """One changed tensor of one delta."""

    def __init__(self, delta: Delta, spec: TensorSpec, change: Change, window: int) -> None:
        self._what = f"tensor {spec.name[:200]!r} of {delta.name}"
        self._checksum = change.checksum
        self._hash = _HASHES[delta.checksums]()
        size = spec.end - spec.begin
        kind = _Xor if delta.encoding is Encoding.XOR else _Overwrite
        self._coded: _Xor | _Overwrite = kind(lambda: _Frame(change, self._what, window), size)

    def apply(self, content: memoryview) -> None:
        self._coded.apply(content)
        self._hash.update(content)

    def finish(self) -> None:
        self._coded.finish()
        if (found := self._hash.hexdigest()) != self._checksum:
            raise delta_mismatch(
                f"{self._what} does not give the bytes that were published: their checksum is {found}, expected"
                f" {self._checksum}. The base or the delta has other bytes than when it was written"
            )


class _Frame:
    """The decompressed bytes of a change."""

    def __init__(self, change: Change, what: str, window: int) -> None:
        self._what = what
        decompressor = zstandard.ZstdDecompressor(max_window_size=window)
        # Across frames, so that nothing may follow the frame.
        self._stream = decompressor.stream_reader(
            cast("IO[bytes]", _Range(change)), read_size=_READ_BYTES, read_across_frames=True
        )

    def read_into(self, buffer: memoryview) -> None:
        """Fill a buffer. Errors: Refusal, if there are fewer bytes."""
        done = 0
        while done < len(buffer):
            count = self._read(buffer[done:])
            if count == 0:
                raise self.malformed("ends too early")
            done += count

    def read(self, length: int) -> bytearray:
        """Return as many bytes. Errors: Refusal, if there are fewer."""
        buffer = bytearray(length)
        self.read_into(memoryview(buffer))
        return buffer

    def skip(self, length: int) -> None:
        """Pass over some bytes."""
        buffer = memoryview(bytearray(min(length, _READ_BYTES)))
        while length > 0:
            self.read_into(buffer[:length])
            length -= len(buffer[:length])

    def check_end(self) -> None:
        """Refuse a frame with more bytes."""
        if self._read(memoryview(bytearray(1))):
            raise self.malformed("has more bytes than the tensor")

    def malformed(self, problem: str) -> Refusal:
        """Return the refusal of a frame that is not valid."""
        return Refusal(Reason.CHECKPOINT_MALFORMED, f"the difference for {self._what} {problem}")

    def _read(self, buffer: memoryview) -> int:
        try:
            return int(self._stream.readinto(buffer))
        except zstandard.ZstdError as error:
            raise self.malformed(f"cannot be decompressed: {error}") from error


class _Range:
    """The compressed bytes of a change, as a stream."""

    def __init__(self, change: Change) -> None:
        self._file, self._position, self._end = change.file, change.begin, change.end

    def read(self, size: int) -> bytes:
        content = self._file.read(self._position, min(size, self._end - self._position))
        self._position += len(content)
        return content


class _Xor:
    """The bytes of a tensor change by XOR with those of the frame."""

    def __init__(self, frame: Callable[[], _Frame], size: int) -> None:
        self._frame = frame()
        # It stays in the processor's cache.
        self._buffer = np.empty(min(size, _XOR_BYTES), np.uint8)

    def apply(self, content: memoryview) -> None:
        bytes_ = np.frombuffer(content, np.uint8)
        for begin in range(0, len(bytes_), _XOR_BYTES):
            part = bytes_[begin : begin + _XOR_BYTES]
            change = self._buffer[: len(part)]
            self._frame.read_into(change.data)
            np.bitwise_xor(part, change, out=part)

    def finish(self) -> None:
        self._frame.check_end()


class _Overwrite:
    """The frame has the positions of all changed bytes, and then these. Two streams read it, each its part."""

    def __init__(self, frame: Callable[[], _Frame], size: int) -> None:
        self._positions, self._values = frame(), frame()
        self._size, self._done, self._last = size, 0, -1
        (self._left,) = _COUNT.unpack(self._positions.read(_COUNT.size))
        if self._left > size:
            raise self._positions.malformed("changes more bytes than the tensor has")
        self._values.skip(_COUNT.size + _POSITION.itemsize * self._left)
        self._next = np.empty(0, np.int64)

    def apply(self, content: memoryview) -> None:
        bytes_ = np.frombuffer(content, np.uint8)
        begin, self._done = self._done, self._done + len(content)
        while True:
            if not self._next.size and self._left:
                self._read_positions()
            count = int(np.searchsorted(self._next, self._done))
            if count:
                values = np.frombuffer(self._values.read(count), np.uint8)
                bytes_[self._next[:count] - begin] = values
                self._next = self._next[count:]
            if self._next.size or not self._left:
                return

    def _read_positions(self) -> None:
        count = min(self._left, _POSITIONS_AT_ONCE)
        found = np.frombuffer(self._positions.read(count * _POSITION.itemsize), _POSITION)
        self._left -= count
        positions = found.astype(np.int64)
        if positions[0] <= self._last or bool((np.diff(positions) <= 0).any()):
            raise self._positions.malformed(
                "has positions that do not ascend, or one of them twice"
            )
        self._last = int(positions[-1])
        if self._last >= self._size:
            raise self._positions.malformed("has a position beyond the tensor")
        self._next = positions

    def finish(self) -> None:
        self._values.check_end()
