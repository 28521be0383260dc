"""Object stores as a fleet names them: keys from a mounted Secret, one endpoint, and time limits. A collector has them, too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obstore.store import ObjectStore, from_url

from fleet_worker.protocol import ENV_STORE_ENDPOINT, ENV_STORE_KEYS

if TYPE_CHECKING:
    from obstore.store import ClientConfig  # there are no such names at run time

_CONNECT_SECONDS, _READ_SECONDS, REQUEST_SECONDS, _RETRY_SECONDS = 5, 15, 30, 25
"""No try begins later than `_RETRY_SECONDS`. So the last one ends before a silent store is refused (`store_threads`)."""
_KEYS: Final = {
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
    ),
    "gs": ("GOOGLE_SERVICE_ACCOUNT_KEY",),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_KEY"),
}
"""The keys of the fleet's Secret that count, by scheme. No other one may set an option of the library."""
_ENDPOINT = "AWS_ENDPOINT_URL"
_AUTHORITY = "ca.crt"
_SMALL_FILE = 64 * 1024


def opened_store(uri: str) -> tuple[ObjectStore, str]:
    """Return the store of a URI, and the key in it. Errors: those of the library (`object_errors`)."""
    scheme, _, rest = uri.partition("://")
    bucket, _, key = rest.partition("/")
    keys = keys_of(scheme, os.environ.get(ENV_STORE_KEYS))
    return _store(scheme, bucket, os.environ.get(ENV_STORE_ENDPOINT), tuple(keys.items())), key


def endpoint_of(uri: str) -> str:
    """Return the server of a URI; empty for that of a cloud."""
    if not uri.startswith("s3://"):
        return ""
    keys = keys_of("s3", os.environ.get(ENV_STORE_KEYS))
    return os.environ.get(ENV_STORE_ENDPOINT) or keys.get(_ENDPOINT, "").rstrip("/")


def quoted(etag: str) -> str:
    """Return an ETag as requests name it. Listings of Azure leave out the quotes."""
    return etag if etag.endswith('"') else f'"{etag}"'


def keys_of(scheme: str, folder: str | None) -> Mapping[str, str]:
    """Return the keys of the mounted Secret. They are read each time, so that new ones need no restart."""
    found = {}
    for name in (*_KEYS[scheme], _AUTHORITY) if folder else ():
        try:
            with (Path(str(folder)) / name).open(encoding="utf-8") as file:
                found[name] = file.read(_SMALL_FILE).strip()
        except FileNotFoundError:
            continue
    return found


@lru_cache(maxsize=8)
def _store(
    scheme: str, bucket: str, endpoint: str | None, keys: tuple[tuple[str, str], ...]
) -> ObjectStore:
    config: Any = dict(keys)  # its type depends on the scheme
    authority = config.pop(_AUTHORITY, None)
    if endpoint and scheme == "s3":
        config[_ENDPOINT] = endpoint
    client: ClientConfig = {
        "allow_http": config.get(_ENDPOINT, "").startswith("http://"),
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=_READ_SECONDS),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
    }
    if authority:
        client["root_certificate"] = authority
    store: ObjectStore = from_url(
        f"{scheme}://{bucket}",
        config=config,
        client_options=client,
        retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=_RETRY_SECONDS)},
    )
    return store
