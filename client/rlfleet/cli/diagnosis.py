"""The checks of `rlfleet doctor`: pure, over what the API server answered.

An answer is an object, or the error that came instead of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rlfleet.cli.checks import Check, Result
from rlfleet.cli.pods import OPERATOR
from rlfleet.errors import NotFound, RlfleetError
from rlfleet.ports import Json, Kind
from rlfleet.words import bounded
from rlfleet_resources.names import API_VERSION, GROUP

LATE_AFTER_DURATIONS = 2
"""After this number of its durations without a renewal of its Lease, a leader is gone."""
_DURATION_SECONDS = 15
OLDEST_KUBERNETES = (1, 30)
INSTALL = (
    "install the chart: helm install rlfleet charts/rlfleet -n rlfleet-system --create-namespace"
)
Answer = Json | RlfleetError
_UNREAD = "cannot be checked: "


@dataclass(frozen=True, slots=True)
class Right:
    """A right of this account. `needed`: the CLI is of no use without it. `serves`: the verbs."""

    verb: str
    group: str
    resource: str
    serves: str
    needed: bool = False

    @property
    def attributes(self) -> dict[str, str]:
        """Attributes of a SelfSubjectAccessReview."""
        resource, _, sub = self.resource.partition("/")
        given = {"verb": self.verb, "group": self.group, "resource": resource}
        return given | ({"subresource": sub} if sub else {})

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"


RIGHTS = (
    *(
        Right(verb, GROUP, kind, "every verb", needed=True)
        for kind in Kind
        for verb in ("get", "list")
    ),
    Right("watch", GROUP, Kind.WEIGHTS, "--wait"),
    Right("patch", GROUP, Kind.WEIGHTS, "publish, rollback, retry, suspend and resume"),
    Right("create", GROUP, Kind.WEIGHTS, "publish --create-for"),
    Right("create", GROUP, Kind.FLEETS, "the first fleet"),
    Right("list", "", "pods", "workers, logs, report and check"),
    Right("get", "", "pods/log", "logs and report"),
    Right("create", "", "pods/exec", "check"),
    Right("get", "coordination.k8s.io", "leases", "status and explain"),
    Right("list", "", "events", "the last check of doctor"),
)


def cluster_check(answer: Answer) -> Check:
    """The version of Kubernetes."""
    if isinstance(answer, RlfleetError):
        return unread("cluster", answer)
    version = answer.get("gitVersion", "")
    found = re.match(r"v?(\d+)\.(\d+)", version)
    oldest = ".".join(map(str, OLDEST_KUBERNETES))
    if found and (int(found[1]), int(found[2])) < OLDEST_KUBERNETES:
        message = f"Kubernetes {version} is older than {oldest}"
        return fail("cluster", message, f"upgrade the cluster to {oldest} or later")
    return ok("cluster", f"Kubernetes {version}")


def kinds_checks(answer: Answer, crds: Mapping[Kind, Answer]) -> Iterator[Check]:
    """The kinds that the API server serves. `crds`: definitions by plural, if they can be read."""
    if isinstance(answer, NotFound):
        yield fail("kinds", f"the API server does not serve {API_VERSION}", INSTALL)
        return
    if isinstance(answer, RlfleetError):
        yield unread("kinds", answer)
        return
    served = {one["name"] for one in answer.get("resources") or ()}
    for kind in Kind:
        if kind not in served:
            yield fail("kinds", f"{kind} of {API_VERSION} is missing", INSTALL)
            continue
        crd = crds.get(kind)
        versions = ""
        if isinstance(crd, dict):
            names = [v["name"] for v in crd["spec"]["versions"] if v.get("served")]
            versions = f", served versions: {', '.join(names)}"
        yield ok("kinds", f"{kind} of {API_VERSION}{versions}")


def crd_checks(fleets: Answer, namespace: str) -> Iterator[Check]:
    """Whether the CRDs are of the operator's release: each fleet reports it, also one of another namespace.

    `fleets`: of all namespaces, if they can be read. Those of `namespace` are checked by themselves.
    """
    found = [] if isinstance(fleets, RlfleetError) else fleets.get("items") or []
    for fleet in found:
        where, name = fleet["metadata"]["namespace"], fleet["metadata"]["name"]
        stalled = _true(fleet, "Stalled")
        if where != namespace and stalled.get("reason") == "CRDOutdated":
            message = f"fleet {where}/{name} reports: {bounded(stalled['message'], 1000)}"
            yield fail("kinds", message, "rlfleet explain CRDOutdated")
            return


def _true(fleet: Json, kind: str) -> Json:
    """The condition of a fleet with that type; empty without it, and while it is not true."""
    conditions = fleet.get("status", {}).get("conditions") or ()
    return next((c for c in conditions if (c["type"], c["status"]) == (kind, "True")), {})


def operator_checks(
    answer: Answer, leases: Mapping[tuple[str, str], Answer], namespace: str, now: datetime
) -> Iterator[Check]:
    """Operators that run. `leases`: of each Deployment, by namespace and Deployment."""
    if isinstance(answer, RlfleetError):
        yield unread("operator", answer)
        return
    if not answer["items"]:
        yield fail("operator", "there is no Deployment of rlfleet's operator", INSTALL)
    for one in answer["items"]:
        where, name = one["metadata"]["namespace"], one["metadata"]["name"]
        ready = (one.get("status") or {}).get("readyReplicas", 0)
        wanted = one["spec"].get("replicas", 1)
        image = one["spec"]["template"]["spec"]["containers"][0].get("image", "")
        message = f"{ready} of {wanted} replicas of {where}/{name} are ready, image {image}"
        if ready:
            yield ok("operator", message)
        else:
            yield fail("operator", message, f"kubectl -n {where} describe deployment {name}")
        if found := unfollowed(one, namespace):
            watched = argument(one, "--namespaces")
            remedy = f"add {namespace!r} to watchNamespaces of the chart, or use one of {watched}"
            yield warn("operator", found, remedy)
        yield _lease_check(leases[where, name], f"{where}/{name}", now)


def lacks_pods(deployment: Json) -> bool:
    """Whether a pod of a Deployment is not available, also one of a new template."""
    status = deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    return bool(status.get("unavailableReplicas")) or status.get("readyReplicas", 0) < wanted


def unfollowed(deployment: Json, namespace: str) -> str:
    """That an operator does not follow a namespace; empty if it does."""
    watched = argument(deployment, "--namespaces")
    if not watched or namespace in watched.split(","):
        return ""
    place = deployment["metadata"]
    return f"{place['namespace']}/{place['name']} does not follow namespace {namespace!r}, only {watched}"


def argument(deployment: Json, name: str) -> str:
    """The value of an argument of the operator; empty without it."""
    arguments = deployment["spec"]["template"]["spec"]["containers"][0].get("args") or ()
    values = (a.partition("=")[2] for a in arguments if a.startswith(f"{name}="))
    return next(values, "")


def _lease_check(answer: Answer, operator: str, now: datetime) -> Check:
    logs = f"read its log: kubectl -n {operator.partition('/')[0]} logs -l {OPERATOR} --prefix --tail=100"
    if isinstance(answer, NotFound):
        return fail("leader", f"no process of {operator} has become the leader", logs)
    if isinstance(answer, RlfleetError):
        return unread("leader", answer)
    if problem := problem_of(answer, now):
        clocks = "compare the clocks, then " if "renewed" in problem else ""
        return fail("leader", f"{operator}: {problem}", f"{clocks}{logs}")
    holder = answer["spec"]["holderIdentity"]
    return ok("leader", f"{holder} leads {operator}")


def rights_checks(allowed: Mapping[Right, bool | RlfleetError], namespace: str) -> Iterator[Check]:
    """Rights of this account in the namespace."""
    errors = [answer for answer in allowed.values() if isinstance(answer, RlfleetError)]
    if errors:
        yield unread("rights", errors[0])
        return
    granted: dict[str, list[str]] = {}
    for right in (right for right, allows in allowed.items() if allows):
        granted.setdefault(right.resource, []).append(right.verb)
    if granted:
        each = (f"{', '.join(verbs)} {resource}" for resource, verbs in granted.items())
        yield ok("rights", f"in namespace {namespace!r}: {'; '.join(each)}")
    for right, allows in allowed.items():
        if not allows:
            make = fail if right.needed else warn
            message = f"this account may not {right} in namespace {namespace!r}"
            yield make("rights", message, f"grant it: {right.serves} needs it")


def claims_of(fleet: Json) -> list[str]:
    """Names of the claims that a fleet's volumes name."""
    volumes = fleet["spec"].get("weights", {}).get("volumes") or ()
    claims = (v.get("persistentVolumeClaim") for v in volumes)
    return [claim["claimName"] for claim in claims if claim]


