"""Requests of trainers and users: changes of the fleet and its WeightVersions."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.model.desired import BASE_UID, Desired, base_weights, lora_weights

if TYPE_CHECKING:
    from tests.model.promises import Promises

    from fleet_operator.api.weights import WeightsSpec
    from rlfleet_resources.weights_status import WeightsStatus


class Trainers:
    """Part of `Simulation`, on whose fields it works. `objects`: how many WeightVersions of the base
    weights were created.
    """

    desired: Desired
    desired_before: deque[tuple[float, Desired]]
    weights_stored: dict[str, WeightsStatus]
    promises: Promises
    now: float
    objects: int
    deleted_adapters: int = 0
    note: Any

    def publish(self, version: str) -> None:
        """The trainer asks for a version."""
        if version != self.desired.version:
            self.ask("trainer", f"asks for version {version}", {"version": version})

    def control(self, **fields: Any) -> None:
        """A user or the trainer changes other fields of the WeightVersion."""
        said = ", ".join(f"{k}: {v}" for k, v in fields.items())
        self.ask("user", f"sets {said}", fields)

    def ask(self, who: str, what: str, fields: dict[str, Any]) -> None:
        assert self.desired.base is not None
        asked = self.desired.base.changed(fields)
        self.change(who, what, self.desired.with_weights(self.desired.base_uid, asked))

    def retry(self, word: str) -> None:
        """A user requests another try of an abandoned version."""
        assert self.desired.base is not None
        asked = replace(self.desired.base, retry=word)
        desired = self.desired.with_weights(self.desired.base_uid, asked)
        self.change("user", "asks to try again", desired)

    def delete_weights(self) -> None:
        """The trainer deletes the WeightVersion; its status is gone with it."""
        uid = self.desired.base_uid
        self.weights_stored.pop(uid, None)
        what = "deletes the WeightVersion"
        self.change("trainer", what, self.desired.with_weights(uid, None))

    def create_weights(self, fields: dict[str, Any]) -> None:
        """The trainer creates a WeightVersion in place of one that it has deleted. `fields`: of its
        spec, next to those of version 1.
        """
        assert self.desired.base is None
        self.objects += 1
        uid, asked = f"{BASE_UID}-{self.objects}", base_weights("1").changed(fields)
        asked = replace(asked, generation=1)
        what = f"creates a WeightVersion with {fields}"
        self.change("trainer", what, self.desired.with_weights(uid, asked))

    def scale(self, replicas: int) -> None:
        """A user, or an autoscaler, changes the number of workers."""
        desired = self.desired.with_fleet(replicas=replicas)
        self.change("user", f"scales to {replicas}", desired)

    def change_fleet(self, what: str, **fields: Any) -> None:
        """A user changes the fleet's spec, say its template."""
        self.change("user", what, self.desired.with_fleet(**fields))

    def adapter_uid(self, name: str) -> str | None:
        """Uid of the WeightVersion of an adapter: its name, and another one after each deletion."""
        uids = [uid for uid, a in self.desired.weights if a.view(uid).spec.adapter == name]
        return uids[0] if uids else None

    def adapter_spec(self, name: str) -> WeightsSpec:
        """The spec of a published adapter."""
        uid = self.adapter_uid(name)
        assert uid is not None
        return dict(self.desired.weights)[uid].view(uid).spec

    def publish_adapter(self, name: str, version: str, **fields: Any) -> None:
        """The trainer asks for a version of an adapter. `fields`: others of its spec."""
        uid = self.adapter_uid(name)
        known = dict(self.desired.weights)[uid] if uid else lora_weights(name, version)
        if uid and self.adapter_spec(name).digest:
            fields = {"digest": None} | fields  # that was of the version before
        asked = known.changed({"version": version} | fields)
        said = "".join(f", {k}: {v}" for k, v in fields.items())
        what = f"asks for version {version} of adapter {name}{said}"
        uid = uid or (f"{name}-{self.deleted_adapters}" if self.deleted_adapters else name)
        self.change("trainer", what, self.desired.with_weights(uid, asked))

    def delete_adapter(self, name: str) -> None:
        """The trainer deletes the WeightVersion of an adapter; its status is gone with it."""
        uid = self.adapter_uid(name)
        assert uid is not None
        self.deleted_adapters += 1
        self.weights_stored.pop(uid, None)
        what = f"deletes the WeightVersion of adapter {name}"
        self.change("trainer", what, self.desired.with_weights(uid, None))

    def change(self, who: str, what: str, desired: Desired) -> None:
        self.desired = desired
        self.desired_before.append((self.now, desired))
        self.note(who, what)
        self.promises.note_request()
