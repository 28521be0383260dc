"""Every write is guarded, counted, and not repeated without need."""

from __future__ import annotations

import base64
import json

import pytest
from tests.support.builders import FLEET_UID, make_fleet, make_worker, target
from tests.support.fake_kube import FakeCluster

from fleet_operator.core.actions import AdoptPod, CreatePod, DeletePod, Quarantine
from fleet_operator.core.pod_view import pod_view
from fleet_operator.core.pods import build_pod, owner_reference
from fleet_operator.errors import Terminal
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects
from fleet_worker.wire.admin.bearer import BearerFile

POD_PATH = "/api/v1/namespaces/rl/pods/policy-0"
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"


class Desk:
    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.kube = self.cluster.client()
        self.metrics = Metrics()
        self.objects = Objects(self.kube, self.metrics)

    def count(self, kind: str) -> float:
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(f'rlfleet_api_writes_total{{kind="{kind}"}}'):
                return float(line.split()[-1])
        return 0


@pytest.fixture
def desk() -> Desk:
    return Desk()


def creation() -> CreatePod:
    manifest = build_pod(make_fleet(replicas=1), 0, "image", revision="r")
    return CreatePod(name="policy-0", manifest=manifest, reason="a worker is missing")


class TestPods:
    async def test_a_pod_is_created(self, desk):
        await desk.objects.change_pod("rl", creation())

        assert desk.cluster.objects[POD_PATH]["spec"]["hostname"] == "policy-0"
        assert desk.count("pod") == 1

    async def test_a_pod_whose_name_is_taken_waits_for_the_next_look(self, desk):
        await desk.objects.change_pod("rl", creation())
        await desk.objects.change_pod("rl", creation())

        assert desk.cluster.version == 101

    async def test_a_pod_is_deleted_by_its_uid_only(self, desk):
        await desk.objects.change_pod("rl", creation())
        uid = desk.cluster.objects[POD_PATH]["metadata"]["uid"]
        await desk.objects.change_pod("rl", DeletePod(name="policy-0", uid="other", reason=""))
        assert POD_PATH in desk.cluster.objects
        await desk.objects.change_pod("rl", DeletePod(name="policy-0", uid=uid, reason=""))
        assert POD_PATH not in desk.cluster.objects
        await desk.objects.change_pod("rl", DeletePod(name="policy-0", uid=uid, reason=""))

    async def test_a_quarantine_is_written_where_a_new_operator_finds_it(self, desk):
        await desk.objects.change_pod("rl", creation())
        uid = desk.cluster.objects[POD_PATH]["metadata"]["uid"]
        action = Quarantine(name="policy-0", uid=uid, reason="does not answer")
        await desk.objects.change_pod("rl", action)
        written = desk.cluster.objects[POD_PATH]

        assert written["metadata"]["labels"]["rlfleet.dev/traffic"] == "fenced"
        assert pod_view(written).quarantine == "does not answer"

    @pytest.mark.parametrize("uid", ["other", None], ids=["made anew", "gone"])
    async def test_a_quarantine_hits_nobody_else(self, desk, uid):
        if uid is not None:
            await desk.objects.change_pod("rl", creation())
        action = Quarantine(name="policy-0", uid="other", reason="does not answer")
        await desk.objects.change_pod("rl", action)

        stored = desk.cluster.objects.get(POD_PATH)
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
    async def test_a_pod_of_nobody_is_adopted_by_a_fleet_that_stays(self, desk, fleet, is_adopted):
        orphan = creation()
        del orphan.manifest["metadata"]["ownerReferences"]
        await desk.objects.change_pod("rl", orphan)
        if fleet is not None:
            desk.cluster.put(FLEET_PATH, {"metadata": fleet})
        owner = owner_reference(make_fleet()) | {"uid": "fleet-uid"}
        uid = desk.cluster.objects[POD_PATH]["metadata"]["uid"]
        action = AdoptPod(name="policy-0", uid=uid, owner=owner, reason="it belongs to nobody")
        await desk.objects.change_pod("rl", action)

        owners = desk.cluster.objects[POD_PATH]["metadata"].get("ownerReferences", [])
        assert owners == ([owner] if is_adopted else [])

    async def test_a_refusal_is_the_callers_to_handle(self, desk):
        desk.kube.error = Terminal("403")
        with pytest.raises(Terminal):
            await desk.objects.change_pod("rl", creation())


def writes(desk) -> list[tuple[str, str]]:
    return [r for r in desk.kube.requests if r[0] != "GET"]


@pytest.fixture
def owned(desk: Desk) -> Desk:
    """With the fleet that the children belong to."""
    desk.cluster.put(FLEET_PATH, {"metadata": {"uid": FLEET_UID}})
    return desk


