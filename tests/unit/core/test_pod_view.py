"""The few facts of a pod that decisions need, out of what the API server says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet_operator.core.manifests.pod_view import pod_view
from fleet_operator.core.pod_waits import Awaited
from fleet_operator.core.worker_view import PodView
from rlfleet_resources import names


def pod(
    *,
    conditions: tuple[dict[str, str], ...] = (),
    container: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    **status: Any,
) -> dict[str, Any]:
    labels = {names.LABEL_FLEET: "policy", names.LABEL_ORDINAL: "3", names.LABEL_REVISION: "abc"}
    found: dict[str, Any] = {
        "metadata": {"uid": "u", "name": "policy-3", "labels": labels} | (metadata or {}),
        "spec": {"nodeName": "node-1"},
        "status": {"phase": "Running", "podIP": "10.0.0.9", "conditions": list(conditions)}
        | status,
    }
    if container is not None:
        sidecar = {"name": "sidecar", "state": {"running": {}}, "restartCount": 9}
        found["status"]["containerStatuses"] = [sidecar, {"name": "worker"} | container]
    return found


def waiting(reason: str, message: str = "", **more: Any) -> dict[str, Any]:
    state = {"reason": reason} | ({"message": message} if message else {})
    return {"state": {"waiting": state}, "restartCount": 1} | more


AT = "2026-03-01T11:50:00Z"
LATER = "2026-03-01T11:55:00Z"


def unscheduled(**state: str) -> tuple[dict[str, str], ...]:
    return ({"type": "PodScheduled", "status": "False"} | state,)


def moved(kind: str, at: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "lastTransitionTime": at}


def test_a_running_pod_has_the_required_facts():
    view = pod_view(
        pod(
            conditions=({"type": "Ready", "status": "True"},),
            container={"state": {"running": {"startedAt": "x"}}, "restartCount": 2},
        )
    )

    assert (view.uid, view.name, view.ordinal, view.revision) == ("u", "policy-3", 3, "abc")
    assert (view.ip, view.node, view.phase) == ("10.0.0.9", "node-1", "Running")
    assert (view.running, view.ready, view.deleting) == (True, True, False)
    assert (view.restarts, view.problem, view.quarantine) == (2, "", "")


def test_a_pod_has_the_zone_that_the_api_server_copies_from_its_node():
    zone = {"topology.kubernetes.io/zone": "eu-1a"}

    assert pod_view(pod(metadata={"labels": zone})).zone == "eu-1a"
    assert pod_view(pod()).zone == ""


def test_a_new_pod_is_pending_without_a_problem():
    made = {"metadata": {"uid": "u", "name": "policy-0"}, "spec": {}, "status": {}}

    view = pod_view(made)

    assert (view.phase, view.ip, view.running, view.ready) == ("Pending", None, False, False)
    assert view.problem == ""


@pytest.mark.parametrize(
    ("state", "started"),
    [
        ({"started": True}, True),
        ({"started": False}, False),
        ({}, False),
        ({"started": None}, False),
    ],
)
def test_a_process_is_up_after_its_startup_probe(state, started):
    container = {"state": {"running": {}}, "restartCount": 0} | state

    assert pod_view(pod(container=container)).started is started


def test_a_pod_with_a_deletion_timestamp_is_terminating():
    assert pod_view(pod(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})).deleting


@pytest.mark.parametrize(
    ("status", "reason", "evicted"),
    [
        ("True", "DeletionByTaintManager", True),
        ("False", "DeletionByTaintManager", False),
        ("True", "PreemptionByScheduler", False),
    ],
)
def test_a_pod_of_a_lost_node_differs_from_other_deleted_pods(status, reason, evicted):
    disrupted = {"type": "DisruptionTarget", "status": status, "reason": reason}

    assert pod_view(pod(conditions=(disrupted,))).evicted is evicted
    assert not pod_view(pod()).evicted


@pytest.mark.parametrize(
    "reason",
    [
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    ],
)
def test_a_reason_that_keeps_a_container_from_its_start_is_reported_in_the_clusters_words(reason):
    found = pod(container=waiting(reason, 'secret "x" not found'))

    assert pod_view(found).problem == f'{reason}: secret "x" not found'


CRASHES = {
    "with a reason": ({"exitCode": 1, "reason": "Error"}, "1 Error"),
    "with last words": ({"exitCode": 2, "message": "no model", "reason": "Error"}, "2 no model"),
    "with a log": ({"exitCode": 1, "message": "Traceback\n  x\nOSError\n\n"}, "1 OSError"),
    "with a line in JSON": ({"exitCode": 1, "message": '{"message": "no", "at": "02:16"}'}, "1 no"),
    "with escapes": ({"exitCode": 1, "message": '{"message": "a\\n \\ud83d"}'}, "1 a ?"),
    "without words": ({"exitCode": 137}, "137"),
}


@pytest.mark.parametrize(("end", "words"), CRASHES.values(), ids=CRASHES)
def test_a_crash_has_its_code_and_the_end_of_its_log_without_a_time(end, words):
    """A time would be another one after each restart, and a line break would break the status."""
    loop = waiting("CrashLoopBackOff", "back-off 10s", lastState={"terminated": end})
    found = pod_view(pod(container=loop))

    assert found.problem == f"CrashLoopBackOff: it last ended with exit code {words}"


INIT = {"name": "fetch"} | waiting("CreateContainerError", "no such file")


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (pod(container=waiting("CrashLoopBackOff")), "CrashLoopBackOff"),
        (pod(phase="Failed", reason="Evicted", message="low on memory"), "Evicted: low on memory"),
        (pod(phase="Failed"), "Failed"),
        (
            pod(container=waiting("PodInitializing"), initContainerStatuses=[INIT]),
            "CreateContainerError: no such file",
        ),
        (pod(container=waiting("ContainerCreating")), ""),
        (pod(container=waiting("PodInitializing")), ""),
    ],
)
def test_a_problem_is_reported_in_the_clusters_words(found, problem):
    assert pod_view(found).problem == problem


def unplaced(reason: str, message: str) -> dict[str, Any]:
    return pod(conditions=unscheduled(reason=reason, message=message, lastTransitionTime=AT))


def pulling(reason: str, message: str = "", *conditions: dict[str, str]) -> dict[str, Any]:
    return pod(container=waiting(reason, message), conditions=conditions)


def preparing(*conditions: dict[str, str], init: tuple[Any, ...] = ()) -> dict[str, Any]:
    """A pod whose init containers have not ended."""
    worker = waiting("PodInitializing")
    return pod(container=worker, conditions=conditions, initContainerStatuses=list(init))


PLACED, INITIALIZED, UNINITIALIZED = (
    moved("PodScheduled", AT),
    moved("Initialized", AT),
    moved("Initialized", AT, "False"),
)
STARTS, NOT_YET = (
    moved("PodReadyToStartContainers", LATER),
    moved("PodReadyToStartContainers", LATER, "False"),
)
NO_CLAIM = 'persistentvolumeclaim "w" not found. not found'
RUNS_BESIDE = {"name": "proxy", "started": True, "state": {"running": {}}}
HAS_ENDED = {"name": "a", "state": {"terminated": {"exitCode": 0, "finishedAt": LATER}}}
COMES_NEXT = {"name": "b"} | waiting("PodInitializing")
WAITS = {
    "no node fits": (
        unplaced("Unschedulable", "0/3 nodes"),
        Awaited.NODE,
        "Unschedulable: 0/3 nodes",
        AT,
    ),
    "a claim is missing, and no node would help": (
        unplaced("Unschedulable", NO_CLAIM),
        Awaited.VOLUMES,
        f"Unschedulable: {NO_CLAIM}",
        AT,
    ),
    "it is not scheduled, without a reason": (
        pod(conditions=unscheduled()),
        Awaited.NODE,
        "Unscheduled",
        None,
    ),
    "a queue holds it back": (
        unplaced("SchedulingGated", "it is blocked"),
        Awaited.GATE,
        "SchedulingGated: it is blocked",
        AT,
    ),
    "the first pull failed: since the kubelet began with the pod": (
        pulling("ErrImagePull", "timeout", PLACED, STARTS, moved("Ready", AT, "False")),
        Awaited.IMAGE,
        "ErrImagePull: timeout",
        LATER,
    ),
    "the pull is tried again later": (
        pulling("ImagePullBackOff", "Back-off"),
        Awaited.IMAGE,
        "ImagePullBackOff: Back-off",
        None,
    ),
    "other conditions do not concern the pull": (
        pulling("ErrImagePull", "", PLACED, moved("example.com/gate", LATER)),
        Awaited.IMAGE,
        "ErrImagePull",
        AT,
    ),
    "an init container's image": (
        preparing(init=({"name": "a"} | waiting("RegistryUnavailable", "503"),)),
        Awaited.IMAGE,
        "RegistryUnavailable: 503",
        None,
    ),
    "a volume that cannot be mounted": (
        pulling("ContainerCreating", "", PLACED, NOT_YET, INITIALIZED),
        Awaited.VOLUMES,
        "ContainerCreating",
        LATER,
    ),
    "a volume, before the init containers": (
        preparing(NOT_YET, UNINITIALIZED, init=(COMES_NEXT,)),
        Awaited.VOLUMES,
        "PodInitializing",
        LATER,
    ),
    "a pull that hangs": (
        pulling("ContainerCreating", "", PLACED, STARTS),
        Awaited.IMAGE,
        "ContainerCreating",
        LATER,
    ),
    "no reason": (pod(container={"state": {"waiting": {}}}), Awaited.IMAGE, "Waiting", None),
    "a reason that is not known to be a problem": (
        pulling("ImageInspectError", "x"),
        Awaited.IMAGE,
        "ImageInspectError: x",
        None,
    ),
    "a sidecar runs, the worker does not yet": (
        preparing(PLACED, moved("Initialized", LATER), init=(RUNS_BESIDE,)),
        Awaited.IMAGE,
        "PodInitializing",
        LATER,
    ),
    "between two init containers: since the first one has ended": (
        preparing(PLACED, UNINITIALIZED, init=(HAS_ENDED, COMES_NEXT)),
        Awaited.IMAGE,
        "PodInitializing",
        LATER,
    ),
}


@pytest.mark.parametrize(("found", "awaited", "message", "since"), WAITS.values(), ids=WAITS)
def test_a_waiting_pod_has_the_cause_and_its_start(found, awaited, message, since):
    view = pod_view(found)

    assert view.wait is not None
    assert (view.wait.awaited, str(view.wait)) == (awaited, message)
    assert view.wait.since == (datetime.fromisoformat(since) if since else None)
    assert view.problem == ""


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(pod(conditions=(PLACED,)), id="it is scheduled"),
        pytest.param(pod(container={"state": {"running": {}}}), id="it runs"),
        pytest.param(pod(container={"state": {"terminated": {}}}), id="it is started again"),
        pytest.param(
            preparing(PLACED, UNINITIALIZED, init=({"name": "a", "state": {"running": {}}},)),
            id="an init container runs, however long",
        ),
        pytest.param(pod(container=waiting("InvalidImageName", "x")), id="it has problem"),
        pytest.param(pod(conditions=unscheduled(), phase="Failed"), id="it has ended"),
    ],
)
def test_a_pod_that_does_not_wait_has_no_cause(found):
    assert pod_view(found).wait is None


def ended(seconds: float, **more: Any) -> dict[str, Any]:
    """The last run of a container, with its length."""
    end = datetime.fromisoformat(AT)
    times = {"startedAt": (end - timedelta(seconds=seconds)).isoformat(), "finishedAt": AT}
    return {"lastState": {"terminated": {"exitCode": 1, "message": "no model"} | times | more}}


RUNS: dict[str, Any] = {"state": {"running": {}}}
STOPS: dict[str, Any] = {"state": {"terminated": {"exitCode": 1}}}
LOOP = "CrashLoopBackOff: it last ended with exit code 1 no model"


@pytest.mark.parametrize(
    ("container", "problem"),
    [
        pytest.param(waiting("CrashLoopBackOff", "back-off 10s") | ended(20), LOOP, id="it waits"),
        pytest.param(RUNS | {"restartCount": 2} | ended(20), LOOP, id="it runs again"),
        pytest.param(STOPS | {"restartCount": 2} | ended(20), LOOP, id="it has ended again"),
        pytest.param(RUNS | {"restartCount": 1} | ended(20), "", id="it has crashed once"),
        pytest.param(RUNS | {"restartCount": 2, "started": True} | ended(20), "", id="it is up"),
        pytest.param(RUNS | {"restartCount": 9} | ended(3600), "", id="it ran for long"),
        pytest.param(RUNS | {"restartCount": 9}, "", id="its last end is not known"),
    ],
)
def test_a_container_that_keeps_ending_has_one_problem_until_it_is_up(container, problem):
    """The fleet was stalled and recovered at each restart, with another wait of the kubelet in each message."""
    assert pod_view(pod(container=container)).problem == problem


@pytest.mark.parametrize(
    ("ready_until", "problem"),
    [
        pytest.param(-1, LOOP, id="its pod was not ready in a run of an hour"),
        pytest.param(1, "", id="it was ready in its last run"),
    ],
)
def test_a_start_that_fails_is_a_problem_however_long_it_takes(ready_until, problem):
    """Ends more than 10 minutes apart were a fleet that waits for its engine, without an end."""
    began = datetime.fromisoformat(AT) - timedelta(hours=1)
    at = (began + timedelta(seconds=ready_until)).isoformat()
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": at}
    view = pod_view(pod(container=RUNS | {"restartCount": 2} | ended(3600), conditions=[ready]))

    assert view.problem == problem


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        pytest.param(RUNS | {"restartCount": 0}, "", id="its first run"),
        pytest.param(RUNS | {"restartCount": 3, "started": True} | ended(20), "", id="it is up"),
        pytest.param(
            RUNS | {"restartCount": 1} | ended(20),
            "restarted 1 time; it last ended with exit code 1 no model",
            id="it starts again",
        ),
        pytest.param(
            RUNS | {"restartCount": 2} | ended(20, reason="OOMKilled", exitCode=137),
            "restarted 2 times; it last ended with exit code 137 OOMKilled: no model",
            id="its last log line does not know that it was killed",
        ),
    ],
)
def test_a_worker_that_starts_again_says_how_often_and_why(container, expected):
    assert pod_view(pod(container=container)).starts_again == expected


@pytest.mark.parametrize(
    ("written", "quarantine"),
    [
        pytest.param(json.dumps({"reason": "does not answer"}), "does not answer", id="as written"),
        pytest.param("by hand", "by hand", id="invalid text"),
        pytest.param("[]", "[]", id="a list is taken as words"),
        pytest.param("{}", "{}", id="without a reason it counts all the same"),
        pytest.param("x" * 1300, "x" * 1000, id="long words are cut"),
        pytest.param(
            json.dumps({"reason": "x" * 1300}), "x" * 1000, id="a long reason is cut, too"
        ),
        pytest.param('{"reason": "\\ud800"}', "?", id="what UTF-8 cannot hold is replaced"),
        pytest.param("[" * 100_000, "[" * 1000, id="whoever nests it does not end the operator"),
    ],
)
def test_a_quarantine_is_read_from_the_annotation(written, quarantine):
    metadata = {"annotations": {names.ANNOTATION_QUARANTINE: written}}

    assert pod_view(pod(metadata=metadata)).quarantine == quarantine


DEEP = """
import sys
from fleet_operator.__main__ import _NESTED
from fleet_operator.core.manifests.pod_view import pod_view

