"""The rules of `rlfleet validate` that the API server cannot check: pure.

They concern several objects at once. The names of the rules are the reasons that the operator
would report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from rlfleet.cli.checks import Check, Result
from rlfleet.cli.engine_flags import arguments_of, known, unknown_flags
from rlfleet.cli.spec_rules import at, of_fleet, of_weights
from rlfleet.ports import Json
from rlfleet.resources import WeightVersion
from rlfleet_resources.fleet_status import FleetStatus, PinnedWeights, pins_of
from rlfleet_resources.source import WeightSource

FLEET, WEIGHTS = "InferenceFleet", "WeightVersion"
Key = tuple[str, str]
"""Namespace and name."""
Problem = tuple[str, str, str]
"""Rule, message and remedy."""


class Finding(Check):
    """One check of one object of a file.

    Fields:
        rule: a reason of docs/reference/conditions.md, that of the API server, or a rule of `spec_rules`;
            empty if the result is `ok`.
    """

    file: str
    object: str
    rule: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file."""

    file: str
    body: Json
    namespace: str

    @property
    def kind(self) -> str:
        """Its kind."""
        return str(self.body.get("kind", ""))

    @property
    def key(self) -> Key:
        """Namespace and name."""
        return self.namespace, str((self.body.get("metadata") or {}).get("name", ""))

    def __str__(self) -> str:
        return f"{self.kind} {'/'.join(self.key)}"


@dataclass(slots=True)
class Together:
    """All fleets and WeightVersions as they would be after the files were applied."""

    fleets: dict[Key, Json] = field(default_factory=dict)
    weights: dict[Key, WeightVersion] = field(default_factory=dict)

    @classmethod
    def of(cls, manifests: Sequence[Manifest], there: Mapping[str, Sequence[Json]]) -> Together:
        """The objects of the cluster, by kind, with those of the files over them."""
        made = cls()
        for kind in (FLEET, WEIGHTS):
            for body in there.get(kind, ()):
                made._put(kind, (body["metadata"]["namespace"], body["metadata"]["name"]), body)
        for one in manifests:
            # The API server ignores the status of a file.
            made._put(one.kind, one.key, {k: v for k, v in one.body.items() if k != "status"})
        return made

    def _put(self, kind: str, key: Key, body: Json) -> None:
        if kind == FLEET:
            before = self.fleets.get(key, {})
            self.fleets[key] = {"status": before.get("status", {})} | body
        if kind == WEIGHTS:
            try:
                found = WeightVersion.model_validate(body)
            except ValidationError:
                return  # the API server reports it
            # In the order of their creation: files come after what exists.
            known = self.weights.get(key)
            if known is not None:
                found = found.model_copy(update={"metadata": known.metadata})
            self.weights[key] = found

    def rivals(self, key: Key) -> list[Key]:
        """All WeightVersions of the same fleet, oldest first."""
        fleet = self.weights[key].spec.fleet_ref.name
        found = [
            k for k, w in self.weights.items() if (k[0], w.spec.fleet_ref.name) == (key[0], fleet)
        ]
        return sorted(found, key=lambda k: self.weights[k].metadata.creation_timestamp or "9")


def findings(
    manifests: Sequence[Manifest],
    there: Mapping[str, Sequence[Json]],
    refused: Collection[str] = (),
) -> Iterator[Finding]:
    """Everything that the operator would refuse.

    A WeightVersion that is not in the files is checked as well if the files change its fleet.
    `refused`: objects that the API server has refused. Their fields may have any type, so neither they
    nor what belongs to such a fleet is checked.
    """
    bad = {m.key for m in manifests if m.kind == FLEET and str(m) in refused}
    taken = [m for m in manifests if str(m) not in refused]
    together = Together.of(taken, there)
    files = {(m.kind, m.key): m for m in taken}
    for key, weights in together.weights.items():
        fleet = (key[0], weights.spec.fleet_ref.name)
        place = files.get((WEIGHTS, key)) or files.get((FLEET, fleet))
        if place is None or fleet in bad:
            continue
        for rule, message, remedy in _problems(key, weights, together):
            named = message if place.kind == WEIGHTS else f"WeightVersion {key[1]}: {message}"
            yield failed(place, rule, named, remedy)


def flag_findings(manifests: Sequence[Manifest]) -> Iterator[Finding]:
    """Flags of the engine that the vLLM known to this client does not have."""
    for one in manifests:
        for flag in unknown_flags(arguments_of(one.body)) if one.kind == FLEET else ():
            message = f"UnknownFlag: vLLM {known().version} has no flag {flag.flag}"
            yield finding(Result.WARN, one, message, rule="UnknownFlag", remedy=flag.remedy())


