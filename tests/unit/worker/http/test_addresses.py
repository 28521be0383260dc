"""The addresses on which the worker's ports listen."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.support.families import IPV4, IPV6, needs_ipv6

from fleet_worker.http.sockets import EVERY, bound_socket
from fleet_worker.process.serve import public_host


def answering(host: str) -> set[str]:
    """The addresses of this machine at which a port with this host takes connections."""
    found = set()
    with bound_socket(host, 0) as listener:
        listener.listen()
        listener.settimeout(0.2)
        port = listener.getsockname()[1]
        for address in (IPV4, IPV6):
            # The same port of the other family may be that of another process, or of this client itself.
            try:
                with socket.create_connection((address, port), timeout=5):
                    listener.accept()[0].close()
            except OSError:
                continue
            found.add(address)
    return found


@needs_ipv6
@pytest.mark.parametrize(
    ("host", "addresses"),
    [(EVERY, {IPV4, IPV6}), (IPV4, {IPV4}), (IPV6, {IPV6}), ("0.0.0.0", {IPV4})],
)
def test_a_port_listens_on_the_addresses_that_its_host_names(
    host: str, addresses: set[str]
) -> None:
    assert answering(host) == addresses


@needs_ipv6
def test_vllm_gets_the_address_of_both_families_for_the_public_port() -> None:
    assert (public_host(EVERY), public_host(IPV4)) == ("::", IPV4)


def test_a_kernel_without_ipv6_serves_its_own_family(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)

    assert public_host(EVERY) == "0.0.0.0"
    assert answering(EVERY) == {IPV4}


async def test_a_port_of_asyncio_sends_small_answers_at_once() -> None:
    connected: asyncio.Future[asyncio.StreamWriter] = asyncio.get_running_loop().create_future()
    async with await asyncio.start_server(
        lambda _, writer: connected.set_result(writer), sock=bound_socket(IPV4, 0)
    ) as server:
        with socket.create_connection(server.sockets[0].getsockname(), timeout=5):
            writer = await asyncio.wait_for(connected, 5)
            accepted = writer.get_extra_info("socket")

            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()
