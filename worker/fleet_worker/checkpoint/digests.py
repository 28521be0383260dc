"""Digests of a file and of its tensors, computed in parallel with the file's reader.

A load reads tensors one by one and in an order of its own, where the digest of the file is of no use. The
digests of the tensors are of the same buffers, so bytes that have them are those of the file's digest.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Sequence
from typing import Any

from fleet_worker.checkpoint.format import TensorSpec

_BUFFERS = 4
"""Buffers between the reader of one file and its digests."""


def tensor_digest(dtype: str, shape: Sequence[int]) -> Any:
    """Begin the SHA-256 of a tensor: over its type (as safetensors names it) and shape, and then over its bytes."""
    return hashlib.sha256(f"{dtype} {[*shape]}\n".encode())


class Digests:
    """SHA-256 of one file and of each of its tensors."""

    def __init__(self, specs: Sequence[TensorSpec], length: int, *, ahead: bool) -> None:
        """Prepare the buffers.

        Args:
            specs: The tensors to digest, in the order of their bytes.
            length: Bytes of a buffer.
            ahead: Digest in threads.
        """
        self._sha = hashlib.sha256()
        self._tensors = _TensorDigests(specs)
        self._steps = (self._sha.update, *([self._tensors.update] if specs else []))
        self._free = queue.SimpleQueue[memoryview]()
        self._full = [
            queue.SimpleQueue[tuple[memoryview, memoryview] | None]() for _ in self._steps
        ]
        self._threads: list[threading.Thread] = []
        for _ in range(_BUFFERS if ahead else 1):
            self._free.put(memoryview(bytearray(length)))
        if ahead:
            for number in range(len(self._steps)):
                thread = threading.Thread(
                    target=self._run, args=(number,), name="rlfleet-digest", daemon=True
                )
                thread.start()
                self._threads.append(thread)

    def next_buffer(self) -> memoryview:
        """Return a buffer to write to."""
        self._buffer = self._free.get()
        return self._buffer

    def follow(self, piece: memoryview) -> None:
        """Digest the file's next piece, in the last buffer. Meanwhile the reader may read it, but not write.

        The reader finishes a piece before it takes the next buffer.
        """
        if self._threads:
            self._full[0].put((self._buffer, piece))
            return
        for step in self._steps:
            step(piece)
        self._free.put(self._buffer)

    def finish(self) -> tuple[str, dict[str, str]]:
        """Return the digest of all pieces, and tensor name → digest, in hex."""
        if self._threads:
            self._full[0].put(None)
        for thread in self._threads:
            thread.join()
        return self._sha.hexdigest(), self._tensors.finish()

    def _run(self, number: int) -> None:
        """Take each piece from the queue of a step, and pass it on to the next step."""
        is_last = number == len(self._steps) - 1
        while (item := self._full[number].get()) is not None:
            self._steps[number](item[1])
            if is_last:
                self._free.put(item[0])
            else:
                self._full[number + 1].put(item)
        if not is_last:
            self._full[number + 1].put(None)


class _TensorDigests:
    """The digests of the tensors in a file, whose pieces come in order."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        self._specs = iter(specs)
        self._found: dict[str, str] = {}
        self._position = 0
        self._begin_next()

    def _begin_next(self) -> None:
        self._spec = next(self._specs, None)
        if self._spec is not None:
            self._sha = tensor_digest(*self._spec.signature)

    def update(self, piece: memoryview) -> None:
        """Digest the next piece of the file."""
        begin, self._position = self._position, self._position + len(piece)
        while self._spec is not None and self._spec.begin < self._position:
            self._sha.update(piece[max(self._spec.begin - begin, 0) : self._spec.end - begin])
            if self._spec.end > self._position:
                return
            self._end_tensor(self._spec)

    def finish(self) -> dict[str, str]:
        """Return tensor name → digest. Tensors that are left have no bytes."""
        while self._spec is not None:
            self._end_tensor(self._spec)
        return self._found

    def _end_tensor(self, spec: TensorSpec) -> None:
        self._found[spec.name] = self._sha.hexdigest()
        self._begin_next()
