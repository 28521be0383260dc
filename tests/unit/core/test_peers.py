"""`weights.peers`: which worker reads a version from which other one, and which reads the store."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.builders import (
    A_DIGEST,
    NOW,
    WorkerBuilder,
    make_fleet,
    make_weights,
    make_worker,
    target,
)

from fleet_operator.api.fleet import PeerSettings, Rollout
from fleet_operator.core import messages, worker_calls
from fleet_operator.core.actions import CompareFiles, Stage
from fleet_operator.core.peers import BEGINS_SECONDS, FAN_OUT, PeerPlan, with_peers
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.worker_failures import failed_lately, failure_of
from fleet_operator.core.worker_view import PROBE_SECONDS
from fleet_worker.checkpoint import peer_files, peer_server
from fleet_worker.protocol import PeerState, Reason, RefusedPeer
from rlfleet_resources.quantities import bytes_of

ON = PeerSettings(enabled=True)
GOAL = replace(target("42"), digest=A_DIGEST)


def worker(n: int, **peers: Any) -> WorkerBuilder:
    made = make_worker(n).serving("41").on_node(f"node-{n}")
    return made.reporting(peers=PeerState(port=8083, **peers))


def holder(n: int) -> WorkerBuilder:
    return worker(n, serves=(A_DIGEST,))


def uid(n: int) -> str:
    return make_worker(n).view().pod.uid


def refusing(n: int, *others: int) -> WorkerBuilder:
    refused = [
        RefusedPeer(
            pod_uid=uid(other), digest=A_DIGEST, reason=Reason.DIGEST_MISMATCH, message="lies"
        )
        for other in others
    ]
    return worker(n, refused=tuple(refused))


def plan(
    *workers: WorkerBuilder, goal: Any = GOAL, kind: type[Stage] = Stage
) -> tuple[dict[int, list[int]], PeerPlan]:
    """Ordinal of each worker without the version → those that it is to read from."""
    views = [each.view() for each in workers]
    calls = [
        worker_calls.stage(view, goal, Rollout(), reason="test", kind=kind)
        for view in views
        if view.state is not None and view.state.peers and A_DIGEST not in view.state.peers.serves
    ]
    made, found = with_peers(calls, views, ON)
    ordinals = {view.pod.uid: view.pod.ordinal for view in views}
    read = {ordinals[c.pod_uid]: [ordinals[p.pod_uid] for p in c.peers] for c in made}
    return read, found


def test_workers_read_from_the_one_that_holds_the_version():
    read, found = plan(holder(0), worker(1), worker(2))
    assert read == {1: [0], 2: [0]}
    assert found.store_readers == 1


def test_a_worker_serves_a_few_others_and_the_rest_waits():
    read, found = plan(holder(0), *(worker(n) for n in range(1, FAN_OUT + 3)))
    assert [n for n, peers in read.items() if peers] == list(range(1, FAN_OUT + 1))
    assert found.waiting == {uid(FAN_OUT + 1), uid(FAN_OUT + 2)}


def test_readers_that_read_already_count():
    reading = [worker(n, reads_from=uid(0)).doing("stage", "42") for n in range(2, 2 + FAN_OUT)]
    views = [each.view() for each in (holder(0), worker(1), *reading)]
    call = worker_calls.stage(views[1], GOAL, Rollout(), reason="test")
    (made,), found = with_peers([call], views, ON)
    assert made.peers == ()
    assert found.waiting == {uid(1)}


@pytest.mark.parametrize("gone", ["silent", "going", "quarantined", "not_running"])
def test_readers_that_have_gone_do_not_count(gone):
    reading = [worker(n, reads_from=uid(0)).doing("stage", "42") for n in range(2, 2 + FAN_OUT)]
    lost = [getattr(each, gone)(*([PROBE_SECONDS] if gone == "silent" else [])) for each in reading]
    views = [each.view() for each in (holder(0), worker(1), *lost)]
    call = worker_calls.stage(views[1], GOAL, Rollout(), reason="test")
    (made,), found = with_peers([call], views, ON)
    assert [each.pod_uid for each in made.peers] == [uid(0)]
    assert found.waiting == set()


def test_the_same_node_comes_first_and_then_the_one_with_the_fewest_readers():
    near = holder(1).on_node("node-3")
    assert plan(holder(0), near, worker(3))[0] == {3: [1]}
    assert plan(holder(0), holder(1), worker(2), worker(3))[0] == {2: [0], 3: [1]}


def test_the_zone_comes_before_the_number_of_readers():
    reading = worker(3, reads_from=uid(1)).doing("stage", "42")
    near = [each.in_zone("b") for each in (holder(1), worker(2), reading)]
    assert plan(holder(0).in_zone("a"), *near)[0][2] == [1]


def test_a_worker_waits_for_its_zone_and_reads_across_only_if_no_worker_there_serves_it():
    full = [worker(n, reads_from=uid(1)).doing("stage", "42") for n in range(3, 3 + FAN_OUT)]
    zone = [each.in_zone("b") for each in (holder(1), worker(2), *full)]
    read, found = plan(holder(0).in_zone("a"), *zone)
    assert read[2] == []
    assert uid(2) in found.waiting

    assert plan(holder(0).in_zone("a"), worker(2).in_zone("b"))[0] == {2: [0]}
    refused = [each.in_zone("b") for each in (holder(1), refusing(2, 1))]
    assert plan(holder(0).in_zone("a"), *refused)[0] == {2: [0]}


def test_one_worker_of_each_zone_reads_the_store():
    zones = ("a", "a", "b", "b", "")
    fleet = [worker(n).in_zone(zone) for n, zone in enumerate(zones)]
    assert calls_of(*fleet) == {"policy-0": (), "policy-2": (), "policy-4": ()}
    reading = fleet[0].doing("stage", "42")
    assert calls_of(reading, *fleet[1:]) == {"policy-2": (), "policy-4": ()}
    assert calls_of(*fleet, rollout={"maxStaging": 1}) == {"policy-0": ()}


def zone_b(*workers: WorkerBuilder) -> list[WorkerBuilder]:
    return [each.in_zone("b") for each in workers]


def test_one_worker_of_a_zone_reads_across_and_the_others_wait_for_it():
    far = [holder(n).in_zone("a") for n in range(4)]
    read, found = plan(*far, *zone_b(*(worker(n) for n in range(4, 14))))
    assert [n for n, peers in read.items() if peers] == [4]
    assert found.waiting == {uid(n) for n in range(5, 14)}


def calls_next_to(first: WorkerBuilder) -> tuple[list[str], AbstractSet[str]]:
    """The pods that a worker is to read from, next to another one of its zone, and which workers wait."""
    views = [each.view() for each in (holder(0).in_zone("a"), *zone_b(first, worker(2)))]
    call = worker_calls.stage(views[2], GOAL, Rollout(), reason="test")
    (made,), found = with_peers([call], views, ON)
    return [peer.pod_uid for peer in made.peers], found.waiting


@pytest.mark.parametrize("begins", ["at the store", "across", "called"])
def test_no_worker_reads_across_while_another_one_of_its_zone_begins(begins):
    """Each zone's first reader begins at the store, and the answer of one zone comes before another's."""
    first = {
        "at the store": worker(1).doing("stage", "42"),
        "across": worker(1, reads_from=uid(0)).doing("stage", "42"),
        "called": worker(1).asked_to("stage 42"),
    }
    assert calls_next_to(first[begins]) == ([], {uid(2)})


@pytest.mark.parametrize(
    "other",
    [
        worker(1).doing("stage", "43"),
        worker(1).doing("stage", "42").working_for(BEGINS_SECONDS),
        worker(1).doing("stage", "42").quarantined(),
        make_worker(1).serving("41").doing("stage", "42"),
    ],
    ids=["another version", "it serves nothing for long", "it is out", "it has no port"],
)
def test_a_worker_that_will_not_serve_soon_keeps_none_waiting(other):
    assert calls_next_to(other) == ([uid(0)], set())


def test_a_worker_that_ignores_its_calls_keeps_none_waiting():
    deaf = worker(1).ignoring("stage 42")
    read, _ = plan(holder(0).in_zone("a"), *zone_b(deaf, worker(2)))
    assert read == {1: [0], 2: [0]}


def test_without_a_digest_all_read_the_store_in_turn():
    read, found = plan(holder(0), worker(1), worker(2), goal=target("42"))
    assert read == {1: [], 2: []}
    assert found.waiting == set()
    assert found.store_readers == 1


def test_a_comparison_of_files_reads_the_files():
    assert plan(holder(0), worker(1), kind=CompareFiles)[0] == {1: []}


@pytest.mark.parametrize(
    "gone",
    [
        holder(0).silent(),
        holder(0).going(),
        holder(0).quarantined(),
        holder(0).draining_since(NOW),
        holder(0).not_running(),
        worker(0, serves=("sha256:" + "9" * 64,)),
        make_worker(0).serving("41"),
    ],
    ids=["silent", "deleted", "quarantined", "draining", "not running", "other bytes", "no port"],
)
def test_others_do_not_read_from_a_worker_that_may_not_serve(gone):
    read, found = plan(gone, worker(1))
    assert read[1] == []
    assert found.waiting == set()


def test_a_worker_that_refused_all_peers_reads_the_store():
    read, found = plan(holder(0), holder(1), refusing(2, 0, 1), refusing(3, 0))
    assert read == {2: [], 3: [1]}
    assert found.waiting == set()


def calls_of(
    *workers: WorkerBuilder, enabled: bool = True, rollout: dict[str, Any] | None = None
) -> dict[str, tuple[str, ...]]:
    """Worker → the pods that its stage names, in a fleet of which some worker may have the digest."""
    weights = {"roots": ["/weights"], "peers": {"enabled": enabled}}
    wanted = make_weights("42")
    wanted = replace(wanted, spec=wanted.spec.model_copy(update={"digest": A_DIGEST}))
    observed = make_fleet(*workers, wants=wanted, weights=weights, rollout=rollout or {})
    return {
        action.pod_name: tuple(peer.pod_uid for peer in action.peers)
        for action in plan_rollout(observed, now=NOW).step.actions
        if isinstance(action, Stage)
    }


def test_without_the_field_all_read_the_store_at_once():
    assert calls_of(holder(0), worker(1), enabled=False) == {"policy-0": (), "policy-1": ()}


def test_one_worker_reads_the_store_and_the_others_wait_for_it():
    assert calls_of(worker(0), worker(1), worker(2)) == {"policy-0": ()}


def test_others_read_while_the_first_one_still_reads_the_store():
    first = holder(0).doing("stage", "42")
    assert calls_of(first, worker(1), worker(2)) == {
        "policy-1": (uid(0),),
        "policy-2": (uid(0),),
    }


def test_a_worker_that_joins_reads_the_applied_version_from_a_member():
    member = make_worker(0).serving("42").reporting(digest=A_DIGEST)
    member = member.reporting(peers=PeerState(port=8083, serves=(A_DIGEST,)))
    new = make_worker(1).joining("base").reporting(peers=PeerState(port=8083))
    assert calls_of(member, new) == {"policy-1": (uid(0),)}


def test_a_worker_that_reads_from_a_peer_takes_no_place_at_the_store():
    reading = worker(1, reads_from=uid(0)).doing("stage", "42")
    assert calls_of(holder(0).silent(), reading, refusing(2, 0)) == {"policy-2": ()}


@pytest.mark.parametrize("rate", [10_000_000, "10000000", "10M", "10.5Mi", "1G", "2Ti"])
def test_a_limit_leaves_each_reader_twice_the_least_speed(rate):
    found = PeerSettings(bytes_per_second=rate).bytes_per_second
    least = peer_server._MOST_CONNECTIONS * peer_files.LEAST_BYTES_PER_SECOND

    assert found is not None
    assert bytes_of(found) >= 2 * least


@pytest.mark.parametrize("rate", [9_999_999, "9M", "9999999", "9.9Mi", "500k", "64Ki"])
def test_a_limit_below_that_is_refused(rate):
    with pytest.raises(ValidationError):
        PeerSettings(bytes_per_second=rate)


def test_the_note_names_a_few_of_the_readers():
    reading = [worker(n, reads_from=uid(0)).view() for n in range(1, 6)]
    first = "policy-1 from policy-0, policy-2 from policy-0, policy-3 from policy-0"
    assert (
        messages.peers_told([holder(0).view(), *reading]) == f"reads from peers: {first} and 2 more"
    )
    assert messages.peers_told([holder(0).view()]) == ""


def test_the_note_names_a_peer_that_serves_other_bytes_and_what_to_do():
    told = messages.peers_told([holder(0).view(), refusing(1, 0).view()])
    wanted = "peers with other bytes: policy-0 (DigestMismatch on policy-1); delete the pod"
    assert told == wanted
    assert messages.peers_told([worker(0).view(), refusing(1, 0).view()]) == ""


def test_the_note_names_a_peer_that_serves_and_that_others_cannot_read():
    lost = RefusedPeer(
        pod_uid=uid(0), digest=A_DIGEST, reason=Reason.PEER_UNREADABLE, message="expired"
    )
    others = [worker(n, refused=(lost,)).view() for n in (1, 2)]
    told = messages.peers_told([holder(0).view(), *others])
    named = "policy-1 from policy-0, policy-2 from policy-0"
    assert told == f"cannot read from peers: {named} (expired)"
    assert messages.peers_told([worker(0).view(), *others]) == "", "it has ended, as others do"


def test_a_worker_without_peers_has_not_failed_and_gets_another_call_in_a_second():
    lost = refusing(1, 0).refused("42", Reason.PEER_UNREADABLE, age_seconds=0.5).view()
    assert failure_of(lost, GOAL) is None
    assert failed_lately(lost, GOAL)
    lost = refusing(1, 0).refused("42", Reason.PEER_UNREADABLE, age_seconds=1.5).view()
    assert not failed_lately(lost, GOAL)
