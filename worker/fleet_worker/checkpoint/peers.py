"""The versions that a worker serves to its peers: other workers of the fleet, which read its memory."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.peer_files import delta_name, is_name
from fleet_worker.checkpoint.peer_tls import Certificate
from fleet_worker.checkpoint.stager_messages import (
    GoneError,
    Offer,
    OfferedFile,
    Place,
    Withdraw,
    receive,
    send,
)
from fleet_worker.checkpoint.stagers import process_environment
from fleet_worker.protocol import (
    PEER_PATH,
    SIGNATURE_SCHEME,
    Peer,
    SignedCall,
    body_digest,
    call_signature,
)
from rlfleet_resources.weight_files import INDEX_FILE

_LOG = logging.getLogger(__name__)
_MODULE = "fleet_worker.checkpoint.peer_server"
_ANSWER_SECONDS = 30.0
"""The process starts in a quarter of a second, but with low priority."""
_NO_BODY = body_digest(b"")
Tokens = Callable[[], Sequence[str]]
"""Returns the fleet's admin tokens."""


def authorization(token: str, pod_uid: str, digest: str) -> str:
    """Return the header that allows a worker to read a version from a pod.

    It is the signature of a read, for this version of this pod only. A holder of the fleet's token can make it.
    """
    call = SignedCall(
        method="GET",
        path=PEER_PATH + digest,
        pod_uid=pod_uid,
        instance="",
        nonce="",
        body_digest=_NO_BODY,
    )
    return f"{SIGNATURE_SCHEME} {call_signature(token, call)}"