class TestChildren:
    OBSERVED = make_fleet(make_worker().serving("1"))

    async def test_services_and_the_applied_version_are_made(self, owned):
        await owned.objects.ensure_children(self.OBSERVED, target("41"))

        assert sorted(
            p.partition("/namespaces/rl/")[2] for p in owned.cluster.objects if p != FLEET_PATH
        ) == [
            "configmaps/policy-applied",
            "poddisruptionbudgets/policy",
            "services/policy",
            "services/policy-workers",
        ]
        assert owned.count("child") == 4

    async def test_what_is_equal_is_not_written_again(self, owned):
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        await owned.objects.ensure_children(self.OBSERVED, target("41"))

        assert len(writes(owned)) == 4

    async def test_only_what_differs_is_written(self, owned):
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        await owned.objects.ensure_children(self.OBSERVED, target("42"))

        assert writes(owned)[4:] == [("APPLY", "/api/v1/namespaces/rl/configmaps/policy-applied")]

    async def test_now_and_then_all_is_looked_at_again_and_only_what_was_changed_is_written(
        self, owned
    ):
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        owned.objects.forget_written()
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        assert len(writes(owned)) == 4

        service = "/api/v1/namespaces/rl/services/policy"
        owned.cluster.objects[service]["spec"]["selector"] = {"app": "another"}
        owned.objects.forget_written()
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        assert writes(owned)[4:] == [("APPLY", service)]

    async def test_a_write_that_failed_is_tried_again(self, owned):
        owned.kube.error = Terminal("403")
        with pytest.raises(Terminal):
            await owned.objects.ensure_children(self.OBSERVED, target("41"))
        owned.kube.error = None
        await owned.objects.ensure_children(self.OBSERVED, target("41"))

        assert len(owned.cluster.objects) == 1 + 4

    @pytest.mark.parametrize("left", [True, False], ids=["left to nobody", "taken away"])
    async def test_a_fleet_that_goes_takes_nothing_back(self, owned, left):
        await owned.objects.ensure_children(self.OBSERVED, target("41"))
        service = "/api/v1/namespaces/rl/services/policy"
        if left:
            del owned.cluster.objects[service]["metadata"]["ownerReferences"]
        else:
            owned.cluster.drop(service)
        going = {"uid": FLEET_UID, "deletionTimestamp": "now"}
        owned.cluster.put(FLEET_PATH, {"metadata": going})
        owned.objects.forget_written()
        await owned.objects.ensure_children(self.OBSERVED, target("41"))

        assert len(writes(owned)) == 4
        found = owned.cluster.objects.get(service)
        assert found is None or "ownerReferences" not in found["metadata"]


async def test_a_token_is_long_and_never_logged(desk, caplog):
    caplog.set_level("DEBUG")
    token = await desk.objects.ensure_token(make_fleet())

    assert len(token) >= 32
    assert token not in caplog.text
    assert await desk.objects.ensure_token(make_fleet()) == token
    assert desk.count("secret") == 1


SECRET_PATH = "/api/v1/namespaces/rl/secrets/policy-admin-token"


def secret_of(desk: Desk, held: bytes) -> None:
    data = {"token": base64.b64encode(held).decode()}
    desk.cluster.put(SECRET_PATH, {"metadata": {"name": "policy-admin-token"}, "data": data})


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
async def test_a_token_that_a_person_wrote_is_read_as_the_workers_read_it(
    desk, tmp_path, held, token
):
    secret_of(desk, held)
    (tmp_path / "token").write_bytes(held)

    assert await desk.objects.ensure_token(make_fleet()) == token
    assert BearerFile(tmp_path / "token").accepts(f"Bearer {token}")


@pytest.mark.parametrize(
    "held", [b"", b"\n", b" \t ", b"a\x00b", b"\xff\xfe", "schlüssel".encode(), b"a\tb"]
)
async def test_a_secret_with_a_token_that_no_header_carries_is_said_without_the_token(desk, held):
    """The library that sends it would repeat it in its error, and the error stands in statuses."""
    secret_of(desk, held)
    with pytest.raises(Terminal, match="Secret policy-admin-token holds no token") as refused:
        await desk.objects.ensure_token(make_fleet())

    assert "schl" not in str(refused.value)


def test_a_quarantines_annotation_is_json_whatever_the_reason_says():
    written = json.dumps({"reason": 'quotes " and \n lines'})
    metadata = {"uid": "u", "name": "policy-0", "annotations": {"rlfleet.dev/quarantine": written}}

    assert pod_view({"metadata": metadata}).quarantine == 'quotes " and \n lines'
