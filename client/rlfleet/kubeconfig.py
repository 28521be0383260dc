"""How to reach the API server: a kubeconfig, or the service account of the pod that the client runs in.

Source: Kubernetes, "Organizing Cluster Access Using kubeconfig Files" and client-go credential
plugins. Passwords and `auth-provider` are gone from Kubernetes and are refused.
"""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from rlfleet.errors import NotConfigured
from rlfleet.proxies import proxy_of
from rlfleet.words import bounded

Config = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PLUGIN_SECONDS = 60
_MOST_OF_A_HINT = 1000
_TOKEN_TEXT = re.compile(r"[\x21-\x7e]+")
_RENEW_BEFORE = timedelta(seconds=30)
_NOT_SUPPORTED = {
    "username": "a token",
    "auth-provider": "an exec plugin",
    "as-groups": "a user of its own",
}
"""Keys of a user that are refused instead of ignored, and what to use instead."""
_UNUSABLE = (AttributeError, KeyError, TypeError, ValueError, OSError, yaml.YAMLError)
"""The errors of reading a kubeconfig that does not have the form of one."""


@dataclass(frozen=True, slots=True)
class Access:
    """The address of the API server, and the credentials for it.

    Fields:
        namespace: the default namespace.
        token: returns the current bearer token; empty without one. Called before each request, since
            tokens are rotated.
        token_blocks: whether that may take long, since a program gives the token.
        server_name: the name that the certificate must have; empty for the host of `server`.
        proxy: URL of the proxy that leads to `server`; None without one.
    """

    server: str
    namespace: str
    tls: ssl.SSLContext
    token: Callable[[], str]
    token_blocks: bool = False
    server_name: str = ""
    proxy: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def load_access(
    kubeconfig: str | Path | None = None,
    *,
    context: str | None = None,
    namespace: str | None = None,
    environment: Mapping[str, str] = os.environ,
    account: Path = SERVICE_ACCOUNT,
) -> Access:
    """Find the API server: the named file, `$KUBECONFIG`, the pod's account, `~/.kube/config`.

    Errors: NotConfigured.
    """
    named = _named(kubeconfig, environment)
    in_cluster = "KUBERNETES_SERVICE_HOST" in environment and (account / "token").exists()
    if not named and context is None and in_cluster:
        return _of_pod(environment, account, namespace)
    files = _files(named, environment)
    there = [file for file in files if file.is_file()]
    if not there:
        raise NotConfigured(
            "no cluster: neither a pod's service account nor a kubeconfig "
            f"({', '.join(map(str, files))}); set KUBECONFIG, or name a kubeconfig file"
        )
    try:
        return _of_config(_merged(there), context, namespace, environment)
    except _UNUSABLE as error:
        raise NotConfigured(
            f"{', '.join(map(str, there))} cannot be used: {_fault(error)}; correct the kubeconfig, "
            "or name another one"
        ) from error


def contexts_of(
    kubeconfig: str | Path | None = None, environment: Mapping[str, str] = os.environ
) -> list[str]:
    """The names of contexts; none where there is no usable kubeconfig."""
    files = _files(_named(kubeconfig, environment), environment)
    try:
        return sorted(_merged([file for file in files if file.is_file()]).get("contexts", {}))
    except _UNUSABLE:
        return []


def _named(kubeconfig: str | Path | None, environment: Mapping[str, str]) -> str:
    return str(kubeconfig or "") or environment.get("KUBECONFIG", "")


def _files(named: str, environment: Mapping[str, str]) -> list[Path]:
    default = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    return [Path(f).expanduser() for f in named.split(os.pathsep) if f] or [default]


def _fault(error: Exception) -> str:
    """The fault of a kubeconfig, in one line."""
    match error:
        case KeyError():
            return f"{error} is missing"
        case TypeError() | AttributeError():
            return "it does not have the form of a kubeconfig, with lists of clusters, contexts and users"
        case yaml.MarkedYAMLError(problem_mark=mark) if mark is not None:
            return f"line {mark.line + 1} is not YAML"  # YAML's own text quotes it, and it may have a token
        case _:
            return " ".join(str(error).split())


