"""The SHA-256 digest of a file, computed while another thread reads the file."""

from __future__ import annotations

import hashlib
import queue
import threading

_BUFFERS = 4
"""Buffers between the reader of one file and its digest."""


class Digest:
    """SHA-256 of one file, computed in parallel with its reader."""

    def __init__(self, length: int, *, ahead: bool) -> None:
        """Prepare the buffers.

        Args:
            length: Length of a buffer in bytes.
            ahead: Whether to digest in a second thread. It is not worth it for small files.
        """
        self._sha = hashlib.sha256()
        self._free = queue.SimpleQueue[memoryview]()
        self._full = queue.SimpleQueue[tuple[memoryview, memoryview] | None]()
        self._buffer = memoryview(bytearray(length))
        self._thread: threading.Thread | None = None
        self._free.put(self._buffer)
        if ahead:
            for _ in range(_BUFFERS - 1):
                self._free.put(memoryview(bytearray(length)))
            self._thread = threading.Thread(target=self._run, name="rlfleet-digest", daemon=True)
            self._thread.start()

    def next_buffer(self) -> memoryview:
        """Return a buffer to write to."""
        self._buffer = self._free.get()
        return self._buffer

    def follow(self, piece: memoryview) -> None:
        """Digest a piece in the last buffer. Meanwhile the reader may read it, but not write.

        The reader finishes a piece before it takes the next buffer.
        """
        if self._thread is None:
            self._sha.update(piece)
            self._free.put(self._buffer)
        else:
            self._full.put((self._buffer, piece))

    def finish(self) -> str:
        """Return the digest of all pieces, in hex."""
        if self._thread is not None:
            self._full.put(None)
            self._thread.join()
        return self._sha.hexdigest()

    def _run(self) -> None:
        while (item := self._full.get()) is not None:
            buffer, piece = item
            self._sha.update(piece)
            self._free.put(buffer)
