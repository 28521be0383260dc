"""The command line, and the preStop hook against a small server."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.tiny import write_tiny
from tests.support.worker_commands import parsed

from fleet_worker.__main__ import main
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.drain_names import drain_seconds_of
from fleet_worker.process.drain import drain
from fleet_worker.process.manifest import digest_in


class AdminPort:
    """Answers one status, and keeps what it was sent."""

    def __init__(self) -> None:
        self.status = 200
        self.seen: list[tuple[str, str, str | None]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.seen.append((self.command, self.path, self.headers["Authorization"]))
                self.send_response(outer.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port


@pytest.fixture
def admin_port() -> Iterator[AdminPort]:
    port = AdminPort()
    thread = threading.Thread(target=port.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield port
    port.server.shutdown()
    thread.join()
    port.server.server_close()


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "token"
    file.write_text("the-token\nan-older-one\n")
    monkeypatch.setenv("RLFLEET_ADMIN_TOKEN_FILE", str(file))
    return file


def test_the_hook_calls_the_admin_port_with_the_token(admin_port: AdminPort, token: Path) -> None:
    assert drain("127.0.0.1", admin_port.port) == 0
    assert admin_port.seen == [("POST", "/v1/worker/drain", "Bearer the-token")]


def test_the_hook_reads_the_port_from_the_environment(
    admin_port: AdminPort, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLFLEET_ADMIN_PORT", str(admin_port.port))
    monkeypatch.setenv("RLFLEET_ADMIN_HOST", "0.0.0.0")

    assert main(["drain"]) == 0
    assert len(admin_port.seen) == 1


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("300", 300), ("0", 0), ("", 0), ("soon", 0), ("-1", 0), ("nan", 0), ("1e9", 0)],
)
def test_the_drain_timeout_comes_from_the_environment(written: str, seconds: float) -> None:
    assert drain_seconds_of({"RLFLEET_DRAIN_SECONDS": written}) == seconds
    assert drain_seconds_of({}) == 0


def test_a_hook_whose_call_is_refused_fails(admin_port: AdminPort, token: Path) -> None:
    admin_port.status = 401

    assert drain("127.0.0.1", admin_port.port) == 1


def test_a_hook_without_a_worker_or_a_token_fails_with_the_reason(
    admin_port: AdminPort, token: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin_port.server.server_close()
    assert drain("127.0.0.1", admin_port.port) == 1
    token.write_text("")
    assert drain("127.0.0.1", admin_port.port) == 1
    token.unlink()
    assert drain("127.0.0.1", admin_port.port) == 1
    assert capsys.readouterr().err.count("was not drained: ") == 3


SERVE = ("--model=/m", "--served-model-name=policy", "--version=base")


def test_arguments_after_the_dashes_are_vllms() -> None:
    roots = ("--weights-root=/a", "--weights-root=/b")
    given = parsed("serve", *SERVE, *roots, "--", "--port=1", "--x")

    assert given.engine_arguments == ["--port=1", "--x"]
    assert given.weights_root == ["/a", "/b"]
    assert (given.host, given.port) == ("*", 8000)
    assert (given.admin_host, given.admin_port) == ("127.0.0.1", 8081)


def test_the_admin_port_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLFLEET_ADMIN_HOST", "10.0.0.7")
    monkeypatch.setenv("RLFLEET_ADMIN_PORT", "9081")
    given = parsed("serve", *SERVE)

    assert (given.admin_host, given.admin_port) == ("10.0.0.7", 9081)
    assert given.engine_arguments == []


def test_a_checkpoint_with_the_files_of_an_adapter_has_two_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_tiny(tmp_path / "1")
    write_adapter(directory, seed=1, modules=TINY_MODULES)
    printed = {}
    for kind in ("checkpoint", "adapter", None):
        assert main(["manifest", *([f"--kind={kind}"] if kind else []), str(directory)]) == 0
        printed[kind] = [line.split()[1] for line in capsys.readouterr().out.splitlines()]

    assert printed["checkpoint"] == printed[None] == ["config.json", "model.safetensors"]
    assert printed["adapter"] == ["adapter_config.json", "adapter_model.safetensors"]
    digests = [digest_in(str(directory), is_adapter=each) for each in (False, True)]
    assert len(set(digests)) == 2


def test_the_manifest_has_the_digest_that_a_stage_may_pin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_tiny(tmp_path / "1")
    assert main(["manifest", str(checkpoint)]) == 0
    printed = capsys.readouterr().out
    assert main(["manifest", "--digest", str(checkpoint)]) == 0
    digest = capsys.readouterr().out.strip()

    names = ["config.json", "model.safetensors"]
    sums = {n: hashlib.sha256((checkpoint / n).read_bytes()).hexdigest() for n in names}
    assert printed == "".join(f"{sums[name]}  {name}\n" for name in names)
    assert digest == "sha256:" + hashlib.sha256(printed.encode()).hexdigest()
    opened = open_checkpoint(str(checkpoint), None)
    assert opened.digest(lambda: None) == digest
    opened.close()


def test_an_adapter_has_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = write_adapter(tmp_path / "1", seed=1, modules=TINY_MODULES, rank=2)
    assert main(["manifest", str(adapter)]) == 0

    names = [line.split()[1] for line in capsys.readouterr().out.splitlines()]
    assert names == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_directory_that_is_not_a_checkpoint_has_no_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["manifest", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["nothing"], ["serve"], ["serve", *SERVE, "--max-model-len=1"]]
)
def test_an_unknown_command_prints_the_usage(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err