def spec_findings(manifest: Manifest, model_bytes: int | None) -> Iterator[Finding]:
    """The rules that one object breaks alone. `model_bytes`: of a fleet's model, where they can be seen."""
    spec = manifest.body.get("spec")
    broken = of_fleet(spec, model_bytes) if manifest.kind == FLEET else of_weights(spec)
    for one in broken:
        message = f"{one.rule}: {one.message}"
        yield finding(one.result, manifest, message, rule=one.rule, remedy=one.remedy)


def failed(manifest: Manifest, rule: str, message: str, remedy: str) -> Finding:
    """A rule that the object breaks."""
    return finding(Result.FAIL, manifest, f"{rule}: {message}", rule=rule, remedy=remedy)


def finding(
    result: Result, manifest: Manifest, message: str, *, rule: str = "", remedy: str = ""
) -> Finding:
    """A check of the object."""
    return Finding(
        result=result,
        subject=f"{manifest.file}: {manifest}",
        message=message,
        remedy=remedy,
        file=manifest.file,
        object=str(manifest),
        rule=rule,
    )


def _problems(key: Key, weights: WeightVersion, together: Together) -> Iterator[Problem]:
    name = weights.spec.fleet_ref.name
    fleet = together.fleets.get((key[0], name))
    if fleet is None:
        message = f"there is no InferenceFleet {name!r} in namespace {key[0]!r} or in the files"
        yield "FleetNotFound", message, "create the fleet, or correct spec.fleetRef.name"
        return
    spec = fleet.get("spec") or {}
    if at(spec, "weights", "management") == "External":
        remedy = "delete the WeightVersion, or set management to Operator"
        message = f"fleet {name} has spec.weights.management: External"
        yield "ExternallyManaged", message, remedy
        return
    yield from _source_problems(weights, fleet)
    yield from _steering_problems(key, weights, spec, together)


def _source_problems(weights: WeightVersion, fleet: Json) -> Iterator[Problem]:
    source, spec = weights.spec.source.resolve(weights.spec.version), fleet.get("spec") or {}
    given = at(spec, "weights", "roots")
    roots = [str(root) for root in given] if isinstance(given, list) else []
    model = at(spec, "model", "source") or {}
    if (source.path is None or source.path != model.get("path")) and source.roots(roots) == []:
        message = (
            f"{source} is not below a weight root: {', '.join(roots) or 'the fleet has no root'}"
        )
        remedy = "move the files, or add their place to spec.weights.roots of the fleet"
        yield "SourceOutsideRoots", message, remedy
    label = weights.spec.version, weights.spec.run_id
    status = FleetStatus.read(fleet.get("status") or {})
    for pin in pins_of(status, weights.spec.adapter):
        if (pin.version, pin.run_id) == label and not _is_same(pin, source, weights.spec.digest):
            message = f"version {label[0]} of this run already names the files in {pin.source} with digest {pin.digest}"
            yield "VersionReused", message, "use another version, or another spec.runID"


def _is_same(pin: PinnedWeights, source: WeightSource, digest: str | None) -> bool:
    """Whether a version names its pinned files: by the digest if it has one, else by the source."""
    if digest is not None:
        return pin.digest == digest
    return source == pin.source or (bool(pin.commit) and source == pin.source.at(pin.commit))


def _steering_problems(
    key: Key, weights: WeightVersion, spec: Json, together: Together
) -> Iterator[Problem]:
    adapter, rivals = weights.spec.adapter, together.rivals(key)
    first: dict[str, Key] = {}
    for rival in rivals:
        first.setdefault(together.weights[rival].spec.adapter, rival)
    if first[adapter] != key:
        what = f"adapter {adapter!r}" if adapter else "base weights"
        message = f"WeightVersion {first[adapter][1]} already controls the {what} of this fleet"
        rule = "SecondAdapterVersion" if adapter else "SecondBaseVersion"
        yield rule, message, "delete one of the two"
        return
    if adapter and adapter == at(spec, "model", "name"):
        message = f"{adapter!r} is the name of the base model in requests"
        yield "InvalidSpec", message, "give the LoRA adapter another name"
    given = at(spec, "adapters", "max")
    most = given if isinstance(given, int) else 0
    order = [name for name in first if name]
    if adapter and order.index(adapter) >= most:
        message = (
            f"the fleet has room for {most} of the {len(order)} adapters that WeightVersions name"
        )
        remedy = "raise spec.adapters.max, which recreates the workers, or delete an adapter"
        yield "NoRoomForAdapters", message, remedy
