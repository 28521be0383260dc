"""Workers that read a version from each other: real serving processes, and peers that lie or die."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.support import damage
from tests.support.certificates import expire, issue
from tests.support.fake_peers import FakePeer, Listed, fake_peer
from tests.support.present import present
from tests.support.refusals import refusal_from
from tests.support.slime_deltas import write_delta
from tests.support.stagers import InspectorWithStagers
from tests.support.tiny import TinyInspector, tiny_rules, write_tiny
from tests.support.waiting import eventually
from tests.support.worker_harness import refused, stage_request

from fleet_worker.checkpoint import delta_chain, memory, peer_files, peer_server, peer_tls
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import HeldBase
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.identity import Labels
from fleet_worker.checkpoint.lengths import Lengths
from fleet_worker.checkpoint.memory import MemoryFile
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.peer_files import Stream, open_from_peer
from fleet_worker.checkpoint.peer_tls import Certificate
from fleet_worker.checkpoint.peers import Peers
from fleet_worker.checkpoint.stager_messages import Place
from fleet_worker.errors import Refusal
from fleet_worker.http.sockets import bound_socket
from fleet_worker.lifecycle.staging import Staging
from fleet_worker.protocol import Peer, Reason, StageRequest

LOWEST_RATE = 10_000_000
Made = Callable[..., Staging]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Made]:
    """Makes workers of one fleet, without engines."""
    opened: list[Peers] = []

    def one(
        uid: str,
        inspector: TinyInspector | None = None,
        *,
        tokens: tuple[str, ...] = ("fleet",),
        budget: int = 1 << 20,
        certificate: Certificate | None = None,
    ) -> Staging:
        rules, initial = tiny_rules(tmp_path, inspector, budget_bytes=budget)
        initial.checkpoint.close()

        async def make_room(_size: int) -> int:
            return rules.budget_bytes

        listener = bound_socket("127.0.0.1", 0)
        peers = Peers(listener, pod_uid=uid, tokens=lambda: tokens, certificate=certificate)
        opened.append(peers)
        return Staging(rules, Labels(), lambda: 0.0, make_room, peers=peers)

    yield one
    for peers in opened:
        peers.close()


@pytest.fixture
def wanted(tmp_path: Path) -> StageRequest:
    """A stage of version 1, whose files are there."""
    return stage_request("1", write_tiny(tmp_path / "1"))


def certificate(folder: Path) -> Certificate:
    """A new one, in the same files each time."""
    return Certificate(*map(str, issue(folder, "policy.rl.svc")))


def peer(worker: Staging, uid: str) -> Peer:
    return Peer(host="127.0.0.1", port=present(worker.peers).port, pod_uid=uid)


def read_from(request: StageRequest, digest: str, *peers: Peer) -> StageRequest:
    return request.model_copy(update={"digest": digest, "peers": peers})


async def test_a_worker_stages_from_a_peer_although_the_store_is_gone(
    tmp_path: Path, make: Made
) -> None:
    parent, child, grandchild = make("a"), make("b"), make("c")
    path = write_tiny(tmp_path / "1")
    wanted = stage_request("1", path)
    digest = (await parent.stage(wanted)).digest
    shutil.rmtree(path)

    found = await child.stage(read_from(wanted, digest, peer(parent, "a")))
    assert (found.digest, found.in_memory, found.read_bytes, found.read_from) == (
        digest,
        True,
        0,
        "a",
    )
    last = await grandchild.stage(read_from(wanted, digest, peer(child, "b")))
    assert (last.digest, last.read_from) == (digest, "b")


@pytest.mark.parametrize(
    ("has_stagers", "has_certificate"), [(True, False), (False, True), (True, True)]
)
async def test_peers_use_stagers_and_the_certificate_of_the_fleet(
    tmp_path: Path,
    make: Made,
    inspector: InspectorWithStagers,
    *,
    has_stagers: bool,
    has_certificate: bool,
) -> None:
    given = {"certificate": certificate(tmp_path / "tls") if has_certificate else None}
    reads = inspector if has_stagers else None
    parent, child = make("a", reads, **given), make("b", reads, **given)
    path = write_tiny(tmp_path / "1")
    wanted = stage_request("1", path)
    digest = (await parent.stage(wanted)).digest
    shutil.rmtree(path)
    found = await child.stage(read_from(wanted, digest, peer(parent, "a")))

    assert (found.digest, found.read_from) == (digest, "a")
    assert present(child.peers).serves == (digest,)


async def test_a_worker_reads_from_no_peer_without_its_own_certificate(
    wanted: StageRequest, tmp_path: Path, make: Made
) -> None:
    """Also where the names are the same."""
    ours, others = certificate(tmp_path / "tls"), certificate(tmp_path / "other")
    plain, parent = make("a"), make("b", certificate=ours)
    digest = (await plain.stage(wanted)).digest
    await parent.stage(wanted)
    for given, holder, uid in ((ours, plain, "a"), (None, parent, "b"), (others, parent, "b")):
        child = make("c", certificate=given)
        refusal = await refused(child.stage(read_from(wanted, digest, peer(holder, uid))))
        assert refusal.reason is Reason.PEER_UNREADABLE

    child = make("d", certificate=ours)
    certificate(tmp_path / "tls")  # renewed in all of its mounts, while both run
    found = await child.stage(read_from(wanted, digest, peer(parent, "b")))
    assert found.read_from == "b"


async def test_an_expired_certificate_sends_workers_to_the_store_and_says_so(
    wanted: StageRequest, tmp_path: Path, make: Made
) -> None:
    ours = certificate(tmp_path / "tls")
    parent, child = make("a", certificate=ours), make("b", certificate=ours)
    digest = (await parent.stage(wanted)).digest
    expire(Path(ours.path), Path(ours.key))
    await refused(child.stage(read_from(wanted, digest, peer(parent, "a"))))
    (named,) = child.refused_peers.all
    found = await child.stage(read_from(wanted, digest))

    assert (named.pod_uid, named.reason) == ("a", Reason.PEER_UNREADABLE)
    assert "certificate has expired" in named.message, "the words of OpenSSL"
    assert (found.digest, found.read_from) == (digest, None)


def test_no_handshake_of_many_is_lost(tmp_path: Path, make: Made) -> None:
    worker = make("a", certificate=certificate(tmp_path / "tls"))
    checkpoint = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    checkpoint.read_all(budget=1 << 20, check_cancelled=lambda: None)
    present(worker.peers).serve("sha256:1", checkpoint)
    place = present(worker.peers).place_of(peer(worker, "a"), "sha256:1")
    assert place is not None
    with ThreadPoolExecutor(8) as readers:
        found = list(readers.map(lambda _: peer_files._listing(place), range(100)))
    checkpoint.close()

    assert len(found) == 100


def place_of(worker: Staging, digest: str) -> Place:
    found = worker.peers.place_of(peer(worker, "a"), digest) if worker.peers else None
    assert found is not None
    return found


def test_refused_strangers_that_do_not_close_their_end_keep_no_connection(
    tmp_path: Path, make: Made
) -> None:
    worker = make("a", certificate=certificate(tmp_path / "tls"))
    assert worker.peers is not None
    worker.peers.keep_ready()
    opened = Path(f"/proc/{present(worker.peers._process).pid}/fd")
    most = 40
    trusting = peer_tls.reading(place_of(worker, "sha256:1").certificate)
    with ExitStack() as strangers:
        for _ in range(peer_server._MOST_STRANGERS_WITH_TLS + 2 * most):
            connection = socket.create_connection(("127.0.0.1", worker.peers.port))
            stranger = strangers.enter_context(trusting.wrap_socket(connection))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            assert stranger.recv(12) == b"HTTP/1.1 404"
        kept = len(list(opened.iterdir()))

    assert kept < peer_server._MOST_STRANGERS_WITH_TLS + most


def test_readers_over_tls_that_take_no_bytes_cost_the_process_little_memory(
    tmp_path: Path, make: Made
) -> None:
    worker = make("a", certificate=certificate(tmp_path / "tls"))
    assert worker.peers is not None
    checkpoint = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    size, readers = 64 << 20, 16
    (file,) = checkpoint.files
    kept = MemoryFile("x", size)
    kept.write(memoryview(bytes(size)), 0)
    kept.seal()
    checkpoint.files = (replace(file, state=replace(file.state, size=size)),)
    checkpoint.held = {file.name: kept}
    worker.peers.serve("sha256:1", checkpoint)
    process = Path(f"/proc/{present(worker.peers._process).pid}")
    before, used = anonymous_bytes(process), deque[int](maxlen=50)

    def is_idle() -> bool:
        """Whether it has taken no time for half a second."""
        used.append(int((process / "stat").read_text().split()[13]))
        return len(used) == used.maxlen and used[0] == used[-1]

    with ExitStack() as slow:
        for _ in range(readers):
            stream = Stream(place_of(worker, "sha256:1"), 0, size)
            slow.callback(stream.close)
            stream.read_into(memoryview(bytearray(1)), 0)
        eventually(is_idle)
        taken = anonymous_bytes(process) - before
    checkpoint.close()

    assert taken < readers << 21


def anonymous_bytes(process: Path) -> int:
    lines = (process / "status").read_text().splitlines()
    (found,) = (each for each in lines if each.startswith("RssAnon:"))
    return int(found.split()[1]) * 1024


async def test_a_version_is_served_until_the_worker_drops_it(tmp_path: Path, make: Made) -> None:
    parent = make("a")
    digest = (await parent.stage(stage_request("1", write_tiny(tmp_path / "1")))).digest
    place = present(parent.peers).place_of(peer(parent, "a"), digest)
    assert place is not None
    assert peer_files._listing(place)
    await parent.drop()

    assert present(parent.peers).serves == ()
    with pytest.raises(Refusal, match="404"):
        peer_files._listing(place)


def test_the_last_of_all_readers_waits_for_seconds_at_the_lowest_rate() -> None:
    one, other = socket.socketpair()
    with one, other:
        server = peer_server.PeerServer(one, LOWEST_RATE)

    waits = peer_server._MOST_CONNECTIONS * server._piece / LOWEST_RATE
    assert waits < peer_files.SILENCE_SECONDS / 2


@pytest.mark.parametrize("sent", [b"", b"GET /v1/peers/a HTTP/1.1\r\n"], ids=["nothing", "a part"])
async def test_strangers_at_the_port_keep_no_peer_out(
    wanted: StageRequest, make: Made, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(peer_files, "SILENCE_SECONDS", 0.5)
    parent, child = make("a"), make("b")
    digest = (await parent.stage(wanted)).digest
    reached = peer(parent, "a")
    strangers = [await asyncio.open_connection(reached.host, reached.port) for _ in range(600)]
    for _, writer in strangers:
        writer.write(sent)
    try:
        found = await child.stage(read_from(wanted, digest, reached))
    finally:
        for _, writer in strangers:
            writer.close()

    assert found.read_from == "a"


async def test_only_workers_of_the_fleet_may_read(wanted: StageRequest, make: Made) -> None:
    parent, stranger = make("a"), make("b", tokens=("another fleet",))
    digest = (await parent.stage(wanted)).digest
    refusal = await refused(stranger.stage(read_from(wanted, digest, peer(parent, "a"))))
    assert refusal.reason is Reason.PEER_UNREADABLE

    # The signature is that for one pod.
    await refused(make("c").stage(read_from(wanted, digest, peer(parent, "b"))))


@pytest.mark.parametrize(("own", "others"), [(("1",), ("2", "1")), (("2", "1"), ("2",))])
async def test_workers_read_from_each_other_while_the_tokens_are_exchanged(
    wanted: StageRequest, make: Made, own: tuple[str, ...], others: tuple[str, ...]
) -> None:
    parent, child = make("a", tokens=own), make("b", tokens=others)
    digest = (await parent.stage(wanted)).digest
    found = await child.stage(read_from(wanted, digest, peer(parent, "a")))

    assert found.read_from == "a"


async def test_without_a_digest_the_worker_asks_no_peer(tmp_path: Path, make: Made) -> None:
    path = write_tiny(tmp_path / "1")
    with fake_peer(write_tiny(tmp_path / "other", 2.0)) as liar:
        wanted = stage_request("1", path).model_copy(update={"peers": (liar.peer,)})
        found = await make("b").stage(wanted)

    assert found.read_from is None
    assert liar.asked == []


def other_bytes(liar: FakePeer) -> None:
    liar.content = lambda _, true: true[:-1] + bytes([true[-1] ^ 1])


def other_config(liar: FakePeer) -> None:
    liar.content = lambda name, true: true.replace(b"4", b"8") if name == "config.json" else true


def cut(liar: FakePeer) -> None:
    liar.content = lambda _, true: true[: len(true) // 2]


def without_an_end(liar: FakePeer) -> None:
    liar.content = lambda _, true: true + bytes(1 << 20)


def sizes_that_lie(liar: FakePeer) -> None:
    def listing(listed: Listed) -> object:
        return [(name, size + 8) for name, size in listed]

    liar.listing = listing


def a_size_beyond_all(liar: FakePeer) -> None:
    liar.listing = lambda listed: [(name, 1 << 60) for name, _ in listed]


def no_listing(liar: FakePeer) -> None:
    liar.listing = lambda _: {"a": []}


def a_million_files(liar: FakePeer) -> None:
    liar.listing = lambda _: [(f"{n}", 1) for n in range(100_000)]


def a_path_as_a_name(liar: FakePeer) -> None:
    liar.listing = lambda listed: [("../" + name, size) for name, size in listed]


def sizes_without_end(liar: FakePeer) -> None:
    liar.listing = lambda listed: [(name, float("inf")) for name, _ in listed]


def names_beyond_utf8(liar: FakePeer) -> None:
    liar.listing = lambda listed: [(name.replace("model.", "\ud800."), n) for name, n in listed]


def answers_without_end(liar: FakePeer) -> None:
    def before(out: BinaryIO) -> None:
        while True:
            out.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            time.sleep(0.05)

    liar.before = before


LIES = [
    other_bytes,
    other_config,
    cut,
    sizes_that_lie,
    a_size_beyond_all,
    no_listing,
    a_million_files,
    a_path_as_a_name,
    sizes_without_end,
    names_beyond_utf8,
    answers_without_end,
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
async def test_a_worker_reports_a_peer_with_other_bytes_and_never_asks_it_again(
    tmp_path: Path, make: Made, monkeypatch: pytest.MonkeyPatch, lie: Callable[[FakePeer], None]
) -> None:
    monkeypatch.setattr(peer_files, "SILENCE_SECONDS", 0.5)
    parent, child = make("a"), make("b")
    path = write_tiny(tmp_path / "1")
    wanted = stage_request("1", path)
    digest = (await parent.stage(wanted)).digest
    with fake_peer(path) as liar:
        lie(liar)
        found = await child.stage(read_from(wanted, digest, liar.peer, peer(parent, "a")))
        assert (found.digest, found.read_from) == (digest, "a")
        assert [(each.pod_uid, each.digest) for each in child.refused_peers.all] == [
            ("liar", digest)
        ]
        await child.drop()
        asked = list(liar.asked)
        refusal = await refused(child.stage(read_from(wanted, digest, liar.peer)))

    assert refusal.reason is Reason.PEER_UNREADABLE
    assert liar.asked == asked
    assert child.staged is None


async def test_bytes_behind_the_end_of_a_file_are_not_read(tmp_path: Path, make: Made) -> None:
    path = write_tiny(tmp_path / "1")
    digest = open_checkpoint(str(path), None).digest(lambda: None)
    with fake_peer(path) as liar:
        without_an_end(liar)
        found = await make("b").stage(read_from(stage_request("1", path), digest, liar.peer))

    assert (found.digest, found.checkpoint.size_bytes) == (
        digest,
        (path / "model.safetensors").stat().st_size,
    )


async def test_a_version_without_room_in_memory_is_read_from_the_store(
    wanted: StageRequest, make: Made
) -> None:
    parent, child = make("a"), make("b", budget=1)
    digest = (await parent.stage(wanted)).digest
    found = await child.stage(read_from(wanted, digest, peer(parent, "a")))

    assert (found.digest, found.in_memory, found.read_from) == (digest, False, None)
    assert child.refused_peers.all == ()


async def test_memory_that_is_gone_when_the_read_begins_sends_the_worker_to_the_store(
    wanted: StageRequest, make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = make("a"), make("b")
    digest = (await parent.stage(wanted)).digest
    monkeypatch.setattr("fleet_worker.checkpoint.memory.memory_left", lambda: 0)
    found = await child.stage(read_from(wanted, digest, peer(parent, "a")))

    assert (found.digest, found.in_memory, found.read_from) == (digest, False, None)


async def test_a_peer_whose_bytes_stay_out_is_not_asked_again(
    wanted: StageRequest, make: Made
) -> None:
    is_over = threading.Event()

    def wait(_: object) -> None:
        is_over.wait(60)
        raise Refusal(Reason.SUPERSEDED, "the stager was ended")

    parent, child = make("a"), make("b", TinyInspector(before_finite=wait))
    child.silence_seconds = 0.5
    digest = (await parent.stage(wanted)).digest
    refusal = await refused(child.stage(read_from(wanted, digest, peer(parent, "a"))))
    is_over.set()

    assert refusal.reason is Reason.PEER_UNREADABLE
    assert [each.pod_uid for each in child.refused_peers.all] == ["a"]


async def test_a_version_with_a_name_beyond_utf8_is_staged_and_not_served(
    tmp_path: Path, make: Made
) -> None:
    worker, path = make("a"), write_tiny(tmp_path / "1")
    (path / damage.WEIGHTS).rename(path / "\udcff.safetensors")
    digest = open_checkpoint(str(path), None).digest(lambda: None)
    found = await worker.stage(read_from(stage_request("1", path), digest))

    assert found.digest == digest
    assert present(worker.peers).serves == ()


async def test_a_delta_without_digests_takes_a_base_that_a_peer_had_from_its_files(
    tmp_path: Path, make: Made
) -> None:
    parent, child = make("a"), make("b")
    base = write_tiny(tmp_path / "weight_v000001", 2.0)
    full = write_tiny(tmp_path / "full" / "weight_v000002", 3.0)
    names = {"version": "000002", "base_version": "000001"}
    delta = write_delta(base, full, tmp_path / "weight_v000002", **names)
    wanted = stage_request("1", base)
    digest = (await parent.stage(wanted)).digest
    held = await child.stage(read_from(wanted, digest, peer(parent, "a")))
    child._bases = lambda: (HeldBase(digest, held.checkpoint.duplicate()),)
    found = await child.stage(stage_request("2", delta))

    assert found.digest == open_checkpoint(str(full), None).digest(lambda: None)


class Chain:
    """A version in full, and the next one as a delta, for workers that hold the first one."""

    def __init__(self, root: Path) -> None:
        base, full = write_tiny(root / "weight_v000001", 2.0), write_tiny(root / "full", 3.0)
        self.base, self.full = stage_request("1", base), full
        self.delta = write_delta(
            base,
            full,
            root / "weight_v000002",
            version="000002",
            base_version="000001",
            base_digest=digest_in(base),
            result_digest=digest_in(full),
        )
        self.digest = digest_in(full)
        self.wanted = stage_request("2", self.delta)
        self.delta_bytes = size_of(self.delta)
        self.size = size_of(full)

    async def held_by(self, worker: Staging) -> None:
        """Let a worker hold the first version, as if its engine had it."""
        held = await worker.stage(self.base)
        worker._bases = lambda: (HeldBase(held.digest, held.checkpoint.duplicate()),)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))


def digest_in(path: Path) -> str:
    with closing(open_checkpoint(str(path), None)) as checkpoint:
        return checkpoint.digest(lambda: None)


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    """Its delta is longer than the tiny version, and counts as a small one."""
    monkeypatch.setattr(delta_chain, "MOST_OF_A_DELTA", 100)
    return Chain(tmp_path)


@pytest.mark.parametrize("has_stagers", [False, True])
async def test_a_worker_with_the_base_takes_the_delta_from_a_peer_and_passes_it_on(
    make: Made, chain: Chain, inspector: InspectorWithStagers, *, has_stagers: bool
) -> None:
    workers = [make(uid, inspector if has_stagers else None) for uid in "abc"]
    for worker in workers:
        await chain.held_by(worker)
    found = [await workers[0].stage(read_from(chain.wanted, chain.digest))]
    shutil.rmtree(chain.delta)
    for parent, child in pairwise(workers):
        uid = "abc"[workers.index(parent)]
        found.append(await child.stage(read_from(chain.wanted, chain.digest, peer(parent, uid))))

    assert [each.digest for each in found] == [chain.digest] * 3
    assert [each.read_from for each in found] == [None, "a", "b"]
    assert [each.read_bytes for each in found] == [chain.delta_bytes, 0, 0]
    assert [each.peer_bytes for each in found] == [0, chain.delta_bytes, chain.delta_bytes]
    assert [w.peers.serves for w in workers if w.peers] == [(chain.digest,)] * 3


async def test_a_worker_without_the_base_takes_the_whole_version_from_a_peer(
    make: Made, chain: Chain
) -> None:
    parent, child = make("a"), make("b")
    await chain.held_by(parent)
    await parent.stage(read_from(chain.wanted, chain.digest))
    await child.stage(stage_request("0", write_tiny(chain.delta.parent / "other", 4.0)))
    held = present(child.staged)
    child._bases = lambda: (HeldBase(held.digest, held.checkpoint.duplicate()),)
    found = await child.stage(read_from(chain.wanted, chain.digest, peer(parent, "a")))

    assert (found.digest, found.read_from) == (chain.digest, "a")
    assert found.peer_bytes == found.checkpoint.size_bytes


@pytest.mark.parametrize("limit", ["budget", "memory"])
async def test_a_delta_that_has_no_room_next_to_the_result_is_not_kept_for_peers(
    make: Made, chain: Chain, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    kept = []
    for room in (chain.size + chain.delta_bytes - 1, chain.size + chain.delta_bytes):
        parent = make("a", budget=room if limit == "budget" else 1 << 20)
        await chain.held_by(parent)
        with monkeypatch.context() as patched:
            if limit == "memory":
                patched.setattr(memory, "memory_left", partial(int, room))
            found = await parent.stage(read_from(chain.wanted, chain.digest))
        kept.append(found.checkpoint.delta_bytes)
        place = parent.peers.place_of(peer(parent, "a"), chain.digest) if parent.peers else None
        assert place is not None
        assert peer_files._listing(place)
        found.checkpoint.drop_delta()
        with pytest.raises(peer_files.NotServed):
            peer_files._listing(peer_files.of_delta(place))

    assert kept == [0, chain.delta_bytes]


async def test_a_worker_without_room_for_the_delta_takes_the_whole_version_from_the_same_peer(
    make: Made, chain: Chain
) -> None:
    parent, child = make("a"), make("b", budget=chain.size + chain.delta_bytes - 1)
    for worker in (parent, child):
        await chain.held_by(worker)
    await parent.stage(read_from(chain.wanted, chain.digest))
    found = await child.stage(read_from(chain.wanted, chain.digest, peer(parent, "a")))

    assert (found.digest, found.read_from) == (chain.digest, "a")
    assert found.peer_bytes == chain.size


@pytest.mark.parametrize("is_too_large", [False, True])
async def test_a_peer_with_a_wrong_delta_is_not_asked_again(
    make: Made, chain: Chain, monkeypatch: pytest.MonkeyPatch, *, is_too_large: bool
) -> None:
    parent, child = make("a"), make("b")
    for worker in (parent, child):
        await chain.held_by(worker)
    (await parent.stage(read_from(chain.wanted, chain.digest))).checkpoint.drop_delta()
    with fake_peer(chain.delta, is_delta=True) as liar:
        if is_too_large:
            monkeypatch.setattr(delta_chain, "MOST_OF_A_DELTA", 0.1)
        else:
            other_bytes(liar)
        wanted = read_from(chain.wanted, chain.digest, liar.peer, peer(parent, "a"))
        found = await child.stage(wanted)

    assert (found.digest, found.read_from) == (chain.digest, "a")
    assert [each.pod_uid for each in child.refused_peers.all] == ["liar"]


async def test_a_newer_version_ends_the_read_from_a_peer(tmp_path: Path, make: Made) -> None:
    child, path = make("b"), write_tiny(tmp_path / "1")
    digest = open_checkpoint(str(path), None).digest(lambda: None)
    with fake_peer(path) as slow:
        cut(slow)
        older = asyncio.create_task(
            child.stage(read_from(stage_request("1", path), digest, slow.peer))
        )
        await asyncio.to_thread(eventually, lambda: slow.asked)
        newer = await child.stage(stage_request("2", write_tiny(tmp_path / "2", 2.0)))
        await refused(older)

    assert child.staged is newer


async def test_a_peer_that_trickles_is_left(
    tmp_path: Path, make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(0, 100_000, 15))  # each chunk takes 15 s
    monkeypatch.setattr(peer_files.time, "monotonic", lambda: float(next(now)))
    path = write_tiny(tmp_path / "1")
    size = (path / "model.safetensors").stat().st_size
    with fake_peer(path) as slow:
        monkeypatch.setattr(peer_files, "_RECEIVE_BYTES", 1)
        place = Place("127.0.0.1", slow.server_port, "sha256:0", "")
        with pytest.raises(Refusal, match="in the last 30 s"):
            Stream(place, 1, size).read_into(memoryview(bytearray(size)), 0)


@pytest.fixture
def filling(tmp_path: Path, make: Made) -> Iterator[tuple[MemoryFile, Stream, Checkpoint]]:
    """Memory that is being filled and served, the stream of a peer to it, and the checkpoint that it is for."""
    worker = make("a")
    assert worker.peers is not None
    checkpoint = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    file = checkpoint.files[0]
    size = 8 << 20
    checkpoint.files = (replace(file, state=replace(file.state, size=size)),)
    memory = MemoryFile("x", size)
    with closing(Lengths.of(1)) as lengths:
        memory.note_written = lambda length: lengths.note(0, length)
        memory.write(memoryview(b"abc"), 0)
        worker.peers.show_of("sha256:1", checkpoint)([memory.descriptor], lengths.descriptor)
        place = present(worker.peers.place_of(peer(worker, "a"), "sha256:1"))
        stream = Stream(place, 0, size)
        yield memory, stream, checkpoint
    stream.close()
    memory.close()
    checkpoint.close()


def test_a_peer_gets_each_byte_as_soon_as_the_worker_has_it(
    filling: tuple[MemoryFile, Stream, Checkpoint],
) -> None:
    memory, stream, checkpoint = filling
    found = bytearray(3)
    stream.read_into(memoryview(found), 0)
    assert found == b"abc"
    memory.write(memoryview(b"def"), 3)
    stream.read_into(memoryview(found), 3)
    assert found == b"def"
    checkpoint.release()
    assert (
        refusal_from(stream.read_into, memoryview(bytearray(1)), 6).reason is Reason.PEER_UNREADABLE
    )


def test_memory_can_be_sealed_while_bytes_are_on_their_way_to_a_peer(
    filling: tuple[MemoryFile, Stream, Checkpoint],
) -> None:
    memory, stream, _ = filling
    memory.write(memoryview(bytes(memory.size - 3)), 3)
    stream.read_into(memoryview(bytearray(1)), 0)  # the rest is in the buffers of the connection
    memory.seal()


async def test_a_peer_sends_the_headers_of_files_that_the_worker_has_not_begun(
    tmp_path: Path, make: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_files, "SILENCE_SECONDS", 5)
    path = write_tiny(tmp_path / "1")
    (path / damage.WEIGHTS).unlink()
    for number, name in ((1, "embed.weight"), (2, "head.weight")):
        shape = [2, 4] if number == 1 else [4]
        content: damage.Tensors = {name: ("BF16", shape, damage.bfloat16(1) * (8 // number))}
        damage.write_tensors(path / f"model-{number:05}-of-00002.safetensors", content)
    digest = open_checkpoint(str(path), None).digest(lambda: None)
    parent, wanted = make("a"), stage_request("1", path)
    place = present(parent.peers).place_of(peer(parent, "a"), digest)
    assert place is not None
    goes_on, true = threading.Event(), OpenFile.read_into

    def slow(file: OpenFile, piece: memoryview, position: int) -> None:
        assert goes_on.wait(60)
        true(file, piece, position)

    monkeypatch.setattr(OpenFile, "read_into", slow)
    first = asyncio.create_task(parent.stage(read_from(wanted, digest)))
    await asyncio.to_thread(eventually, lambda: present(parent.peers).serves)
    try:
        found = await asyncio.to_thread(open_from_peer, place, str(path))
        assert sorted(found.tensors) == ["embed.weight", "head.weight"]
    finally:
        goes_on.set()
    assert (await first).digest == digest