def storage_checks(
    fleets: Iterable[Json], claims: Mapping[str, Answer], classes: Answer
) -> Iterator[Check]:
    """Claims of the fleets. `claims`: by name. `classes`: the StorageClasses."""
    known = (
        None
        if isinstance(classes, RlfleetError)
        else [c["metadata"]["name"] for c in classes["items"]]
    )
    used = False
    for fleet in fleets:
        for claim in claims_of(fleet):
            used = True
            yield _claim_check(claims[claim], claim, fleet, known)
    if not used and known is not None:
        names = ", ".join(known)
        if names:
            yield ok("storage", f"storage classes: {names}")
        else:
            remedy = "name existing volumes in the fleet (nfs, csi, or a claim of a static volume)"
            yield warn("storage", "the cluster has no storage class", remedy)


def _claim_check(answer: Answer, name: str, fleet: Json, classes: list[str] | None) -> Check:
    what = f"claim {name} of fleet {fleet['metadata']['name']}"
    namespace = fleet["metadata"]["namespace"]
    if isinstance(answer, RlfleetError) and not isinstance(answer, NotFound):
        return unread("storage", answer)
    if isinstance(answer, NotFound) or "deletionTimestamp" in answer.get("metadata", {}):
        # In the words of the scheduler, so that `explain` does not repeat it.
        words, remedy = "is being deleted", "when no pod uses it, it is gone; then create it again"
        if isinstance(answer, NotFound):
            words, remedy = "not found", "create it"
        message = f'fleet {fleet["metadata"]["name"]}: persistentvolumeclaim "{name}" {words}'
        return fail("storage", message, f"{remedy} in namespace {namespace!r}")
    phase, spec = answer.get("status", {}).get("phase", "Pending"), answer["spec"]
    wanted = spec.get("storageClassName")
    if phase == "Pending" and wanted and classes is not None and wanted not in classes:
        message = f"{what} names the storage class {wanted!r}, which does not exist"
        return fail("storage", message, f"use one of: {', '.join(classes) or 'none exists'}")
    if phase != "Bound":
        make = warn if phase == "Pending" else fail
        look = f"kubectl -n {namespace} describe pvc {name}"
        return make("storage", f"{what} is {phase}", look)
    modes = spec.get("accessModes") or []
    if fleet["spec"].get("replicas", 1) > 1 and not {"ReadWriteMany", "ReadOnlyMany"} & {*modes}:
        message = f"{what} is {', '.join(modes)}: workers on several nodes cannot mount it"
        return warn("storage", message, "use a volume with ReadWriteMany or ReadOnlyMany")
    return ok("storage", f"{what} is bound")


