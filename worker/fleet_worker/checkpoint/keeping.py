"""One pass over the bytes of files, which may keep them in sealed memory.

A pass runs in this process (`OwnPass`), or in a process of its own (`stager_pass.StagerPass`). Python runs for
each piece of bytes. Next to a busy event loop it would wait for the interpreter's lock each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.blocks import Inspect
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.pairs import Pair, are_equal
from fleet_worker.checkpoint.reading import FileContent, inspect_nothing, read_files


@dataclass(frozen=True, slots=True)
class Found:
    """Result of a pass.

    Fields:
        content: file name → what is known of its bytes.
        held: file name → its sealed bytes in memory. Empty if they were only read.
        is_pair_equal: whether two tensors have the same bytes; None without a request for it.
    """

    content: dict[str, FileContent]
    held: dict[str, MemoryFile]
    is_pair_equal: bool | None


class Pass(Protocol):
    """One pass over the bytes of files."""

    def run(
        self,
        files: Sequence[OpenFile],
        specs: Mapping[str, Sequence[TensorSpec]],
        *,
        pair: Pair | None,
        budget: int,
        check_cancelled: Callable[[], None],
    ) -> Found:
        """Read all bytes once: digest them, check them, and keep them if they fit. Blocks.

        Args:
            files: Open regular files.
            specs: File name → its tensors, in the order of their bytes.
            pair: Two tensors to compare.
            budget: Largest number of bytes to keep.
            check_cancelled: Called after each progress, in any thread. Raises to cancel.

        Errors:
            Refusal: any of the checkpoint reasons, `SourceUnreadable`, and from `check_cancelled`.
        """

    def release(self) -> None:
        """Free the memory that is being filled. Any thread may call it, and again."""


Passes = Callable[[Mapping[str, str] | None], Pass]
"""Makes passes. The argument: tensor → the type to which a load casts it, to refuse infinities and NaNs; None
for a pass that only digests.
"""


class OwnPass:
    """A pass in threads of this process."""

    def __init__(self, inspect: Inspect = inspect_nothing) -> None:
        """`inspect`: checks the tensors."""
        self._inspect = inspect
        self._filling: dict[str, MemoryFile] = {}

    def run(
        self,
        files: Sequence[OpenFile],
        specs: Mapping[str, Sequence[TensorSpec]],
        *,
        pair: Pair | None,
        budget: int,
        check_cancelled: Callable[[], None],
    ) -> Found:
        """See `Pass.run`. If another process takes the memory first, the bytes are read without keeping them."""
        if sum(file.state.size for file in files) <= min(budget, memory.memory_left()):
            self._filling = {file.name: MemoryFile(file.name, file.state.size) for file in files}
        read = partial(read_files, files, specs, self._inspect, check_cancelled)
        try:
            try:
                content = read(keep=self._filling)
            except memory.NotEnoughMemoryError:
                self.release()
                content = read(keep={})
            is_pair_equal = None
            if pair is not None:
                held = self._filling
                is_pair_equal = are_equal(pair, files, specs, check_cancelled, held=held)
            for file in files:
                file.check_unchanged()
            check_cancelled()
            for each in self._filling.values():
                each.seal()
        except BaseException:
            self.release()
            raise
        held, self._filling = self._filling, {}
        return Found(content, held, is_pair_equal)

    def release(self) -> None:
        """Free the memory. A read under way continues without keeping the bytes."""
        for each in self._filling.values():
            each.close()
        self._filling = {}
