"""Where requests of rollout clients go: Services of the fleet that were read and checked.

Users of a namespace can make any Service there, also under the name of a fleet's Service. Its name may then
lead to any host, and the RL API reaches hosts that its callers do not reach. So a name is never looked up:
connections lead only to the cluster addresses of Services that passed the check.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from fleet_api.fleets import Fleet
from fleet_api.ports import Cluster
from fleet_api.problems import Problem, busy
from fleet_api.shared_calls import SharedCalls
from fleet_api.steering import spec_of
from fleet_api.ttl_cache import TtlCache
from fleet_operator.places import Places
from rlfleet.errors import NotFound
from rlfleet_resources import names
from rlfleet_resources.reasons import ConditionReason

SERVICE_SECONDS = 5.0
MAX_SERVICES = 4096
_TARGET_PORT = "http"


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of a check. `address`: the cluster address; empty with a reason and a message."""

    address: str = ""
    reason: str = ""
    message: str = ""


class Destinations(AbstractResolver):
    """The Services of fleets, and the only names that connections of the proxy can use."""

    def __init__(self, cluster: Cluster, places: Places, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._places = places
        self._known: TtlCache[tuple[str, str], Checked] = TtlCache(MAX_SERVICES, monotonic)
        """By uid of the fleet, and name of the Service."""
        self._reads: SharedCalls[tuple[str, str], Checked] = SharedCalls()
        self._addresses: OrderedDict[str, str] = OrderedDict()
        """Checked addresses by host."""

    async def of(self, fleet: Fleet) -> str:
        """URL of the fleet's router, or of its Service without one.

        Errors: Problem 503 if the fleet has no workers, or no Service of its own, and 409 if they serve HTTPS.
            Those of `Cluster`.
        """
        if fleet.spec.router is None:
            return await self.behind(fleet)
        selector = names.router_selector(fleet.name)
        return await self._url(fleet, names.router_name(fleet.name), selector)

    async def behind(self, fleet: Fleet) -> str:
        """URL of the fleet's Service, which chooses a worker for each connection. Errors: as for `of`."""
        return await self._url(fleet, fleet.name, names.endpoint_selector(fleet.name))

    def forget(self, fleet: Fleet) -> None:
        """Read the Services of this fleet at its next request."""
        for name in (fleet.name, names.router_name(fleet.name)):
            self._known.drop((fleet.uid, name))

    async def _url(self, fleet: Fleet, name: str, selector: Mapping[str, str]) -> str:
        if fleet.spec.replicas == 0:
            raise busy(
                ConditionReason.NO_WORKERS,
                f"fleet {fleet.name!r} has 0 replicas; send the request again when it has workers",
            )
        if fleet.spec.engine.scheme == "https":
            raise _only_https(fleet)
        key = (fleet.uid, name)
        found = self._known.get(key)
        if found is None:
            found = await self._reads.join(key, partial(self._read, fleet, name, selector))
            self._known.put(key, found, SERVICE_SECONDS)
        url = names.endpoint_url(name, fleet.namespace, fleet.spec.serving.port)
        host = str(URL(url).host)
        self._addresses.pop(host, None)
        if not found.address:
            raise busy(found.reason, found.message)
        self._addresses[host] = found.address
        if len(self._addresses) > MAX_SERVICES:
            self._addresses.popitem(last=False)
        return url

    async def _read(self, fleet: Fleet, name: str, selector: Mapping[str, str]) -> Checked:
        path = f"/api/v1/namespaces/{fleet.namespace}/services/{name}"
        try:
            async with self._places.of(fleet.namespace):
                service = await self._cluster.call("GET", path)
        except NotFound:
            return Checked(
                reason="NoService",
                message=f"Service {name!r} of fleet {fleet.name!r} does not exist; send the request again "
                "when the operator has created it",
            )
        return checked(service, fleet, selector)

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - the address has one
    ) -> list[ResolveResult]:
        """The checked address of a Service. Errors: OSError for any other name."""
        address = self._addresses.get(host)
        if address is None:
            raise OSError(f"{host} is not the name of a checked Service")
        is_ipv6 = isinstance(ipaddress.ip_address(address), ipaddress.IPv6Address)
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        """Nothing is open."""


def _only_https(fleet: Fleet) -> Problem:
    """The RL API has no certificate of an authority by which it could check those of tenants."""
    url = names.endpoint_url(fleet.name, fleet.namespace, fleet.spec.serving.port, "https")
    return Problem(
        HTTPStatus.CONFLICT,
        "HTTPSOnly",
        f"the workers of fleet {fleet.name!r} serve HTTPS, and the RL API passes requests on over HTTP only; "
        f"send them to {url}",
    )


def checked(service: Mapping[str, Any], fleet: Fleet, selector: Mapping[str, str]) -> Checked:
    """Check that a Service is the one that the operator makes for the fleet: owner, pods, port and address.

    Labels and owner references are claims of users of the namespace. They decide only which pods of this
    namespace are reached, since the API server assigns cluster addresses, and the selector chooses pods.

    Errors: Problem 502 for a Service that is too large to be read.
    """
    metadata, spec = service["metadata"], spec_of(service, "Service")
    name, port = metadata["name"], fleet.spec.serving.port
    if names.controller_uid(metadata) != fleet.uid:
        return Checked(
            reason=ConditionReason.NAME_TAKEN,
            message=f"Service {name!r} does not belong to fleet {fleet.name!r}; delete it, and the operator "
            "creates the fleet's own",
        )
    is_chosen = selector.items() <= (spec.get("selector") or {}).items()
    has_port = any(
        (one["port"], one.get("targetPort"), one.get("protocol", "TCP"))
        == (port, _TARGET_PORT, "TCP")
        for one in spec.get("ports") or ()
    )
    if spec.get("type") == "ExternalName" or not (
        is_chosen and has_port and _is_address(spec.get("clusterIP"))
    ):
        return Checked(
            reason="NoService",
            message=f"Service {name!r} of fleet {fleet.name!r} has been changed, so that it leads elsewhere; "
            "send the request again when the operator has corrected it, or delete the Service",
        )
    return Checked(spec["clusterIP"])


def _is_address(text: str | None) -> bool:
    """Whether it is an address. Services without one have an empty text or `None`."""
    try:
        ipaddress.ip_address(text or "")
    except ValueError:
        return False
    return True
