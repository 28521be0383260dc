"""One pass over weights: their digest, and work on each tensor, in threads.

hashlib, numpy and zstandard let other threads run. The digest of a file is one after the other, so it has
a thread of its own.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rlfleet.deltas.layout import Entry, WeightFile
from rlfleet.deltas.sources import Source

T = TypeVar("T")
Progress = Callable[[int], object]
"""Takes the bytes of a tensor after it was read."""
_THREADS = max(2, min(8, (os.cpu_count() or 2) - 1))
_AHEAD = 2 * _THREADS
"""Tensors that are in memory at once."""


@dataclass
class Pass(Generic[T]):
    """A pass over sources with the same layout, side by side.

    Fields:
        sources: those that are read.
        work: takes a tensor and its bytes in each source; runs in several threads.
        progress: takes the bytes of each tensor that is done.
    """

    sources: tuple[Source, ...]
    work: Callable[..., T]
    progress: Progress
    _hashes: list[dict[str, str]] = field(init=False)
    _stack: ExitStack = field(default_factory=ExitStack, init=False)

    def __enter__(self) -> Pass[T]:
        self._hashes = [{} for _ in self.sources]
        self._hashing = [self._stack.enter_context(ThreadPoolExecutor(1)) for _ in self.sources]
        self._working = self._stack.enter_context(ThreadPoolExecutor(_THREADS))
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def tensors(self, file: WeightFile) -> Iterator[tuple[Entry, T]]:
        """The tensors of a file in order, each with the result of the work on it."""
        shas = [hashlib.sha256(file.prefix) if s.digest is None else None for s in self.sources]
        waiting: deque[tuple[Entry, Future[T], list[Future[None]]]] = deque()
        for entry in file.tensors:
            data = [source.read(file, entry) for source in self.sources]
            updates = [
                thread.submit(sha.update, one.data)
                for thread, sha, one in zip(self._hashing, shas, data, strict=True)
                if sha is not None
            ]
            waiting.append((entry, self._working.submit(self.work, entry, *data), updates))
            if len(waiting) > _AHEAD:
                yield self._done(*waiting.popleft())
        while waiting:
            yield self._done(*waiting.popleft())
        for hashes, sha in zip(self._hashes, shas, strict=True):
            if sha is not None:
                hashes[file.name] = sha.hexdigest()

    def digest(self, number: int) -> str:
        """The digest of a source, after all its files."""
        source = self.sources[number]
        return source.digest or source.layout.digest(self._hashes[number])

    def _done(self, entry: Entry, work: Future[T], updates: list[Future[None]]) -> tuple[Entry, T]:
        result = work.result()
        for update in updates:
            update.result()
        self.progress(entry.size)
        return entry, result
