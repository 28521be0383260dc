"""Saves and publishes the versions of a training, in all of its processes.

Process 0 asks the fleet. The others learn of each outcome before they enter a collective of the training.
Process 0 waits for the fleet in parts, and meets the others in between, before a watchdog ends the training.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlfleet.checkpoints import make_folder, make_readable, require_no_files, run_of
from rlfleet.deltas.options import Deltas
from rlfleet.errors import Refused, TimedOut, Unavailable
from rlfleet.kinds import check_kinds
from rlfleet.processes import together
from rlfleet.rollout import ABSENT, ABSENT_SECONDS, AT_ONCE, Rollout
from rlfleet.weights import Weights

LONGEST_SECONDS = 60.0
"""Longest time for which process 0 waits for the fleet at once. torch's watchdogs have 10 minutes."""
_LOG = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Training:
    """The fields are arguments of `publish_every`. `at_workers`: `directory` as workers see it."""

    weights: Weights
    directory: Path
    at_workers: str
    save: Callable[[str], None] | None
    mode: int | None
    run_id: str | None
    wait: bool
    timeout_seconds: float
    report: Callable[[dict[str, float]], object] | None
    delta: bool | Deltas
    _last: Rollout | None = field(default=None, init=False)

    def publish(self, step: int, model: Any, is_main: bool) -> None:  # noqa: FBT001 - as transformers has it
        """Write the version of a step, and ask the fleet for it. Every process calls it.

        Errors: those of `Weights.publish`, FileExistsError, and whatever `save` and `report` raise.
        """
        target = self.directory / f"step_{step}"

        def show() -> None:
            if self.report is not None:
                self.report(self.weights.metrics(trained_version=step))

        folder = _of_main(is_main, lambda: self._begin(target)) or str(target)
        try:
            together(lambda: self._save(model, folder, is_main))
            _of_main(is_main, lambda: self._ask(step, target, folder))
        finally:
            if self.delta and is_main:
                shutil.rmtree(folder, ignore_errors=True)
        if self.wait:
            self._wait(is_main, at_end=False)
        _of_main(is_main, show)

    def end(self, is_main: bool) -> None:  # noqa: FBT001 - as transformers has it
        """Wait for the last version. Every process calls it. Errors: as for `publish`."""
        if not self.wait:
            self._wait(is_main, at_end=True)

    def _begin(self, target: Path) -> str:
        """Returns: where the model is saved. A delta is written from a copy on this machine."""
        self._look()
        require_no_files(target)
        make_folder(self.directory, mode=self.mode)
        return tempfile.mkdtemp(prefix="rlfleet-") if self.delta else str(target)

    def _save(self, model: Any, folder: str, is_main: bool) -> None:  # noqa: FBT001 - as transformers has it
        if self.save is not None:
            self.save(folder)
        elif is_main:
            check_kinds(model=model)
            model.save_pretrained(folder)

    def _ask(self, step: int, target: Path, folder: str) -> None:
        if self.mode is not None and not self.delta:
            make_readable(target, mode=self.mode)
        self._last = self.weights.publish(
            str(step),
            path=f"{self.at_workers}/{target.name}",
            directory=folder if self.delta else None,
            written_to=target,
            delta=self.delta,
            run_id=self.run_id or run_of(self.directory, mode=self.mode),
            wait=False,
            timeout_seconds=min(self.timeout_seconds, LONGEST_SECONDS),
        )

    def _look(self) -> None:
        """Look at the last version. One whose rollout continues is replaced by the next.

        Errors: Refused, Superseded.
        """
        if self._last is None:
            return
        with suppress(TimedOut, Unavailable):
            try:
                self.weights.wait(self._last, timeout_seconds=0)
            except Refused as refused:
                if refused.reason == ABSENT:  # workers may not have looked again yet
                    self.weights.wait(self._last, timeout_seconds=ABSENT_SECONDS)
                elif refused.reason not in AT_ONCE:
                    raise

    def _wait(self, is_main: bool, *, at_end: bool) -> None:  # noqa: FBT001 - as transformers has it
        """Wait for the last version, in parts. Every process calls it. Errors: those of `Weights.wait`."""
        end = time.monotonic() + self.timeout_seconds
        while _of_main(is_main, lambda: self._continues(end - time.monotonic(), at_end=at_end)):
            pass

    def _continues(self, left_seconds: float, *, at_end: bool) -> bool:
        """Wait for a part of the time that is left. Returns: whether the wait continues.

        At the end of a training, a version may still be applied later, so its wait ends with a warning.
        """
        if self._last is None:
            return False
        try:
            self.weights.wait(self._last, timeout_seconds=min(left_seconds, LONGEST_SECONDS))
        except TimedOut as late:
            if left_seconds > LONGEST_SECONDS:
                return True
            if not at_end:
                raise
            _LOG.warning("%s", late)
        except Refused as refused:
            if not at_end or refused.reason not in AT_ONCE:
                raise
            _LOG.warning("%s", refused)
        return False


def _of_main(is_main: bool, work: Callable[[], Any]) -> Any:  # noqa: FBT001 - as transformers has it
    """Let process 0 alone work. Returns: its result, in every process; None in one that cannot meet it.

    Errors: its error, in every process.
    """
    return together(work if is_main else _nothing)


def _nothing() -> None:
    """The part of a process that only waits for process 0."""