class Peers:
    """The process that serves, and the versions that it may serve.

    Fields:
        port: that it listens on.
    """

    def __init__(
        self,
        listener: socket.socket,
        *,
        pod_uid: str,
        tokens: Tokens,
        bytes_per_second: int = 0,
        certificate: Certificate | None = None,
    ) -> None:
        """Make it. The process starts with `keep_ready`, or else with the first version.

        Args:
            listener: Bound socket of the port.
            pod_uid: Of this worker's pod.
            tokens: The fleet's admin tokens.
            bytes_per_second: To send to all peers together; 0 for no limit.
            certificate: Of this worker, and of all its peers; None for connections without TLS.
        """
        self.port = int(listener.getsockname()[1])
        listener.listen()
        self._listener = listener
        self._pod_uid = pod_uid
        self._tokens = tokens
        self._rate = bytes_per_second
        self._certificate = certificate
        self._lock = threading.Lock()
        self._offers: dict[int, str] = {}
        self._next = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    @property
    def serves(self) -> tuple[str, ...]:
        """The digests of the versions that peers may read now."""
        process = self._process
        if process is None or process.poll() is not None:
            return ()
        return tuple(dict.fromkeys(filter(None, self._offers.values())))

    def place_of(self, peer: Peer, digest: str) -> Place | None:
        """Where a peer serves a version; None without a token to sign the reads with, or without a readable
        certificate.
        """
        headers, certificate = self._authorizations(peer.pod_uid, digest), ""
        if self._certificate is not None:
            try:
                certificate = self._certificate.own()
            except (OSError, ValueError) as error:
                _LOG.warning("no peer can be read: the certificate cannot be read (%s)", error)
                return None
        if not headers:
            return None
        return Place(peer.host, peer.port, digest, ", ".join(headers), certificate)

    def _authorizations(self, pod_uid: str, digest: str) -> list[str]:
        """One for each token: while tokens are exchanged, the peer may have only the old one, or the new one."""
        return [authorization(token, pod_uid, digest) for token in self._tokens()]

    def keep_ready(self) -> None:
        """Start the process, which takes a quarter of a second."""
        with self._lock:
            try:
                self._connected()
            except OSError as error:
                _LOG.warning("peers cannot be served now: %s", error.strerror)

    def show_of(self, digest: str, checkpoint: Checkpoint) -> Callable[[Sequence[int], int], None]:
        """Return what serves a version from the moment on at which a pass fills its memory."""
        return partial(self._show, digest, checkpoint)

    def _show(
        self, digest: str, checkpoint: Checkpoint, descriptors: Sequence[int], lengths: int
    ) -> None:
        withdraw, checkpoint.withdraw = checkpoint.withdraw, None
        if withdraw is not None:  # the pass begins again
            withdraw()
        checkpoint.drop_delta()
        if descriptors:
            count = len(checkpoint.files)
            self._serve_delta(digest, checkpoint, descriptors[count:])
            checkpoint.withdraw = self._serve(digest, checkpoint, descriptors[:count], lengths)

    def serve(self, digest: str, checkpoint: Checkpoint) -> None:
        """Serve a version whose bytes are in memory, unless it is served already."""
        if checkpoint.withdraw is None and checkpoint.is_held:
            kept = [checkpoint.descriptor_of(file) for file in checkpoint.files]
            checkpoint.withdraw = self._serve(digest, checkpoint, kept, None)

    def _serve(
        self, digest: str, checkpoint: Checkpoint, descriptors: Sequence[int], lengths: int | None
    ) -> Callable[[], None] | None:
        return self._offer(digest, digest, checkpoint.files, checkpoint.small, descriptors, lengths)

    def _serve_delta(self, digest: str, checkpoint: Checkpoint, descriptors: Sequence[int]) -> None:
        """Serve the newest delta of a version, too. Before the version: a peer asks for the delta first."""
        if not descriptors or checkpoint.changed is None:
            return
        delta = checkpoint.changed.deltas[-1]
        small = {INDEX_FILE: delta.index}
        checkpoint.withdraw_delta = self._offer(
            delta_name(digest), digest, delta.files, small, descriptors, None
        )
        checkpoint.delta_bytes = delta.size_bytes if checkpoint.withdraw_delta else 0

    def _offer(
        self,
        name: str,
        digest: str,
        files: Sequence[OpenFile],
        small_files: Mapping[str, bytes],
        descriptors: Sequence[int],
        lengths: int | None,
    ) -> Callable[[], None] | None:
        """Serve files under a name to the readers of a version."""
        headers = self._authorizations(self._pod_uid, digest)
        sizes = {file.name: file.state.size for file in files}
        sizes |= {each: len(content) for each, content in small_files.items()}
        if not all(map(is_name, sizes)):
            _LOG.warning(
                "a version is not served to peers: UTF-8 cannot carry the name of one of its files"
            )
            return None
        with ExitStack() as sent, self._lock:
            small = [_memory_of(content, sent) for content in small_files.values()]
            number, self._next = self._next, self._next + 1
            offer = Offer(
                number=number,
                digest=name,
                authorizations=headers,
                files=[OfferedFile(name=each, size=size) for each, size in sizes.items()],
                growing=len(descriptors) if lengths is not None else 0,
            )
            try:
                given = [*descriptors, *small, *([lengths] if lengths is not None else [])]
                self._tell(self._connected(), offer, given)
            except (OSError, GoneError) as error:
                _LOG.warning("peers cannot be served: %s", error)
                self._end()
                return None
            self._offers[number] = digest if name == digest else ""
        return partial(self._withdraw, number)

    def _connected(self) -> socket.socket:
        """The connection to the process, which is started if none runs."""
        if self._process is not None and self._process.poll() is None and self._control is not None:
            return self._control
        self._end()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_ANSWER_SECONDS)
        passed = (theirs.fileno(), self._listener.fileno())
        command = [sys.executable, "-P", "-m", _MODULE, *map(str, passed), str(self._rate)]
        if self._certificate is not None:
            command += [self._certificate.path, self._certificate.key]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                command,
                env=process_environment(),
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        return self._control

    def _withdraw(self, number: int) -> None:
        """End an offer. After this the process keeps none of its memory. Blocks for a moment."""
        with self._lock:
            if self._offers.pop(number, None) is None or self._control is None:
                return
            try:
                self._tell(self._control, Withdraw(number=number))
            except (OSError, GoneError):
                _LOG.warning("the process that serves peers does not answer; it is ended")
                self._end()

    @staticmethod
    def _tell(
        control: socket.socket, message: Offer | Withdraw, files: list[int] | None = None
    ) -> None:
        """Send a message and wait for its effect. Errors: OSError, GoneError."""
        send(control, message, files)
        receive(control)

    def _end(self) -> None:
        """End the process, which frees what it keeps. All offers end."""
        self._offers.clear()
        control, self._control = self._control, None
        process, self._process = self._process, None
        if control is not None:
            control.close()
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process and close the port."""
        with self._lock:
            self._end()
        self._listener.close()


def _memory_of(content: bytes, sent: ExitStack) -> int:
    """Return a file in memory with some bytes, which is closed with `sent`."""
    descriptor = os.memfd_create("rlfleet-small", os.MFD_CLOEXEC)
    sent.callback(os.close, descriptor)
    os.pwrite(descriptor, content, 0)
    return descriptor
