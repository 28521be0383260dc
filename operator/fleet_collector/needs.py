"""The needs of fleets and WeightVersions, by their objects. Pure.

Nothing of an object is skipped in silence: one that cannot be read, or whose status may be late, is an obstacle,
and then nothing is deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from pydantic import ValidationError

from fleet_collector.plan import Claim, Needs, Obstacle, Template
from rlfleet.resources import WeightVersion
from rlfleet.sources import template_of
from rlfleet_resources.fleet_status import MAX_SOURCES_IN_USE, FleetStatus
from rlfleet_resources.names import heartbeat_name
from rlfleet_resources.retention import Retention
from rlfleet_resources.source import WeightSource
from rlfleet_resources.weights_status import WeightsStatus

Json = dict[str, Any]
_WORD = re.compile(r"[\w.-]+")


def rules_of(weights: Iterable[Json]) -> Iterator[tuple[Json, Retention]]:
    """Yield each WeightVersion that has a rule, with the rule. Errors: ValidationError."""
    for each in weights:
        rule = each.get("spec", {}).get("retention")
        if rule is not None:
            yield each, Retention.model_validate(rule)


def template_in(weights: Json) -> Template:
    """Where the versions of a WeightVersion are. Errors: ValueError, in words."""
    found = template_of(WeightVersion.model_validate(weights))
    if found is None:
        raise ValueError("its source is without {version}")
    return Template.of(found)


def claims_on(folder: str, weights: Iterable[Json]) -> list[Claim]:
    """The WeightVersions whose versions are in a folder. One that cannot be read is an obstacle in `needs_of`.

    Errors: ValidationError for a rule.
    """
    rules = {name_of(each): rule for each, rule in rules_of(weights)}
    found = []
    for each in weights:
        try:
            template = template_in(each)
        except ValueError:  # also that of pydantic
            continue
        if template.folder == folder:
            version = WeightVersion.model_validate(each)
            applied = version.status.applied
            here = (
                applied is not None
                and applied.source is not None
                and applied.source.key().place == template.path_of(applied.version)
            )
            label = applied.version if applied is not None and here else ""
            who, uid = name_of(each), each["metadata"].get("uid", "")
            found.append(Claim(who, template, label, rules.get(who), uid, version.spec.version))
    return found


def needs_of(
    folder: str, fleets: Sequence[Json], weights: Sequence[Json], endpoint: str = ""
) -> Needs:
    """The needs that keep versions of a folder.

    Args:
        folder: As workers see it.
        endpoint: The server of a folder in a store, as this process has it; empty for that of a cloud.
        fleets: All InferenceFleets of all namespaces whose fleets read the volume.
        weights: All WeightVersions of these namespaces.
    """
    paths: dict[str, str] = {}
    obstacles: list[Obstacle] = []
    readers = _readers_of(folder, weights)
    for each in fleets:
        who = name_of(each)
        obstacles += _obstacles_of(
            who, each, FleetStatus.read(each.get("status") or {}).unread_parts
        )
        obstacles += _of_fleet(who, folder, each)
        if who in readers:
            obstacles += _of_store(who, folder, each, endpoint)
        paths |= dict.fromkeys(_words_in(each.get("spec")), f"the spec of fleet {who}")
        paths |= dict.fromkeys(_places_of_fleet(each), f"fleet {who}")
    for each in weights:
        who = name_of(each)
        unread = WeightsStatus.read(each.get("status") or {}).unread_parts
        obstacles += _obstacles_of(who, each, unread)
        if "spec" not in each:
            continue
        try:
            wanted = [*_places_of_weights(WeightVersion.model_validate(each))]
        except ValidationError:
            obstacles.append(Obstacle(f"{who} cannot be read: update the collector"))
        else:
            paths |= dict.fromkeys(wanted, f"WeightVersion {who}")
    return Needs(paths, tuple(sorted(obstacles, key=lambda o: o.passes)))


def late_operators(
    fleets: Sequence[Json], beats: Mapping[str, str], since: Sequence[Mapping[str, str]]
) -> Iterator[Obstacle]:
    """Why the statuses may lack what workers have opened: an operator that did not live all the time writes none.

    It passes for a new fleet only. An operator that is gone would else keep all versions, without a problem.

    Args:
        fleets: As for `needs_of`.
        beats: `namespace/name` of the heartbeat Lease of an operator → when it was renewed last.
        since: The same of the looks since versions were put aside; empty until then. Each renewal must be another one
            than that before it. One operator renews in order, so the second one has begun after the first one came.
    """
    for each in fleets:
        operator = (each.get("status") or {}).get("operator", "")
        lease = f"{each['metadata'].get('namespace', '')}/{heartbeat_name(operator)}"
        beat = beats.get(lease)
        if not operator or beat is None:
            yield Obstacle(
                f"fleet {name_of(each)} has no operator with a heartbeat: install one, or delete the fleet",
                passes=not each.get("status"),
            )
        elif any(one == other for one, other in pairwise(look.get(lease) for look in since)):
            yield Obstacle(
                f"the operator of fleet {name_of(each)} has not renewed its heartbeat {lease} twice since versions were"
                " put aside, so that its status may be late: see whether it runs"
            )


def name_of(found: Json) -> str:
    """Namespace and name of an object."""
    return f"{found['metadata'].get('namespace', '')}/{found['metadata']['name']}"


def _obstacles_of(who: str, found: Json, unread: Sequence[str]) -> Iterator[Obstacle]:
    if "spec" not in found:
        yield Obstacle(
            f"the spec of {who} is larger or nested deeper than the operator and the collector read: make it smaller, "
            "or delete it"
        )
    if unread:
        yield Obstacle(f"the status of {who} cannot be read ({unread[0]}): update the collector")
    seen = (found.get("status") or {}).get("observedGeneration", -1)
    if seen != found["metadata"].get("generation", 1):
        yield Obstacle(f"the operator has not looked at the newest spec of {who} yet", passes=True)


def _of_fleet(who: str, folder: str, fleet: Json) -> Iterator[Obstacle]:
    status = fleet.get("status") or {}
    if len(status.get("sourcesInUse") or ()) >= MAX_SOURCES_IN_USE:
        yield Obstacle(
            f"status.sourcesInUse of {who} is full, so that it may lack some: look for a worker that starts or is silent"
        )
    weights = fleet.get("spec", {}).get("weights", {})
    roots = weights.get("roots") or ()
    if weights.get("management") == "External" and any(_overlap(root, folder) for root in roots):
        yield Obstacle(
            f"fleet {who} is External and may read below {folder} whatever its trainer names: give it other roots"
        )


def _of_store(who: str, folder: str, fleet: Json, endpoint: str) -> Iterator[Obstacle]:
    theirs = (fleet.get("spec", {}).get("weights", {}).get("objectStore") or {}).get("endpoint")
    if folder.startswith("s3://") and theirs and theirs != endpoint:
        yield Obstacle(
            f"fleet {who} reads {folder} at {theirs}, and this collector at {endpoint or 'AWS'}: give it the fleet's"
            " endpoint"
        )


def _readers_of(folder: str, weights: Sequence[Json]) -> set[str]:
    """The fleets of the WeightVersions whose versions are in a folder."""
    claims = {claim.owner for claim in claims_on(folder, weights)}
    return {
        f"{each['metadata'].get('namespace', '')}/{each['spec']['fleetRef']['name']}"
        for each in weights
        if name_of(each) in claims
    }


def _overlap(one: str, other: str) -> bool:
    return f"{one}/".startswith(f"{other}/") or f"{other}/".startswith(f"{one}/")


def _places_of_fleet(fleet: Json) -> Iterator[str]:
    status = FleetStatus.read(fleet.get("status") or {})
    model = fleet.get("spec", {}).get("model", {}).get("source") or {}
    yield from (str(place) for place in (model.get("path"), model.get("uri")) if place)
    yield from (entry.source.key().place for entry in status.sources_in_use)
    moving = status.transition
    for recorded in (status.applied, moving, moving.base if moving is not None else None):
        if recorded is not None and recorded.source is not None:
            yield recorded.source.key().place


def _words_in(spec: Any) -> Iterator[str]:
    """All names in the texts of a spec. A volume may be mounted at a version, and an argument of the engine, such as
    JSON about a draft model, may name one.
    """
    waiting = [spec]  # not by recursion: an overlay may be nested as deeply as Python parses
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, str):
            yield from each.split("/")
            yield from _WORD.findall(each)


def _places_of_weights(weights: WeightVersion) -> Iterator[str]:
    spec, status = weights.spec, weights.status
    yield spec.source.resolve(spec.version).key().place
    if status.applied is not None and status.applied.source is not None:
        yield status.applied.source.key().place
    template: WeightSource | None = template_of(weights)
    if template is None:
        return
    applied = status.applied
    current = (applied.version, applied.run_id) if applied is not None else None
    ended = (e for e in status.history if e.result == "Applied")
    before = next((e.version for e in ended if (e.version, e.run_id) != current), None)
    for version in (spec.rollback_to, status.rollback_to, before):
        if version is not None:
            yield template.resolve(version).key().place
