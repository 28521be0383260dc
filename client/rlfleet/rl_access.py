"""How to reach the RL API: its address, a token and an authority, from arguments or the environment.

Source: docs/reference/rl-api.md, "Credentials".
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rlfleet.errors import NotConfigured
from rlfleet.kubeconfig import SERVICE_ACCOUNT, checked_token, token_of_file
from rlfleet.proxies import proxy_of

URL = "RLFLEET_API_URL"
TOKEN = "RLFLEET_API_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_FILE = "RLFLEET_API_TOKEN_FILE"  # noqa: S105 - the name of a variable
CA_FILE = "RLFLEET_API_CA_FILE"
NAMESPACE = "RLFLEET_NAMESPACE"


@dataclass(frozen=True, slots=True)
class RlAccess:
    """The address of the RL API, and the credentials for it.

    Fields:
        url: the address, without a slash at its end.
        namespace: the namespace of the fleet.
        token: returns the current token. Called before each request, since tokens in files are rotated.
        proxy: URL of the proxy that leads to `url`; None without one.
    """

    url: str
    namespace: str
    tls: ssl.SSLContext
    token: Callable[[], str]
    proxy: str | None = None


def rl_access(
    url: str,
    *,
    token: str | None = None,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    namespace: str | None = None,
    environment: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> RlAccess:
    """The access that arguments describe; the environment fills in what they leave out.

    Errors: NotConfigured, which never quotes a token.
    """
    if token is not None and token_file is not None:
        raise NotConfigured("token and token_file are both given; give one of them")
    if token is None and token_file is None:
        token, token_file = environment.get(TOKEN) or None, environment.get(TOKEN_FILE) or None
        if token is not None and token_file is not None:
            raise NotConfigured(f"{TOKEN} and {TOKEN_FILE} are both set; set one of them")
    if token is not None:
        text = checked_token(token, "the token")
        read: Callable[[], str] = lambda: text  # noqa: E731 - the same as below
    elif token_file is not None:
        read = token_of_file(Path(token_file))
    else:
        raise NotConfigured(
            f"the RL API at {url} needs a token; give token=, token_file= or --token-file, or set {TOKEN} or "
            f"{TOKEN_FILE}"
        )
    address = _address(url)
    return RlAccess(
        url=address,
        namespace=_namespace(namespace, environment, account),
        tls=_trust(ca or environment.get(CA_FILE) or None),
        token=read,
        proxy=proxy_of(address, environment),
    )


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.username or parts.password or parts.query or parts.fragment:
        raise NotConfigured(
            "the address of the RL API cannot be used; it must be https://HOST[:PORT][/PATH] "
            "without credentials and parameters"
        )
    return url.rstrip("/")


def _namespace(named: str | None, environment: Mapping[str, str], account: Path) -> str:
    found = named or environment.get(NAMESPACE)
    if found:
        return found
    file = account / "namespace"
    if file.exists():
        return file.read_text().strip()
    raise NotConfigured(f"the fleet's namespace is not known; give namespace=, or set {NAMESPACE}")


def _trust(ca: str | Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else str(ca))
    except (OSError, ssl.SSLError) as error:
        raise NotConfigured(
            f"{ca} cannot be used as an authority: {error}; name a file of certificates in PEM"
        ) from error
