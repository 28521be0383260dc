"""Changes the pods of a fleet, and remembers what the watch has not brought yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from fleet_operator.core.actions import CreatePod, PodAction
from fleet_operator.core.observed import PodView
from fleet_operator.errors import NameTaken, Terminal
from fleet_operator.runtime.informer import FleetKey
from fleet_operator.runtime.objects import Objects
from fleet_operator.runtime.own_writes import OwnWrites


class PodChanges:
    """Writes to pods."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._own = OwnWrites()

    def laid_over(self, key: FleetKey, pods: Sequence[PodView]) -> list[PodView]:
        """The pods as they are with our writes."""
        return self._own.laid_over(key, pods)

    def forget(self, key: FleetKey) -> None:
        """The fleet is gone."""
        self._own.forget(key)

    async def run(self, key: FleetKey, actions: Sequence[PodAction]) -> None:
        """Change pods, and create the missing ones in portions that double.

        The first pod that cannot be created ends it: a quota would refuse all the others too. A name
        that is taken concerns one pod, and the others follow.
        """
        created = [a for a in actions if isinstance(a, CreatePod)]
        failures = await self._at_once(key, [a for a in actions if not isinstance(a, CreatePod)])
        portion = 1
        while created and all(isinstance(f, NameTaken) for f in failures):
            failures += await self._at_once(key, created[:portion])
            created, portion = created[portion:], portion * 2
        if failures:
            # A refusal needs attention; what passes by itself must not hide it.
            raise next((f for f in failures if isinstance(f, Terminal)), failures[0])

    async def _at_once(self, key: FleetKey, actions: Sequence[PodAction]) -> list[BaseException]:
        namespace, _ = key
        changes = (self._objects.change_pod(namespace, a) for a in actions)
        outcomes = await asyncio.gather(*changes, return_exceptions=True)
        for action, outcome in zip(actions, outcomes, strict=True):
            if outcome is None:
                self._own.note(key, action)
        return [o for o in outcomes if o is not None]
