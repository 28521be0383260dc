"""Which proxy leads to a server, by the environment: as kubectl and other programs in Go read it.

Unlike httpx, these read networks in `NO_PROXY` (`10.0.0.0/8`), as the proxy settings of clusters have
them, and reach the loopback directly. Source: golang.org/x/net/http/httpproxy. `ALL_PROXY`, which Go does
not read, is for what neither `HTTP_PROXY` nor `HTTPS_PROXY` names.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def proxy_of(url: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The URL of the proxy for a server; None if it is reached directly.

    >>> proxy_of("https://10.96.0.1", {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"})
    >>> proxy_of("https://192.0.2.7", {"HTTPS_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"})
    'http://proxy:3128'
    """
    parts = urlsplit(url)
    host = (parts.hostname or "").lower().rstrip(".")
    proxy = _variable(environment, f"{parts.scheme}_proxy") or _variable(environment, "all_proxy")
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if not proxy or _is_direct(host, port, _variable(environment, "no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name, "")


def _is_direct(host: str, port: int, exceptions: str) -> bool:
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry.strip().lower() for entry in exceptions.split(",")]
    named = [_split(entry) for entry in entries if entry]
    return any(
        its_port in {None, port} and _matches(name, host, address) for name, its_port in named
    )


def _matches(name: str, host: str, address: _Address | None) -> bool:
    """Whether an entry of `NO_PROXY` names a server: `*`, a network, an address or a domain."""
    if name == "*":
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(name.strip("[]"), strict=False)
        except ValueError:
            return False
    domain = name.removeprefix("*")
    return host.endswith(domain if domain.startswith(".") else f".{domain}") or host == domain


def _split(entry: str) -> tuple[str, int | None]:
    """An entry without its port, which may be absent. An address of IPv6 with a port has brackets."""
    name, colon, port = entry.rpartition(":")
    if colon and port.isdecimal() and (":" not in name or name.startswith("[")):
        return name, int(port)
    return entry, None


def _address(host: str) -> _Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
