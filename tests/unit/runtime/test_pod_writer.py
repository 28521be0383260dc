"""Pods are created at a pace, and a refused creation is not repeated at once."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest
from tests.support.builders import REVISION, make_worker
from tests.support.rig import FLEET_PATH, PODS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.core.pod_actions import CreatePod, DeletePod
from fleet_operator.errors import Conflict, FleetError, NotFound, Retryable, Terminal
from fleet_operator.runtime.kube_pods import KubePods
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.pod_writer import CREATIONS_AT_ONCE, LONGEST_SECONDS, PodWriter
from rlfleet_resources import names

pytestmark = pytest.mark.virtual_time

QUOTA = "403 exceeded quota: gpus"
REQUEST_SECONDS = 0.05


OWNER = {"name": "policy", "uid": "fleet-1"}


def creations(many: int, *, revision: str = REVISION, first: int = 0) -> list[CreatePod]:
    labels = names.fleet_labels("policy") | {names.LABEL_REVISION: revision}
    common = {"namespace": "rl", "labels": labels, "ownerReferences": [OWNER]}
    return [
        CreatePod(
            pod_name=f"policy-{n}",
            manifest={"kind": "Pod", "metadata": {"name": f"policy-{n}"} | common},
            reason="a worker is missing",
        )
        for n in range(first, first + many)
    ]


class Server:
    """A fake API server with a quota of pods, and the requests to it.

    Fields:
        fleet: metadata of the fleet; None if it is gone.
        questions: how often the fleet was read.
        sent: creations of pods, with the time.
        refused_at: when the first creation was refused for lack of quota.
    """

    def __init__(self, *, room: float = float("inf"), refusal: FleetError | None = None) -> None:
        self.room = room
        self.refusal = refusal or Terminal(QUOTA)
        self.fleet: dict[str, str] | None = {"uid": OWNER["uid"]}
        self.questions = 0
        self.sent: list[tuple[float, str]] = []
        self.refused_at: float | None = None
        self.on_their_way = 0
        self.most_on_their_way = 0
        self.changes = PodWriter(KubePods(self, Metrics()), "rl")

    async def get(self, path: str) -> dict[str, Any]:
        assert path == FLEET_PATH
        self.questions += 1
        if self.fleet is None:
            raise NotFound(path)
        return {"metadata": self.fleet}

    async def create(self, _path: str, body: dict[str, Any]) -> dict[str, Any]:
        self.sent.append((now(), body["metadata"]["name"]))
        self.on_their_way += 1
        self.most_on_their_way = max(self.most_on_their_way, self.on_their_way)
        await asyncio.sleep(REQUEST_SECONDS)
        self.on_their_way -= 1
        if self.room <= 0:
            self.refused_at = self.refused_at or now()
            raise self.refusal
        self.room -= 1
        return body

    async def delete(self, _path: str, *, uid: str) -> None:
        pass

    async def try_to(self, actions: list[Any]) -> FleetError | None:
        try:
            await self.changes.run(actions)
        except FleetError as error:
            return error
        return None


class TestPace:
    async def test_the_pace_begins_with_one_and_doubles_up_to_a_limit(self):
        server = Server()
        assert await server.try_to(creations(500)) is None

        times = [at for at, _ in server.sent]
        waves = [times.count(t) for t in sorted(set(times))]
        assert waves[:7] == [1, 2, 4, 8, 16, CREATIONS_AT_ONCE, CREATIONS_AT_ONCE]
        assert server.most_on_their_way == CREATIONS_AT_ONCE
        assert len(times) == 500

    async def test_lowest_ordinals_come_first(self):
        server = Server()
        await server.try_to(creations(40))

        assert [name for _, name in server.sent] == [f"policy-{n}" for n in range(40)]


class TestFleet:
    @pytest.mark.parametrize(
        "fleet",
        [None, {"uid": "another"}, {"uid": OWNER["uid"], "deletionTimestamp": "now"}],
        ids=str,
    )
    async def test_a_fleet_that_goes_gets_no_pod(self, fleet):
        """The watch has not delivered the deletion yet."""

        server = Server()
        server.fleet = fleet
        assert await server.try_to(creations(3)) is None
        assert server.sent == []

    async def test_one_question_is_enough_for_the_pods_of_a_scale_up(self):
        server = Server()
        assert await server.try_to(creations(500)) is None
        assert server.questions == 1


class TestRefusals:
    @pytest.mark.parametrize("room", [0, 1, 5, 300])
    async def test_nothing_is_sent_after_the_first_refusal_and_little_was_on_its_way(self, room):
        server = Server(room=room)
        error = await server.try_to(creations(500))

        assert str(error) == QUOTA
        assert server.refused_at is not None
        assert not [name for at, name in server.sent if at > server.refused_at]
        assert len(server.sent) - room <= min(room + 1, CREATIONS_AT_ONCE)

    async def test_a_refused_creation_is_retried_with_one_pod_after_a_time_that_doubles(self):
        server, errors, wanted = Server(room=0), [], creations(500)
        while now() < 1000 + 600:
            errors.append(await server.try_to(wanted))
            await asyncio.sleep(0.5)

        assert {str(e) for e in errors} == {QUOTA}, "every attempt reports the error"
        assert len(server.sent) <= 30, "600 before"
        waits = [b - a for (a, _), (b, _) in zip(server.sent, server.sent[1:], strict=False)]
        assert waits[0] <= 2
        assert max(waits) <= LONGEST_SECONDS + 1
        assert min(waits[8:]) >= LONGEST_SECONDS / 2

    async def test_once_there_is_room_all_are_created(self):
        server = Server(room=0)
        await server.try_to(creations(50))
        server.room = 50
        await asyncio.sleep(1)
        assert await server.try_to(creations(50)) is None
        assert len(server.sent) == 51

    async def test_another_template_is_tried_at_once(self):
        server = Server(room=0)
        await server.try_to(creations(5))
        await server.try_to(creations(5))
        assert len(server.sent) == 1
        await server.try_to(creations(5, revision="r2"))
        assert len(server.sent) == 2

    async def test_a_fleet_that_misses_no_pod_any_more_has_nothing_to_say(self):
        server = Server(room=0)
        await server.try_to(creations(5))

        assert await server.try_to([]) is None
        await server.try_to(creations(5))
        assert len(server.sent) == 2

    async def test_a_server_that_asks_for_time_gets_it(self):
        server = Server(room=0, refusal=Retryable("429", after_seconds=20))
        await server.try_to(creations(5))
        await asyncio.sleep(19)
        await server.try_to(creations(5))
        assert len(server.sent) == 1

    async def test_other_writes_continue(self):
        server, deleted = Server(room=0), []
        server.delete = lambda path, *, uid: _noted(deleted, uid)
        await server.try_to(creations(5))
        await server.try_to(
            [*creations(5), DeletePod(pod_name="policy-9", pod_uid="uid-9", reason="x")]
        )
        assert deleted == ["uid-9"]

    async def test_pods_are_created_although_another_one_may_not_be_deleted(self):
        server = Server()
        server.delete = _refused
        error = await server.try_to(
            [*creations(2), DeletePod(pod_name="policy-9", pod_uid="uid-9", reason="x")]
        )
        assert [name for _, name in server.sent] == ["policy-0", "policy-1"]
        assert isinstance(error, Terminal)

    async def test_a_quota_is_reported_at_each_attempt_and_between_them_while_a_name_is_taken(self):
        server = Server()
        server.create, server.get = _taken_or_refused, _of_another
        errors = []
        for _ in range(4):
            errors += [await server.try_to(creations(2)) for _ in range(2)]
            await asyncio.sleep(LONGEST_SECONDS)
        assert [str(error) for error in errors] == [QUOTA] * 8


async def _taken_or_refused(_path: str, body: dict[str, Any]) -> NoReturn:
    name = body["metadata"]["name"]
    raise Conflict(name) if name == "policy-0" else Terminal(QUOTA)


async def _of_another(path: str, _params: object = None) -> dict[str, Any]:
    """The fleet, or the pod of another owner."""
    if path == FLEET_PATH:
        return {"metadata": {"uid": OWNER["uid"]}}
    return {"items": [{"metadata": {"name": "policy-0"}}]}


async def _refused(_path: str, *, uid: str) -> None:
    raise Terminal(f"403 the deletion of {uid} is denied by a webhook")


async def _noted(deleted: list[str], uid: str) -> None:
    deleted.append(uid)


class TestUnseen:
    async def test_a_pod_that_the_watch_has_not_brought_yet_is_not_created_again(self):
        server = Server()
        await server.try_to(creations(3))
        await server.try_to(creations(4))
        assert [name for _, name in server.sent] == [f"policy-{n}" for n in range(4)]

    async def test_a_pod_that_the_watch_never_delivers_is_created_again(self):
        server = Server()
        await server.try_to(creations(1))
        await asyncio.sleep(6)
        await server.try_to(creations(1))
        assert len(server.sent) == 2

    async def test_a_pod_that_was_seen_and_is_gone_is_created_at_once(self):
        server = Server()
        await server.try_to(creations(1))
        server.changes.laid_over([make_worker(0).pod_view()])
        await server.try_to(creations(1))
        assert len(server.sent) == 2


async def test_a_fleet_without_quota_sends_few_requests_in_two_minutes():
    """The whole operator. One a second would be 120."""

    async with Rig(replicas=1) as rig:
        await rig.applied("1")
        rig.kube.refuses = lambda verb, path: (
            Terminal(QUOTA) if (verb, path) == ("POST", PODS_PATH) else None
        )
        before = len(rig.kube.requests)
        rig.change(FLEET_PATH, replicas=50)
        await asyncio.sleep(120)
        posts = [r for r in rig.kube.requests[before:] if r == ("POST", PODS_PATH)]
        assert 5 <= len(posts) <= 10
