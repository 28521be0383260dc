"""The refusals of LoRA adapters that the worker reports.

The operator chooses by them between two versions of an adapter, and how long each one waits for a
retry. If it saw only the last one, it would try a refused version again after it tried another one.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.errors import Fault

MAX_REPORTED = 32


@dataclass(frozen=True, slots=True)
class AdapterFault(Fault):
    """A refusal or failure of a LoRA adapter."""

    name: str = ""

    @property
    def about(self) -> tuple[str, str | None, str | None]:
        """The name, version and run of the adapter."""
        return self.name, self.version, self.run_id


class RefusedAdapters:
    """The last refusal of each version of each adapter.

    Fields:
        faults: newest first, at most 32.
    """

    def __init__(self) -> None:
        """Start without any."""
        self.faults: tuple[AdapterFault, ...] = ()

    def note(self, fault: AdapterFault) -> None:
        """Report a refusal in place of the one before of the same version."""
        others = (f for f in self.faults if f.about != fault.about)
        self.faults = (fault, *others)[:MAX_REPORTED]

    def note_staged(self, name: str, version: str, run_id: str | None) -> None:
        """Forget the refusal of a version. Those of others stay: the engine may fail with this one."""
        self.faults = tuple(f for f in self.faults if f.about != (name, version, run_id))

    def forget(self, name: str) -> None:
        """Forget all refusals of an adapter, which serves a version now or is removed."""
        self.faults = tuple(f for f in self.faults if f.name != name)
