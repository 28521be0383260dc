"""Every write is guarded, counted, and not repeated without need."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from tests.support.builders import FLEET_UID, NOW, build_pod, make_fleet, make_worker, target
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.manifests.pod_view import pod_view
from fleet_operator.core.manifests.pods import owner_reference
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.pod_actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    Quarantine,
)
from fleet_operator.errors import Conflict, NameTaken, Retryable, Terminal
from fleet_operator.runtime.admin_token import AdminToken
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.kube_pods import KubePods
from fleet_operator.runtime.metrics import Metrics
from fleet_worker.admin.guard import BearerFile
from rlfleet_resources import names

POD_PATH = "/api/v1/namespaces/rl/pods/policy-0"
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
GOING = [None, {"uid": "another"}, {"uid": FLEET_UID, "deletionTimestamp": "now"}]
"""Metadata of a fleet that the watch still shows, as the API server has it. None: gone."""


class Harness:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.kube = self.cluster.client()
        self.metrics = Metrics()
        self._start()

    def restart(self) -> None:
        """Another process continues, with nothing in memory."""
        self.kube = self.cluster.client()
        self._start()

    def _start(self) -> None:
        self.pods = KubePods(self.kube, self.metrics)
        self.children = KubeChildren(self.kube, self.metrics)
        self.token = AdminToken(self.kube, self.metrics.writes.labels("secret").inc)

    def count(self, kind: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f'rlfleet_api_writes_total{{kind="{kind}"}}'):
                return float(line.split()[-1])
        return 0


async def ensure_children(
    harness: Harness, observed: FleetObserved, applied: Checkpoint | None
) -> None:
    """Write every child, one after the other."""
    for write in harness.children.due(observed, applied).values():
        await write()


@pytest.fixture
def harness() -> Harness:
    return Harness()


def creation() -> CreatePod:
    manifest = build_pod(make_fleet(replicas=1), 0, "image", revision="r")
    return CreatePod(pod_name="policy-0", manifest=manifest, reason="a worker is missing")


class TestPods:
    async def test_a_pod_is_created(self, harness):
        await harness.pods.change("rl", creation())

        assert harness.cluster.objects[POD_PATH]["spec"]["hostname"] == "policy-0"
        assert harness.count("pod") == 1

    async def test_a_pod_whose_name_is_taken_waits_for_the_next_look(self, harness):
        await harness.pods.change("rl", creation())
        await harness.pods.change("rl", creation())

        assert harness.cluster.version == 101

    async def test_a_pod_is_deleted_by_its_uid_only(self, harness):
        await harness.pods.change("rl", creation())
        uid = harness.cluster.objects[POD_PATH]["metadata"]["uid"]
        await harness.pods.change("rl", DeletePod(pod_name="policy-0", pod_uid="other", reason=""))
        assert POD_PATH in harness.cluster.objects
        await harness.pods.change("rl", DeletePod(pod_name="policy-0", pod_uid=uid, reason=""))
        assert POD_PATH not in harness.cluster.objects
        await harness.pods.change("rl", DeletePod(pod_name="policy-0", pod_uid=uid, reason=""))

    async def test_a_quarantine_is_written_where_a_new_operator_finds_it(self, harness):
        await harness.pods.change("rl", creation())
        uid = harness.cluster.objects[POD_PATH]["metadata"]["uid"]
        action = Quarantine(pod_name="policy-0", pod_uid=uid, reason="does not answer")
        await harness.pods.change("rl", action)
        written = harness.cluster.objects[POD_PATH]

        assert written["metadata"]["labels"]["rlfleet.dev/traffic"] == "fenced"
        assert pod_view(written).quarantine == "does not answer"

    async def test_a_drain_is_written_where_a_new_operator_finds_it_and_taken_back(self, harness):
        await harness.pods.change("rl", creation())
        uid = harness.cluster.objects[POD_PATH]["metadata"]["uid"]
        begin = BeginDrain(
            pod_name="policy-0", pod_uid=uid, since=NOW, reason="the fleet has 1 replica now"
        )
        await harness.pods.change("rl", begin)
        written = harness.cluster.objects[POD_PATH]

        assert written["metadata"]["labels"]["rlfleet.dev/traffic"] == "draining"
        assert pod_view(written).drains_since == NOW
        await harness.pods.change("rl", EndDrain(pod_name="policy-0", pod_uid=uid, reason="wanted"))
        written = harness.cluster.objects[POD_PATH]

        assert written["metadata"]["labels"]["rlfleet.dev/traffic"] == "allowed"
        assert pod_view(written).drains_since is None

    @pytest.mark.parametrize("uid", ["other", None], ids=["made anew", "gone"])
    async def test_a_quarantine_affects_no_other_pod(self, harness, uid):
        if uid is not None:
            await harness.pods.change("rl", creation())
        action = Quarantine(pod_name="policy-0", pod_uid="other", reason="does not answer")
        await harness.pods.change("rl", action)

        stored = harness.cluster.objects.get(POD_PATH)
        assert stored is None or "annotations" not in stored["metadata"]

    @pytest.mark.parametrize(
        ("fleet", "is_adopted"),
        [
            pytest.param({"uid": "fleet-uid"}, True, id="the fleet stays"),
            pytest.param({"uid": "fleet-uid", "deletionTimestamp": "now"}, False, id="it goes"),
            pytest.param({"uid": "another"}, False, id="it was made anew"),
            pytest.param(None, False, id="it is gone"),
        ],
    )
    async def test_a_pod_without_an_owner_is_adopted_by_a_fleet_that_stays(
        self, harness, fleet, is_adopted
    ):
        orphan = creation()
        del orphan.manifest["metadata"]["ownerReferences"]
        await harness.pods.change("rl", orphan)
        if fleet is not None:
            harness.cluster.put(FLEET_PATH, {"metadata": fleet})
        owner = owner_reference(make_fleet()) | {"uid": "fleet-uid"}
        uid = harness.cluster.objects[POD_PATH]["metadata"]["uid"]
        action = AdoptPod(
            pod_name="policy-0", pod_uid=uid, owner=owner, reason="it belongs to nobody"
        )
        await harness.pods.change("rl", action)

        owners = harness.cluster.objects[POD_PATH]["metadata"].get("ownerReferences", [])
        assert owners == ([owner] if is_adopted else [])


def writes(harness) -> list[tuple[str, str]]:
    return [r for r in harness.kube.requests if r[0] != "GET"]


@pytest.fixture
def owned(harness: Harness) -> Harness:
    """With the fleet that the children belong to."""
    harness.cluster.put(FLEET_PATH, {"metadata": {"uid": FLEET_UID}})
    return harness


class TestChildren:
    OBSERVED = make_fleet(make_worker().serving("1"))

    async def test_services_and_the_applied_version_are_made(self, owned):
        await ensure_children(owned, self.OBSERVED, target("41"))

        assert sorted(
            p.partition("/namespaces/rl/")[2] for p in owned.cluster.objects if p != FLEET_PATH
        ) == [
            "configmaps/policy-applied",
            "poddisruptionbudgets/policy",
            "services/policy",
            "services/policy-workers",
        ]
        assert owned.count("child") == 4

    async def test_only_changed_objects_are_written(self, owned):
        await ensure_children(owned, self.OBSERVED, target("41"))
        await ensure_children(owned, self.OBSERVED, target("42"))

        assert writes(owned)[4:] == [("APPLY", "/api/v1/namespaces/rl/configmaps/policy-applied")]

    async def test_all_objects_are_read_again_at_times_and_only_changed_ones_are_written(
        self, owned
    ):
        await ensure_children(owned, self.OBSERVED, target("41"))
        owned.children.forget_written()
        await ensure_children(owned, self.OBSERVED, target("41"))
        assert len(writes(owned)) == 4

        service = "/api/v1/namespaces/rl/services/policy"
        owned.cluster.objects[service]["spec"]["selector"] = {"app": "another"}
        owned.children.forget_written()
        await ensure_children(owned, self.OBSERVED, target("41"))
        assert writes(owned)[4:] == [("APPLY", service)]

    async def test_a_service_option_that_was_removed_while_no_operator_ran_goes(self, owned):
        options = {"annotations": {"dns": "x.example.com"}, "sessionAffinity": "ClientIP"}
        before = make_fleet(make_worker().serving("1"), serving={"service": options})
        await ensure_children(owned, before, target("41"))
        found = owned.cluster.objects["/api/v1/namespaces/rl/services/policy"]
        assert (found["metadata"]["annotations"], found["spec"]["sessionAffinity"]) == (
            {"dns": "x.example.com"},
            "ClientIP",
        )

        owned.restart()
        await ensure_children(owned, self.OBSERVED, target("41"))
        assert writes(owned) == [("APPLY", "/api/v1/namespaces/rl/services/policy")]
        found = owned.cluster.objects["/api/v1/namespaces/rl/services/policy"]
        assert "annotations" not in found["metadata"]
        assert "sessionAffinity" not in found["spec"]

    async def test_a_digest_that_is_no_longer_known_leaves_where_workers_start(self, owned):
        named = replace(target("41"), digest="sha256:" + "0" * 64, run_id="run-7")
        await ensure_children(owned, self.OBSERVED, named)
        owned.restart()
        await ensure_children(owned, self.OBSERVED, target("41"))

        found = owned.cluster.objects["/api/v1/namespaces/rl/configmaps/policy-applied"]
        assert set(found["data"]) == {"version", "path"}

    async def test_annotations_that_others_add_are_left(self, owned):
        await ensure_children(owned, self.OBSERVED, target("41"))
        found = owned.cluster.objects["/api/v1/namespaces/rl/services/policy"]
        found["metadata"]["annotations"] = {"added": "by another"}
        owned.restart()
        await ensure_children(owned, self.OBSERVED, target("41"))

        assert writes(owned) == []

    async def test_a_write_that_failed_is_tried_again(self, owned):
        owned.kube.error = Terminal("403")
        with pytest.raises(Terminal):
            await ensure_children(owned, self.OBSERVED, target("41"))
        owned.kube.error = None
        await ensure_children(owned, self.OBSERVED, target("41"))

        assert len(owned.cluster.objects) == 1 + 4

    @pytest.mark.parametrize("left", [True, False], ids=["left to nobody", "taken away"])
    async def test_a_fleet_that_goes_takes_nothing_back(self, owned, left):
        await ensure_children(owned, self.OBSERVED, target("41"))
        service = "/api/v1/namespaces/rl/services/policy"
        if left:
            del owned.cluster.objects[service]["metadata"]["ownerReferences"]
        else:
            owned.cluster.drop(service)
        going = {"uid": FLEET_UID, "deletionTimestamp": "now"}
        owned.cluster.put(FLEET_PATH, {"metadata": going})
        owned.children.forget_written()
        await ensure_children(owned, self.OBSERVED, target("41"))

        assert len(writes(owned)) == 4
        found = owned.cluster.objects.get(service)
        assert found is None or "ownerReferences" not in found["metadata"]


SERVICE = "/api/v1/namespaces/rl/services/policy"
CONFIG_MAP = "/api/v1/namespaces/rl/configmaps/policy-applied"
BUDGET = "/apis/policy/v1/namespaces/rl/poddisruptionbudgets/policy"
OTHERS = "/api/v1/namespaces/rl/services/policy-workers"
STATEFUL_SET = {
    "apiVersion": "apps/v1",
    "kind": "StatefulSet",
    "name": "policy",
    "uid": "sts-1",
    "controller": True,
}


def foreign(path: str, **metadata: Any) -> dict[str, Any]:
    """An object that was there before the fleet."""
    given = {"name": path.rpartition("/")[2], "namespace": "rl", "uid": "foreign-1"}
    return {"metadata": given | metadata, "spec": {"selector": {"app": "another"}}}


class TestObjectsOfOthers:
    OBSERVED = make_fleet(make_worker().serving("1"))

    @pytest.mark.parametrize(
        "metadata",
        [
            pytest.param({}, id="no owner"),
            pytest.param({"ownerReferences": [STATEFUL_SET]}, id="another controller"),
            pytest.param(
                {"ownerReferences": [STATEFUL_SET], "labels": names.fleet_labels("policy")},
                id="another controller, and our labels",
            ),
            pytest.param(
                {"labels": names.fleet_labels("another")}, id="no owner, labels of another fleet"
            ),
            pytest.param(
                {"ownerReferences": [owner_reference(make_fleet()) | {"name": "x", "uid": "x-1"}]},
                id="another fleet",
            ),
        ],
    )
    @pytest.mark.parametrize("path", [SERVICE, OTHERS, CONFIG_MAP, BUDGET])
    async def test_an_object_of_something_else_is_left_as_it_is_and_named(
        self, owned, path, metadata
    ):
        before = owned.cluster.put(path, foreign(path, **metadata))
        errors: list[Exception] = []
        for write in owned.children.due(self.OBSERVED, target("41")).values():
            try:
                await write()
            except NameTaken as error:
                errors.append(error)

        assert owned.cluster.objects[path] == before
        (error,) = errors
        assert f" {path.rpartition('/')[2]} exists already" in str(error)
        assert len(writes(owned)) == 3, "the other children are written"

    async def test_objects_that_an_orphaning_deletion_left_are_adopted_by_their_labels(self, owned):
        labels = names.fleet_labels("policy")
        owned.cluster.put(SERVICE, foreign(SERVICE, labels=labels))
        await ensure_children(owned, self.OBSERVED, target("41"))

        (owner,) = owned.cluster.objects[SERVICE]["metadata"]["ownerReferences"]
        assert owner["uid"] == FLEET_UID

    async def test_objects_of_an_earlier_fleet_of_the_same_name_are_adopted(self, owned):
        earlier = owner_reference(make_fleet()) | {"uid": "fleet-0"}
        owned.cluster.put(SERVICE, foreign(SERVICE, ownerReferences=[earlier]))
        await ensure_children(owned, self.OBSERVED, target("41"))

        (owner,) = owned.cluster.objects[SERVICE]["metadata"]["ownerReferences"]
        assert owner["uid"] == FLEET_UID

    async def test_an_object_that_took_the_name_meanwhile_is_not_written(self, owned):
        await ensure_children(owned, self.OBSERVED, target("41"))
        owned.cluster.drop(CONFIG_MAP)
        before = owned.cluster.put(CONFIG_MAP, foreign(CONFIG_MAP))
        with pytest.raises(Terminal, match="field is immutable"):
            await ensure_children(owned, self.OBSERVED, target("42"))
        with pytest.raises(NameTaken):
            await ensure_children(owned, self.OBSERVED, target("42"))

        assert owned.cluster.objects[CONFIG_MAP] == before

    @pytest.mark.parametrize("path", [SERVICE, OTHERS, CONFIG_MAP, BUDGET])
    async def test_an_object_that_took_the_name_between_the_read_and_the_first_write_is_left(
        self, owned, path
    ):
        """The operator has found no object of the name, and looks at its fleet last."""

        def create_meanwhile(verb: str, asked: str) -> None:
            if (verb, asked) == ("GET", FLEET_PATH) and owned.kube.requests[-2] == ("GET", path):
                owned.cluster.put(path, foreign(path))

        owned.kube.refuses = create_meanwhile
        errors: list[Exception] = []
        for _ in range(2):
            for write in owned.children.due(self.OBSERVED, target("41")).values():
                try:
                    await write()
                except (Conflict, NameTaken) as error:
                    errors.append(error)

        assert "ownerReferences" not in owned.cluster.objects[path]["metadata"]
        assert owned.cluster.objects[path]["spec"] == {"selector": {"app": "another"}}
        assert [type(e) for e in errors] == [Conflict, NameTaken]

    async def test_a_pods_name_that_is_taken_is_named(self, owned):
        owned.cluster.put(POD_PATH, foreign(POD_PATH, ownerReferences=[STATEFUL_SET]))
        with pytest.raises(NameTaken, match="belongs to StatefulSet policy"):
            await owned.pods.change("rl", creation())

    async def test_a_pods_name_whose_holder_goes_is_waited_for(self, owned):
        going = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
        owned.cluster.put(POD_PATH, foreign(POD_PATH, ownerReferences=[STATEFUL_SET], **going))

        await owned.pods.change("rl", creation())


async def test_a_token_is_long_and_never_logged(owned, caplog):
    caplog.set_level("DEBUG")
    await owned.token.read(make_fleet())
    token = owned.token.last

    assert len(token) >= 32
    assert token not in caplog.text
    await owned.token.read(make_fleet())
    assert owned.token.last == token
    assert owned.count("secret") == 1


@pytest.mark.parametrize("fleet", GOING, ids=str)
async def test_a_fleet_that_goes_gets_no_secret(harness, fleet):
    if fleet is not None:
        harness.cluster.put(FLEET_PATH, {"metadata": fleet})
    with pytest.raises(Retryable, match="InferenceFleet policy is gone or being deleted"):
        await harness.token.read(make_fleet())

    assert writes(harness) == []


SECRET_PATH = "/api/v1/namespaces/rl/secrets/policy-admin-token"


def secret_of(harness: Harness, held: bytes) -> None:
    data = {"token": base64.b64encode(held).decode()}
    harness.cluster.put(SECRET_PATH, {"metadata": {"name": "policy-admin-token"}, "data": data})


@pytest.mark.parametrize(
    ("held", "token"),
    [
        pytest.param(b"abc", "abc", id="bare"),
        pytest.param(b"abc\n", "abc", id="as `echo` writes it"),
        pytest.param(b"abc\r\n", "abc", id="as Windows writes it"),
        pytest.param(b"old\nnew\n", "old", id="two, while they are exchanged"),
        pytest.param(b"\n\n  abc  \n", "abc", id="among empty lines"),
    ],
)
async def test_a_token_written_by_hand_is_read_as_the_workers_read_it(
    harness, tmp_path, held, token
):
    secret_of(harness, held)
    (tmp_path / "token").write_bytes(held)

    await harness.token.read(make_fleet())
    assert harness.token.last == token
    assert BearerFile(tmp_path / "token").accepts(f"Bearer {token}")


@pytest.mark.parametrize(
    "held", [b"", b"\n", b" \t ", b"a\x00b", b"\xff\xfe", "schlüssel".encode(), b"a\tb"]
)
async def test_a_token_that_no_header_can_hold_is_reported_without_the_token(harness, held):
    """The HTTP library would repeat it in its error, and statuses contain the error."""
    secret_of(harness, held)
    with pytest.raises(Terminal, match="Secret policy-admin-token holds no token") as refused:
        await harness.token.read(make_fleet())

    assert "schl" not in str(refused.value)