def fleet_checks(fleets: Sequence[Json] | RlfleetError, namespace: str) -> Iterator[Check]:
    """Fleets that need attention. A missing kind is not said again."""
    if isinstance(fleets, RlfleetError):
        if not isinstance(fleets, NotFound):
            yield unread("fleets", fleets)
        return
    if not fleets:
        yield ok("fleets", f"namespace {namespace!r} has none yet")
    for fleet in fleets:
        name = fleet["metadata"]["name"]
        if stale := _true(fleet, "Stale"):
            message = f"{name} is stale, {stale['reason']}: {bounded(stale['message'], 1000)}"
            yield warn("fleets", message, f"rlfleet explain {name} -n {namespace}")
        if stalled := _true(fleet, "Stalled"):
            message = f"{name} is stalled, {stalled['reason']}: {bounded(stalled['message'], 1000)}"
            yield fail("fleets", message, f"rlfleet explain {stalled['reason']}")
        elif not fleet.get("status", {}).get("conditions"):
            remedy = "see the lines about the operator"
            yield warn("fleets", f"no operator has looked at {name} yet", remedy)
        else:
            yield ok("fleets", f"{name} is not stalled")


def ok(subject: str, message: str) -> Check:
    """A fact as it should be."""
    return Check(result=Result.OK, subject=subject, message=message)


def warn(subject: str, message: str, remedy: str) -> Check:
    """A fact that may be meant."""
    return Check(result=Result.WARN, subject=subject, message=message, remedy=remedy)


def fail(subject: str, message: str, remedy: str) -> Check:
    """A fact that stops fleets."""
    return Check(result=Result.FAIL, subject=subject, message=message, remedy=remedy)


def unread(subject: str, error: Answer) -> Check:
    """A fact that this account cannot see. It says nothing about the cluster."""
    message, _, remedy = str(error).partition("; ")
    return warn(subject, f"{_UNREAD}{message}", remedy or "try again")


def is_wrong(check: Check) -> bool:
    """Whether a check has found a fault."""
    return check.result is not Result.OK and not check.message.startswith(_UNREAD)


def problem_of(lease: Json, now: datetime) -> str:
    """Why no process leads; empty if a leader renews the Lease. Source: Kubernetes coordination/v1."""
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or not renewed:
        return "no process is the leader"
    age = now - datetime.fromisoformat(renewed)
    duration = timedelta(seconds=spec.get("leaseDurationSeconds") or _DURATION_SECONDS)
    if age > LATE_AFTER_DURATIONS * duration:
        return f"the leader {holder} has not renewed its Lease for {age.total_seconds():.0f} s"
    return ""
