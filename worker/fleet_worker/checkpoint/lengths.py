"""How many bytes of each file are in memory so far, for other processes to read while the files are filled."""

from __future__ import annotations

import os
import struct

_LENGTH = struct.Struct("@Q")


class Lengths:
    """One number of bytes for each file, in memory that several processes have open. One of them writes."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor`: of the numbers; it becomes this object's."""
        self.descriptor = descriptor

    @classmethod
    def of(cls, count: int) -> Lengths:
        """Return as many numbers, all 0."""
        descriptor = os.memfd_create("rlfleet-lengths", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, count * _LENGTH.size)
        return cls(descriptor)

    def note(self, number: int, length: int) -> None:
        """Say how many bytes one file has now."""
        os.pwrite(self.descriptor, _LENGTH.pack(length), number * _LENGTH.size)

    def __getitem__(self, number: int) -> int:
        """How many bytes one file has now."""
        (length,) = _LENGTH.unpack(os.pread(self.descriptor, _LENGTH.size, number * _LENGTH.size))
        return int(length)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)
