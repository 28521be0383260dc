"""What breaks in a simulated fleet, and comes back: processes, nodes, files, the way to a worker."""

from __future__ import annotations

from typing import Any

from tests.model.fake_pods import FakePod
from tests.model.fake_state import Files, content_of


class Mishaps:
    """Part of `Simulation`, on whose fields it works."""

    pods: dict[str, FakePod]
    nodes: dict[str, float | None]
    now: float
    files: Files
    note: Any
    node_up: Any
    gating = False
    """Whether pods that are created wait for a scheduling gate."""

    def kill(self, pod: FakePod, *, back_after_seconds: float = 1.0) -> None:
        """The process of a worker dies; its container starts again."""
        self.note("fault", f"{pod.name} dies")
        if self.node_up(pod) and not pod.ended and not pod.gated:
            pod.worker.kill(self.now, back_after_seconds=back_after_seconds)

    def cling(self, pod: FakePod, seconds: float) -> None:
        """A worker's engine does not come to rest for a while: its requests cannot be ended."""
        self.note("fault", f"{pod.name} cannot end its requests for {seconds:.0f} s")
        pod.worker.stubborn_until, pod.suspect = self.now + seconds, True

    def hang(self, pod: FakePod, *, hung: bool = True) -> None:
        """A worker answers nobody any more, though what it was generating goes on; or it does again."""
        self.note("fault", f"{pod.name} {'hangs' if hung else 'goes on'}")
        pod.worker.hung, pod.suspect = hung, True

    def cut_off(self, pod: FakePod, *, cut: bool = True) -> None:
        """The operator reaches a worker no more, clients and the kubelet do; or it does again."""
        self.note("fault", f"{pod.name} is {'cut off' if cut else 'reached again'}")
        pod.cut_off, pod.suspect = cut, True

    def move_address(self, pod: FakePod, to: str) -> None:
        """Another pod gets the address under which the operator knows this one; or all is well again.

        `to`: uid of the other one, `STRANGER`, or empty.
        """
        self.note("fault", f"the address of {pod.name} is that of {to or 'its own pod'}")
        pod.address_of, pod.suspect = to, True

    def garble(self, pod: FakePod, *, garbled: bool = True) -> None:
        """What a worker answers is refused by its reader, though it does what it is asked."""
        self.note("fault", f"{pod.name} {'garbles' if garbled else 'speaks clearly'}")
        pod.garbled, pod.suspect = garbled, True

    def get_ahead(self, pod: FakePod, *, ahead: bool = True) -> None:
        """A worker is of a newer release, with words that the operator does not know."""
        self.note("fault", f"{pod.name} is of {'a newer' if ahead else 'this'} release")
        pod.worker.ahead, pod.suspect = ahead, True

    def spoil(self, version: str, *pods: FakePod) -> None:
        """A version's files are no good for some workers."""
        self.note("fault", f"{version} is no good for {', '.join(p.name for p in pods)}")
        for pod in pods:
            pod.worker.bad_sources.add(f"/weights/step_{version}")
            pod.suspect = True

    def will_break(self, version: str, pod: FakePod) -> None:
        """Loading a version will break a worker's engine."""
        self.note("fault", f"{version} will break the engine of {pod.name}")
        pod.worker.breaking_versions.add(version)
        pod.suspect = True

    def rewrite(self, path: str) -> None:
        """Other files take the place of those under a path."""
        self.note("fault", f"the files of {path} are rewritten")
        self.files.rewritten[path] = f"{content_of(path)}~rewritten"

    def is_rewritten(self, path: str) -> bool:
        """Whether other files lie under a path than the first ones."""
        return path in self.files.rewritten

    def restore(self, path: str) -> None:
        """The first files are back under a path."""
        self.note("person", f"restores the files of {path}")
        self.files.rewritten.pop(path, None)

    def evict(self, pod: FakePod) -> None:
        """The kubelet ends a pod for good."""
        if pod.ended or pod.gated or pod.deleted_at is not None or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} is evicted")
        pod.worker.drain()
        pod.ended, pod.trouble = "Failed", "Evicted: the node was low on memory"

    def crash_loop(self, pod: FakePod, *, over: bool = False) -> None:
        """A worker's container ends and ends again; or it runs at last."""
        if pod.ended or pod.gated or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} {'runs again' if over else 'ends again and again'}")
        pod.trouble = "" if over else "CrashLoopBackOff: back-off 5m0s"
        pod.worker.kill(self.now, back_after_seconds=1.0 if over else 1e9)

    def hold_new_pods(self, *, hold: bool = True) -> None:
        """A queue holds back every pod that is created from now on; or it lets all of them in."""
        self.note("cluster", "holds new pods back" if hold else "lets all pods in")
        self.gating = hold
        for pod in self.pods.values():
            if pod.gated and not hold:
                pod.gated = False
                if self.node_up(pod):
                    pod.worker.kill(self.now, back_after_seconds=0.0)

    def queue(self, pod: FakePod) -> None:
        """A new pod meets the queue."""
        if self.gating:
            pod.gated = True
            pod.worker.kill(self.now, back_after_seconds=1e9)

    def lose_node(self, node: str, *, power: bool) -> None:
        """A node is gone: without power its processes are gone, else only cut off from everybody."""
        self.note("fault", f"{node} {'loses its power' if power else 'is cut off'}")
        self.nodes[node] = self.now
        for pod in self.pods.values():
            if pod.node == node:
                pod.suspect = True
                if power:
                    pod.worker.kill(self.now, back_after_seconds=1e9)

    def return_node(self, node: str) -> None:
        """It comes back; what had no power starts."""
        self.note("fault", f"{node} is back")
        self.nodes[node] = None
        for pod in self.pods.values():
            waits = pod.trouble or pod.gated
            if pod.node == node and pod.worker.started_at > self.now and not waits:
                pod.worker.started_at = self.now
            if pod.node == node and pod.deleted_at is not None:
                pod.run_hook(self.now)