def _of_pod(environment: Mapping[str, str], account: Path, namespace: str | None) -> Access:
    host, port = (environment[f"KUBERNETES_SERVICE_{x}"] for x in ("HOST", "PORT"))
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return Access(
        server=server,
        namespace=namespace or (account / "namespace").read_text().strip(),
        tls=ssl.create_default_context(cafile=str(account / "ca.crt")),
        token=token_of_file(account / "token"),
        proxy=proxy_of(server, environment),
    )


def _merged(files: list[Path]) -> Config:
    """One configuration from several files. The first file that has an entry wins."""
    whole: Config = {}
    for file in files:
        config = yaml.safe_load(file.read_text()) or {}
        for plural, one in (("clusters", "cluster"), ("contexts", "context"), ("users", "user")):
            entries = whole.setdefault(plural, {})
            for entry in config.get(plural) or ():
                entries.setdefault(entry["name"], {"folder": file.parent} | (entry[one] or {}))
        if not whole.get("current-context"):
            whole["current-context"] = config.get("current-context")
    return whole


def _of_config(
    config: Config, context: str | None, namespace: str | None, environment: Mapping[str, str]
) -> Access:
    name = context or config["current-context"]
    if name not in config["contexts"]:
        missing = f"context {name!r}" if name else "current context"
        known = ", ".join(sorted(config["contexts"]))
        remedy = f"it has: {known}. Name one of these" if known else "name another kubeconfig"
        raise NotConfigured(f"the kubeconfig has no {missing}; {remedy}")
    chosen = config["contexts"][name]
    cluster = config["clusters"][chosen["cluster"]]
    user = config["users"][chosen["user"]] if chosen.get("user") else {}
    for key, instead in _NOT_SUPPORTED.items():
        if key in user:
            raise NotConfigured(f"users[].user.{key} is not supported; use {instead}")
    tls = _trust(cluster)
    plugin = Plugin(user["exec"], user["folder"], chosen["user"]) if "exec" in user else None
    identity = plugin.certificate() if plugin else b""
    identity = identity or _bytes(user, "client-certificate") + b"\n" + _bytes(user, "client-key")
    if identity.strip():
        _identify(tls, identity)
    server = cluster["server"].rstrip("/")
    return Access(
        server=server,
        namespace=namespace or chosen.get("namespace") or "default",
        tls=tls,
        token=plugin.token if plugin else _token(user),
        token_blocks=plugin is not None,
        server_name=cluster.get("tls-server-name", ""),
        proxy=cluster.get("proxy-url") or proxy_of(server, environment),
        headers={"Impersonate-User": user["as"]} if user.get("as") else {},
    )


class _Named(ssl.SSLContext):
    """Wants one name in certificates. Behind a proxy, httpx forgets `sni_hostname` and wants that of the address."""

    name: str

    def wrap_socket(self, *given: Any, **more: Any) -> ssl.SSLSocket:
        """For httpx without a loop."""
        return super().wrap_socket(*given, **more | {"server_hostname": self.name})

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *_: Any, **__: Any
    ) -> ssl.SSLObject:
        """For loops of asyncio."""
        return super().wrap_bio(incoming, outgoing, server_hostname=self.name)


def _trust(cluster: Config) -> ssl.SSLContext:
    authority = _bytes(cluster, "certificate-authority")
    tls = ssl.create_default_context(cadata=authority.decode() or None)
    if name := cluster.get("tls-server-name"):
        strict = tls.verify_flags
        tls = _Named(ssl.PROTOCOL_TLS_CLIENT)
        tls.name, tls.verify_flags = name, strict
        if authority:
            tls.load_verify_locations(cadata=authority.decode())
        else:
            tls.load_default_certs()
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _bytes(entry: Config, key: str) -> bytes:
    """The content of `<key>-data` (base64), else of the file `<key>`; empty without both."""
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data)
    if name := entry.get(key):
        return Path(entry["folder"], name).read_bytes()
    return b""


