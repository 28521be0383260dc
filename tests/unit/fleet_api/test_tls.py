"""HTTPS from files that are exchanged while the process runs."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.certificates import issue

from fleet_api.listeners import CannotListenError, listening
from fleet_api.settings import Settings, parse_settings
from fleet_api.tls import Certificate


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return issue(tmp_path / "mounted", "first")


@pytest.fixture
async def port(files: tuple[Path, Path]) -> AsyncIterator[int]:
    server = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=Certificate(*files).context
    )
    async with server:
        yield server.sockets[0].getsockname()[1]


async def name_of(port: int, server_name: str | None = None) -> bytes:
    """The certificate that a new connection shows."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=server_name or ""
    )
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return shown


def der(certificate: Path) -> bytes:
    return ssl.PEM_cert_to_DER_cert(certificate.read_text())


@pytest.mark.parametrize("server_name", [None, "first"])
async def test_the_next_connection_shows_the_new_certificate(files, port, tmp_path, server_name):
    before = der(files[0])
    assert await name_of(port, server_name) == before

    for old, new in zip(files, issue(tmp_path / "next", "second"), strict=True):
        shutil.move(new, old)
    assert der(files[0]) != before
    assert await name_of(port, server_name) == der(files[0])


async def test_the_link_that_a_kubelet_exchanges_is_seen(tmp_path):
    issue(tmp_path / "one", "first"), issue(tmp_path / "two", "second")
    link = tmp_path / "..data"
    link.symlink_to("one")
    context = Certificate(link / "tls.crt", link / "tls.key").context
    server = await asyncio.start_server(lambda _, w: w.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await name_of(port) == der(tmp_path / "one/tls.crt")
        (tmp_path / "new").symlink_to("two")
        (tmp_path / "new").rename(link)
        assert await name_of(port) == der(tmp_path / "two/tls.crt")


async def test_a_pair_that_does_not_fit_leaves_the_one_before_in_service(
    files, port, tmp_path, caplog
):
    caplog.set_level(logging.WARNING)
    before = der(files[0])
    certificate, key = issue(tmp_path / "next", "second")
    shutil.move(certificate, files[0])

    assert await name_of(port) == before
    assert "the previous one stays in use" in caplog.text
    shutil.move(key, files[1])
    assert await name_of(port) == der(files[0])


@pytest.mark.parametrize("flag", ["--tls-cert=/tls.crt", "--tls-key=/tls.key"])
async def test_one_file_of_the_pair_is_not_enough(flag):
    with pytest.raises(CannotListenError, match="set both --tls-cert and --tls-key"):
        async with listening(*(web.Application() for _ in range(3)), parse_settings([flag])):
            pass


async def test_files_that_are_not_a_certificate_end_the_start_with_a_message(tmp_path):
    (tmp_path / "tls.crt").write_text("nothing")
    settings = Settings(tls_cert=tmp_path / "tls.crt", tls_key=tmp_path / "tls.key")

    with pytest.raises(CannotListenError, match=r"tls\.key cannot be loaded"):
        async with listening(*(web.Application() for _ in range(3)), settings):
            pass


def test_tokens_are_for_the_rl_api_alone_unless_the_port_has_a_certificate(tmp_path, capsys):
    certificate = [f"--tls-cert={tmp_path}/tls.crt", f"--tls-key={tmp_path}/tls.key"]
    assert parse_settings([]).audiences == ("rlfleet",)
    assert parse_settings(["--audiences=", *certificate]).audiences == ()
    assert parse_settings(["--audiences=trainers"]).audiences == ("trainers",)
    with pytest.raises(SystemExit):
        parse_settings(["--audiences="])

    refused = capsys.readouterr().err
    for word in ("--audiences", "HTTP", "--tls-cert"):
        assert word in refused
