"""One worker of the measurement of peers, without an engine. It stages, and serves its version.

It takes one JSON object a line, and prints one for each step. In the worker's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import (
    Bases,
    HeldBase,
    open_delta_from_peer,
    open_weights,
)
from fleet_worker.checkpoint.peer_files import open_from_peer
from fleet_worker.checkpoint.peers import Peers
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stagers
from fleet_worker.http.sockets import bound_socket
from fleet_worker.protocol import Peer

_ENOUGH = 1 << 60


def main() -> None:
    """Serve requests until the input ends."""
    uid = sys.argv[1]
    stagers = Stagers()
    stagers.keep_ready()
    peers = Peers(bound_socket("127.0.0.1", 0), pod_uid=uid, tokens=lambda: ("bench",))
    peers.keep_ready()
    _tell(ready=peers.port)
    staged: Checkpoint | None = None
    base: HeldBase | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if (path := request.get("hold")) is not None:
            checkpoint = open_weights(path, None, Bases())
            _bring(checkpoint, stagers)
            base = HeldBase(checkpoint.digest(lambda: None), checkpoint)
            _tell(holds=True)
            continue
        if staged is not None:
            staged.close()
        staged = _stage(request, peers, stagers, base)
        _tell(staged=staged.digest(lambda: None), peer_bytes=staged.peer_bytes)
    peers.close()
    stagers.close()


def _stage(
    request: dict[str, Any], peers: Peers, stagers: Stagers, base: HeldBase | None
) -> Checkpoint:
    digest, path = str(request["digest"]), str(request["path"])
    held = [HeldBase(base.digest, base.checkpoint.duplicate())] if base is not None else []
    checkpoint = None
    if (peer := request.get("peer")) is None:
        checkpoint = open_weights(path, None, Bases(held))
    else:
        place = peers.place_of(Peer.model_validate(peer), digest)
        if place is None:
            raise SystemExit("there is no token")
        if not request["whole"]:
            checkpoint = open_delta_from_peer(place, path, held)
        if checkpoint is None:
            checkpoint = open_from_peer(place, path)
    Bases(held).close()
    if digest and request["serves"]:
        offer = peers.show_of(digest, checkpoint)

        def show(descriptors: Sequence[int], lengths: int) -> None:
            offer(descriptors, lengths)
            _tell(serves=True)

        checkpoint.show = show
        checkpoint.shares_delta = checkpoint.changed is not None
    _bring(checkpoint, stagers)
    return checkpoint


def _bring(checkpoint: Checkpoint, stagers: Stagers) -> None:
    reading = StagerPass(stagers, {})
    if not checkpoint.read_in(reading, budget=_ENOUGH, check_cancelled=lambda: None):
        raise SystemExit("there is not enough memory for this measurement")


def _tell(**fields: object) -> None:
    sys.stdout.write(json.dumps(fields) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
