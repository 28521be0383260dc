"""The servers. The first call builds one with Go, into the cache folder like the programs of the dev cluster."""

from __future__ import annotations

import json
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from devcluster import programs
from devcluster.parts import Part
from free_ports import free_port

VERSITYGW = Part(
    name="versitygw",
    module=Path(__file__).parent / "build",
    packages=("github.com/versity/versitygw/cmd/versitygw",),
)
FAKE_GCS = Part(
    name="fake-gcs-server",
    module=Path(__file__).parent / "build-gcs",
    packages=("github.com/fsouza/fake-gcs-server",),
)
_START_SECONDS = 20.0
REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs.

    Fields:
        endpoint: its URL.
        folder: has a folder for each bucket, and each object as a file.
        keys: the variables by which clients log in.
        scheme: of its URIs.
    """

    endpoint: str
    folder: Path
    keys: dict[str, str]
    scheme: str = "s3"


@contextmanager
def serving(
    folder: Path, *, certificate: Path | None = None, key: Path | None = None
) -> Iterator[Server]:
    """Serve the buckets of a folder while the block runs.

    Args:
        folder: An empty folder, on a file system with extended attributes.
        certificate: With its key, for TLS.
        key: The key of the certificate.

    Errors:
        BuildError: the server cannot be built.
    """
    program = programs.ensure_part(VERSITYGW).path(VERSITYGW.name)
    port = free_port()
    keys = {
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": secrets.token_urlsafe(24),
        "AWS_REGION": REGION,
    }
    variables = {
        "ROOT_ACCESS_KEY": keys["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": keys["AWS_SECRET_ACCESS_KEY"],
        "PATH": os.environ["PATH"],
        "HOME": str(folder.parent),
    }
    command = [str(program), "--port", f"127.0.0.1:{port}", "--region", REGION, "--quiet"]
    if certificate is not None:
        command += ["--cert", str(certificate), "--key", str(key)]
    endpoint = f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
    with _running([*command, "posix", str(folder)], variables, port):
        yield Server(endpoint, folder, keys)


@contextmanager
def serving_gcs(folder: Path) -> Iterator[Server]:
    """Serve the buckets of a folder by the API of Google Cloud Storage, without TLS, while the block runs.

    It checks no keys, keeps no condition of a read, and takes uploads by the JSON API alone.

    Args:
        folder: An empty folder, on a file system with extended attributes.

    Errors:
        BuildError: the server cannot be built.
    """
    program = programs.ensure_part(FAKE_GCS).path(FAKE_GCS.name)
    port = free_port()
    command = [str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-public-host", "127.0.0.1", "-log-level", "error"]
    command += ["-backend", "filesystem", "-filesystem-root", str(folder)]
    with _running(command, {}, port):
        yield Server(f"http://127.0.0.1:{port}", folder, {}, "gs")


def gcs_keys(endpoint: str) -> dict[str, str]:
    """The variables by which clients find a server of the API of Google Cloud Storage, and do not log in."""
    key = {"gcs_base_url": endpoint, "disable_oauth": True}
    nothing = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    return {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key | nothing)}


@contextmanager
def _running(command: list[str], variables: dict[str, str], port: int) -> Iterator[None]:
    with subprocess.Popen(command, env=variables) as process:
        try:
            _wait_for(process, port)
            yield
        finally:
            process.terminate()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