def _identify(tls: ssl.SSLContext, identity: bytes) -> None:
    """Load a client certificate and its key; Python takes them from a file only."""
    with tempfile.NamedTemporaryFile(prefix="rlfleet-") as file:  # readable by this user alone
        file.write(identity)
        file.flush()
        tls.load_cert_chain(file.name)


def _token(user: Config) -> Callable[[], str]:
    if "tokenFile" in user:
        return token_of_file(Path(user["folder"], user["tokenFile"]))
    token = checked_token(user["token"], "users[].user.token") if user.get("token") else ""
    return lambda: token


def token_of_file(file: Path) -> Callable[[], str]:
    """Reads the token in a file each time. Errors of the reader: NotConfigured."""

    def read() -> str:
        try:
            return checked_token(file.read_text(), f"the token in {file}")
        except (OSError, UnicodeDecodeError) as error:
            raise NotConfigured(
                f"the token file {file} cannot be read: {type(error).__name__}; name a file of text"
            ) from None

    return read


def checked_token(token: str, what: str) -> str:
    """The token without white space around it; httpx would quote a broken one in its error.

    Errors: NotConfigured. Source: RFC 6750 for the characters.
    """
    if not _TOKEN_TEXT.fullmatch(text := token.strip()):
        raise NotConfigured(f"{what} must be one line of visible ASCII characters")
    return text


class Plugin:
    """A credential plugin: a program that prints an ExecCredential.

    Args:
        settings: `exec` of the user in the kubeconfig.
        folder: Of the kubeconfig.
        user: Its name there, for messages.
    """

    def __init__(self, settings: Config, folder: Path, user: str) -> None:
        self._settings = settings
        self._user = user
        program = settings["command"]  # a path is relative to the kubeconfig's folder
        self._program = str(folder / program) if os.sep in program else program
        self._status: Config = {}

    def token(self) -> str:
        """The current token. Errors: NotConfigured."""
        token = str(self._credential().get("token", ""))
        return checked_token(token, f"the token of {self._program}") if token else ""

    def certificate(self) -> bytes:
        """Certificate and key in PEM; empty if the program gives none. Errors: NotConfigured."""
        status = self._credential()
        parts = (status.get("clientCertificateData", ""), status.get("clientKeyData", ""))
        return "\n".join(parts).strip().encode()

    def _credential(self) -> Config:
        expires = self._status.get("expirationTimestamp")
        if self._status and (
            not expires or datetime.fromisoformat(expires) - _RENEW_BEFORE > datetime.now(UTC)
        ):
            return self._status
        settings = self._settings
        asked = {
            "kind": "ExecCredential",
            "apiVersion": settings["apiVersion"],
            "spec": {"interactive": False},
        }
        own = {e["name"]: e["value"] for e in settings.get("env") or ()}
        try:
            done = subprocess.run(  # noqa: S603 - the kubeconfig names the program, as for kubectl
                [self._program, *(settings.get("args") or ())],
                env={**os.environ, **own, "KUBERNETES_EXEC_INFO": json.dumps(asked)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                timeout=_PLUGIN_SECONDS,
            )
            self._status = json.loads(done.stdout)["status"]
        except subprocess.CalledProcessError as error:
            raise NotConfigured(f"{self._named()} has failed: {error.stderr.strip()}") from error
        except OSError as error:
            raise NotConfigured(
                f"{self._named()} cannot be run: {error.strerror}; {self._remedy(error)}"
            ) from None
        except (ValueError, KeyError, subprocess.TimeoutExpired) as error:
            # Not the output: it may hold a credential.
            raise NotConfigured(
                f"{self._named()} gives no credential: {type(error).__name__}"
            ) from None
        return self._status

    def _named(self) -> str:
        return f"{self._program}, the credential plugin of user {self._user!r} in the kubeconfig,"

    def _remedy(self, error: OSError) -> str:
        if hint := bounded(str(self._settings.get("installHint") or ""), _MOST_OF_A_HINT):
            return hint
        if isinstance(error, PermissionError):
            return "make it executable"
        return "install it, or put its folder into PATH"