sys.setrecursionlimit(_NESTED)
text = "[" * 250_000
marks = {"rlfleet.dev/quarantine": text, "rlfleet.dev/drain": text}
end = {"lastState": {"terminated": {"exitCode": 1, "message": text}}}
status = {"containerStatuses": [{"name": "worker", "state": {"waiting": {"reason": "CrashLoopBackOff"}}} | end]}
view = pod_view({"metadata": {"uid": "u", "name": "p", "annotations": marks}, "status": status})
print(view.quarantine[:3], view.drains_since.year, view.problem[-3:])
"""


def test_no_text_of_a_pod_ends_the_operator_whose_limit_of_recursion_is_raised():
    """One annotation ended it in C, for all tenants, and again after each start."""
    ended = subprocess.run(
        [sys.executable, "-c", DEEP],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stdout) == (0, "[[[ 1970 [[[\n"), ended.stderr


@pytest.mark.parametrize(
    ("written", "since"),
    [
        pytest.param(None, None, id="no mark"),
        pytest.param(
            '{"since": "2026-03-01T12:00:00+00:00", "reason": "x"}',
            datetime(2026, 3, 1, 12, tzinfo=UTC),
            id="a mark",
        ),
        pytest.param("[]", datetime(1970, 1, 1, tzinfo=UTC), id="no object"),
        pytest.param("{}", datetime(1970, 1, 1, tzinfo=UTC), id="no time"),
        pytest.param('{"since": 7}', datetime(1970, 1, 1, tzinfo=UTC), id="a number"),
        pytest.param(
            '{"since": "2026-03-01T12:00:00"}', datetime(1970, 1, 1, tzinfo=UTC), id="no zone"
        ),
        pytest.param("{" * 5000, datetime(1970, 1, 1, tzinfo=UTC), id="no JSON"),
    ],
)
def test_the_start_of_a_drain_is_read_from_the_annotation(written, since):
    annotations = {} if written is None else {"rlfleet.dev/drain": written}
    view = pod_view({"metadata": {"uid": "u", "name": "policy-0", "annotations": annotations}})

    assert view.drains_since == since


def marked(annotation: str, traffic: str | None) -> dict[str, Any]:
    """A pod with a mark of the operator, and with a label by which the Service selects it."""
    labels = {names.LABEL_TRAFFIC: traffic} if traffic else {}
    written = {annotation: '{"since": "2026-03-01T12:00:00+00:00", "reason": "it is silent"}'}
    metadata = {"uid": "u", "name": "policy-0", "labels": labels}
    return {"metadata": metadata | ({"annotations": written} if annotation else {})}


@pytest.mark.parametrize(
    ("annotation", "traffic", "drains", "quarantined"),
    [
        (names.ANNOTATION_DRAIN, names.TRAFFIC_DRAINING, True, False),
        (names.ANNOTATION_DRAIN, names.TRAFFIC_ALLOWED, False, False),
        (names.ANNOTATION_DRAIN, None, True, False),
        ("", names.TRAFFIC_DRAINING, True, False),
        (names.ANNOTATION_QUARANTINE, names.TRAFFIC_FENCED, False, True),
        (names.ANNOTATION_QUARANTINE, names.TRAFFIC_ALLOWED, False, False),
        (names.ANNOTATION_QUARANTINE, None, False, True),
        ("", names.TRAFFIC_FENCED, False, True),
        ("", names.TRAFFIC_ALLOWED, False, False),
    ],
)
def test_a_pod_that_the_service_selects_is_out_of_service_by_no_mark(
    annotation, traffic, drains, quarantined
):
    """The label decides: a webhook, or another controller, may have changed one of the two back."""
    view = pod_view(marked(annotation, traffic))

    assert (view.drains_since is not None, bool(view.quarantine)) == (drains, quarantined)


class TestALostNode:
    """The node controller takes `Ready` from the pods of a node that does not report, and nothing else."""

    def view(self, ready: str, containers: str, **more: str) -> PodView:
        conditions = (
            {"type": "Ready", "status": ready, "lastTransitionTime": AT} | more,
            {"type": "ContainersReady", "status": containers},
        )
        return pod_view(pod(conditions=conditions, container={"state": {"running": {}}}))

    def test_its_pods_wait_for_it(self):
        wait = self.view("False", "True").wait

        assert wait is not None
        assert (wait.awaited, wait.reason) == (Awaited.LOST_NODE, "NodeLost")
        assert wait.since == datetime.fromisoformat(AT)
        assert "node node-1 does not report" in wait.message
        assert "delete the Node" in wait.message

    @pytest.mark.parametrize(
        ("ready", "containers", "more"),
        [
            pytest.param("True", "True", {}, id="a ready pod"),
            pytest.param("False", "False", {}, id="an engine that starts"),
            pytest.param("False", "True", {"reason": "ReadinessGatesNotReady"}, id="an open gate"),
        ],
    )
    def test_no_other_pod_does(self, ready, containers, more):
        assert self.view(ready, containers, **more).wait is None
