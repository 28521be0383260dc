"""Peers that did not send a version, or sent other bytes. The worker does not ask them for it again."""

from __future__ import annotations

import logging
from collections import OrderedDict

from fleet_worker.checkpoint.refused_sources import LASTING
from fleet_worker.errors import Refusal, shorten
from fleet_worker.protocol import MAX_REFUSED_PEERS, Peer, Reason, RefusedPeer

_LOG = logging.getLogger(__name__)
OF_PEERS = (LASTING - {Reason.VERSION_REUSED}) | {
    Reason.PEER_UNREADABLE,
    Reason.SOURCE_NOT_FOUND,
    Reason.CHECKPOINT_CHANGED,
    Reason.DELTA_MISMATCH,
}
"""Reasons that are the fault of the peer that was read."""
_MESSAGE_CHARACTERS = 300


class RefusedPeers:
    """The last refused peers, newest first."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], RefusedPeer] = OrderedDict()

    def has(self, peer: Peer, digest: str) -> bool:
        """Whether a peer is not asked again for a version."""
        return (peer.pod_uid, digest) in self._known

    def note(self, peer: Peer, digest: str, refusal: Refusal) -> None:
        """Remember and log why a peer is not asked again."""
        _LOG.warning("peer %s is not asked again: %s", peer.host, refusal.message)
        self._known[peer.pod_uid, digest] = RefusedPeer(
            pod_uid=peer.pod_uid,
            digest=digest,
            reason=refusal.reason,
            message=shorten(refusal.message, _MESSAGE_CHARACTERS),
        )
        while len(self._known) > MAX_REFUSED_PEERS:
            self._known.popitem(last=False)

    @property
    def all(self) -> tuple[RefusedPeer, ...]:
        """All of them, for the state."""
        return tuple(reversed(self._known.values()))
