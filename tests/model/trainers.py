"""What trainers and people ask for: they change the fleet and its WeightVersions."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.model.wanted import BASE_UID, Wanted, adapter_weights, base_weights

if TYPE_CHECKING:
    from tests.model.promises import Promises

    from fleet_operator.api.weights import WeightsStatus


class Trainers:
    """Part of `Simulation`, on whose fields it works. `objects`: how many WeightVersions of the base
    weights were created.
    """

    wanted: Wanted
    wanted_before: deque[tuple[float, Wanted]]
    weights_stored: dict[str, WeightsStatus]
    promises: Promises
    now: float
    objects: int
    note: Any

    def publish(self, version: str) -> None:
        """The trainer asks for a version."""
        if version != self.wanted.version:
            self.ask("trainer", f"asks for version {version}", {"version": version})

    def control(self, **fields: Any) -> None:
        """A person or the trainer changes other fields of the WeightVersion."""
        said = ", ".join(f"{k}: {v}" for k, v in fields.items())
        self.ask("person", f"sets {said}", fields)

    def ask(self, who: str, told_as: str, fields: dict[str, Any]) -> None:
        assert self.wanted.base is not None
        asked = self.wanted.base.changed(fields)
        self.change(who, told_as, self.wanted.with_weights(self.wanted.base_uid, asked))

    def retry(self, word: str) -> None:
        """A person asks for another try of what was given up."""
        assert self.wanted.base is not None
        asked = replace(self.wanted.base, retry=word)
        wanted = self.wanted.with_weights(self.wanted.base_uid, asked)
        self.change("person", "asks to try again", wanted)

    def delete_weights(self) -> None:
        """The trainer deletes the WeightVersion; its status is gone with it."""
        uid = self.wanted.base_uid
        self.weights_stored.pop(uid, None)
        told_as = "deletes the WeightVersion"
        self.change("trainer", told_as, self.wanted.with_weights(uid, None))

    def create_weights(self, fields: dict[str, Any]) -> None:
        """The trainer creates a WeightVersion in place of one that it has deleted. `fields`: of its
        spec, beside those of version 1.
        """
        assert self.wanted.base is None
        self.objects += 1
        uid, asked = f"{BASE_UID}-{self.objects}", base_weights("1").changed(fields)
        asked = replace(asked, generation=1)
        told_as = f"creates a WeightVersion with {fields}"
        self.change("trainer", told_as, self.wanted.with_weights(uid, asked))

    def scale(self, replicas: int) -> None:
        """A person, or an autoscaler, changes the number of workers."""
        wanted = self.wanted.with_fleet(replicas=replicas)
        self.change("person", f"scales to {replicas}", wanted)

    def change_fleet(self, told_as: str, **fields: Any) -> None:
        """A person changes the fleet's spec, say its template."""
        self.change("person", told_as, self.wanted.with_fleet(**fields))

    def publish_adapter(self, name: str, version: str) -> None:
        """The trainer asks for a version of an adapter."""
        known = dict(self.wanted.weights).get(name)
        asked = known.changed({"version": version}) if known else adapter_weights(name, version)
        told_as = f"asks for version {version} of adapter {name}"
        self.change("trainer", told_as, self.wanted.with_weights(name, asked))

    def change(self, who: str, told_as: str, wanted: Wanted) -> None:
        self.wanted = wanted
        self.wanted_before.append((self.now, wanted))
        self.note(who, told_as)
        self.promises.note_wish()
