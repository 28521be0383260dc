"""Faults of a simulated fleet and their end: processes, nodes, files, the network to a worker."""

from __future__ import annotations

import math
from typing import Any

from tests.model.fake_pods import FakePod
from tests.model.fake_revisions import FakeRevisions
from tests.model.fake_state import Files


class FaultInjection:
    """Part of `Simulation`, on whose fields it works."""

    pods: dict[str, FakePod]
    nodes: dict[str, float | None]
    now: float
    files: Files
    note: Any
    node_up: Any
    revisions: FakeRevisions
    room: int | None = None
    """How many pods a queue lets in; those beyond wait for a scheduling gate. None without a queue."""

    def kill(self, pod: FakePod, *, back_after_seconds: float = 1.0) -> None:
        """The process of a worker dies; its container starts again."""
        self.note("fault", f"{pod.name} dies")
        if self.node_up(pod) and not pod.ended and not pod.gated:
            pod.worker.kill(self.now, back_after_seconds=back_after_seconds)

    def cling(self, pod: FakePod, seconds: float) -> None:
        """A worker's engine cannot end its requests for a while."""
        self.note("fault", f"{pod.name} cannot end its requests for {seconds:.0f} s")
        pod.worker.stubborn_until, pod.suspect = self.now + seconds, True

    def hang(self, pod: FakePod, *, hung: bool = True) -> None:
        """A worker stops answering while its running requests continue, or answers again."""
        self.note("fault", f"{pod.name} {'hangs' if hung else 'continues'}")
        pod.worker.hung, pod.suspect = hung, True

    def cut_off(self, pod: FakePod, *, cut: bool = True) -> None:
        """The operator reaches a worker no more, clients and the kubelet do; or it does again."""
        self.note("fault", f"{pod.name} is {'cut off' if cut else 'reached again'}")
        if pod.cut_off:
            began, _ = pod.unreached.pop()
            pod.unreached.append((began, self.now))
        if cut:
            pod.unreached.append((self.now, math.inf))
        pod.cut_off, pod.suspect = cut, True

    def move_address(self, pod: FakePod, to: str) -> None:
        """Another pod gets the address under which the operator knows this one; or all is well again.

        `to`: uid of the other one, `STRANGER`, or empty.
        """
        self.note("fault", f"the address of {pod.name} is that of {to or 'its own pod'}")
        pod.address_of, pod.suspect = to, True

    def garble(self, pod: FakePod, *, garbled: bool = True) -> None:
        """The operator cannot read a worker's answers, though the worker does what they report."""
        self.note("fault", f"{pod.name} {'garbles' if garbled else 'speaks clearly'}")
        pod.garbled, pod.suspect = garbled, True

    def ignore(self, pod: FakePod, *kinds: str, claims: bool = False) -> None:
        """A worker answers calls of some kinds with success, and does nothing."""
        named = ", ".join(kinds)
        self.note(
            "fault", f"{pod.name} ignores {named}{', and claims the effect' if claims else ''}"
        )
        pod.worker.ignores, pod.worker.claims = frozenset(kinds), claims
        pod.suspect = True

    def reject(self, pod: FakePod, *kinds: str) -> None:
        """A worker refuses calls of some kinds, whatever they ask for."""
        self.note("fault", f"{pod.name} refuses {', '.join(kinds)}")
        pod.worker.refuses, pod.suspect = frozenset(kinds), True

    def reset(self, pod: FakePod, *kinds: str) -> None:
        """A worker resets the connections of calls of some kinds."""
        self.note("fault", f"{pod.name} resets {', '.join(kinds)}")
        pod.worker.resets, pod.suspect = frozenset(kinds), True

    def obey(self, pod: FakePod) -> None:
        """A worker follows all calls again."""
        worker = pod.worker
        if worker.ignores or worker.refuses or worker.resets:
            self.note("fault", f"{pod.name} follows all calls again")
        worker.ignores = worker.refuses = worker.resets = frozenset()
        worker.claims = False

    def get_ahead(self, pod: FakePod, *, ahead: bool = True) -> None:
        """A worker is of a newer release, with words that the operator does not know."""
        self.note("fault", f"{pod.name} is of {'a newer' if ahead else 'this'} release")
        pod.worker.ahead, pod.suspect = ahead, True

    def spoil(self, version: str, *pods: FakePod) -> None:
        """A version's files are damaged for some workers."""
        self.note("fault", f"{version} is bad for {', '.join(p.name for p in pods)}")
        for pod in pods:
            pod.worker.bad_sources.add(f"/weights/step_{version}")
            pod.suspect = True

    def spoil_path(self, path: str, *pods: FakePod) -> None:
        """The files under a path are damaged for some workers."""
        self.note("fault", f"{path} is bad for {', '.join(p.name for p in pods)}")
        for pod in pods:
            pod.worker.bad_sources.add(path)

    def use_adapter_slots(self, pod: FakePod, seconds: float) -> None:
        """Requests use all slots of a worker's adapters for a while."""
        self.note("fault", f"{pod.name} has no free slot for {seconds:.0f} s")
        pod.worker.no_slot_until = self.now + seconds

    def fail_adapters(self, pod: FakePod, times: int) -> None:
        """The next loads of adapters fail in a worker's engine."""
        self.note("fault", f"the engine of {pod.name} fails with {times} adapters")
        pod.worker.failing_adapters = times

    def leave_room_for_adapters(self, pod: FakePod, versions: int) -> None:
        """Limit how many versions of adapters the memory of a worker holds."""
        self.note("fault", f"{pod.name} has memory for {versions} versions of adapters")
        pod.worker.room_for_adapters = versions

    def will_break(self, version: str, pod: FakePod) -> None:
        """Loading a version will break a worker's engine."""
        self.note("fault", f"{version} will break the engine of {pod.name}")
        pod.worker.breaking_versions.add(version)
        pod.suspect = True

    def rewrite(self, path: str) -> None:
        """Other files take the place of those under a path."""
        self.note("fault", f"the files of {path} are rewritten")
        self.files.rewritten[path] = f"{self.files.first_at(path)}~rewritten"
        self.files.changed_at[path] = self.now

    def is_rewritten(self, path: str) -> bool:
        """Whether other files lie under a path than the first ones."""
        return path in self.files.rewritten

    def leave_out(self, path: str) -> None:
        """A trainer publishes what it has not written yet."""
        self.note("trainer", f"has not written {path} yet")
        self.files.absent.add(path)

    def write_all(self) -> None:
        """It has written everything now."""
        if self.files.absent or self.files.unfinished:
            self.note("trainer", "has written everything")
        for path in (*self.files.absent, *self.files.unfinished):
            self.files.changed_at[path] = self.now
        self.files.absent.clear()
        self.files.unfinished.clear()

    def leave_unfinished(self, path: str) -> None:
        """A trainer dies before it has written the last file of an adapter under a path."""
        self.note("fault", f"the files of {path} are not complete")
        self.files.unfinished.add(path)

    def finish(self, path: str) -> None:
        """The last file is there."""
        self.note("trainer", f"completes the files of {path}")
        self.files.unfinished.discard(path)

    def restore(self, path: str) -> None:
        """The first files are back under a path."""
        self.note("user", f"restores the files of {path}")
        self.files.rewritten.pop(path, None)
        self.files.changed_at[path] = self.now

    def evict(self, pod: FakePod) -> None:
        """The kubelet ends a pod for good."""
        if pod.ended or pod.gated or pod.deleted_at is not None or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} is evicted")
        pod.worker.drain()
        pod.ended, pod.problem = "Failed", "Evicted: the node was low on memory"

    def crash_loop(self, pod: FakePod, *, over: bool = False) -> None:
        """A worker's container ends and ends again; or it runs at last."""
        if pod.ended or pod.gated or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} {'runs again' if over else 'ends again and again'}")
        pod.problem = "" if over else "CrashLoopBackOff: back-off 5m0s"
        pod.worker.kill(self.now, back_after_seconds=1.0 if over else 1e9)

    def hold_new_pods(self, *, hold: bool = True) -> None:
        """A queue holds back every pod that is created from now on; or it lets all of them in."""
        self.note("cluster", "holds new pods back" if hold else "lets all pods in")
        self.room = 0 if hold else None
        self.let_in()

    def leave_room_for(self, pods: int) -> None:
        """A queue admits at most this number of pods, of those that are created from now on."""
        self.note("cluster", f"lets no more than {pods} pods in")
        self.room = pods
        self.let_in()

    def let_in(self) -> None:
        """The queue lets in the first ones for which there is room."""
        up = [n for n, lost_at in self.nodes.items() if lost_at is None]
        for pod in [p for p in self.pods.values() if p.gated and p.deleted_at is None]:
            if self._is_full():
                return
            pod.gated = False
            pod.node = pod.node if pod.node in up or not up else up[0]
            if self.node_up(pod):
                pod.worker.kill(self.now, back_after_seconds=0.0)

    def _is_full(self) -> bool:
        inside = sum(not p.gated for p in self.pods.values())
        return self.room is not None and inside >= self.room

    def refuse_templates(self, *, refuse: bool = True) -> None:
        """The API server takes no record of a template any more; or it does again."""
        self.note("cluster", f"{'refuses' if refuse else 'takes'} records of templates")
        self.revisions.refused = refuse

    def queue(self, pod: FakePod) -> None:
        """A new pod meets the queue."""
        if self._is_full():
            pod.gated = True
            pod.worker.kill(self.now, back_after_seconds=1e9)

    def lose_node(self, node: str, *, power: bool) -> None:
        """A node fails: without power its processes end, else the network only cuts it off."""
        self.note("fault", f"{node} {'loses its power' if power else 'is cut off'}")
        self.nodes[node] = self.now
        for pod in self.pods.values():
            if pod.node == node and not pod.gated:
                pod.suspect = True
                if power:
                    pod.worker.kill(self.now, back_after_seconds=1e9)

    def return_node(self, node: str) -> None:
        """The node comes back, and its stopped processes start."""
        self.note("fault", f"{node} is back")
        self.nodes[node] = None
        for pod in self.pods.values():
            waits = pod.problem or pod.gated
            if pod.node == node and pod.worker.started_at > self.now and not waits:
                pod.worker.started_at = self.now
            if pod.node == node and pod.deleted_at is not None:
                pod.run_hook(self.now)
