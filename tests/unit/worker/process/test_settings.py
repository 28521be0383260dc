"""The flags and variables of `serve` are checked before anything starts."""

from __future__ import annotations

import pytest
from tests.support.refusals import refusal_from
from tests.support.worker_commands import parsed

from fleet_worker.errors import Refusal
from fleet_worker.process.settings import Settings

TOKEN = {"RLFLEET_ADMIN_TOKEN_FILE": "/token"}


def settings(*flags: str, **environment: str) -> Settings:
    """The settings that a command line and an environment make."""
    named = ("--model=/m", "--served-model-name=policy", "--version=base")
    return Settings.of(parsed("serve", *named, *flags), environment)


def test_the_defaults_of_the_flags_are_valid() -> None:
    found = settings(**TOKEN)

    assert (found.port, found.admin_port, found.metrics_port) == (8000, 8081, None)
    assert (found.load_seconds, found.weights_management) == (1800, "Operator")


def test_an_empty_variable_counts_as_absent() -> None:
    empty = {"RLFLEET_START_PATH": "", "RLFLEET_POD_UID": "", "RLFLEET_WORKER_NAME": ""}
    found = settings(**TOKEN, **empty)

    assert (found.start_path, found.pod_uid) == (None, None)
    assert found.worker_name


@pytest.mark.parametrize(
    "flag",
    [
        "--port=70000",
        "--admin-port=-1",
        "--metrics-port=70000",
        "--version=two words",
        "--driver-lease-seconds=0",
        "--driver-lease-seconds=100000",
        "--weight-transfer-backend=ipc",
        "--staging-memory-bytes=-1",
        "--max-loras=-1",
        "--max-lora-rank=0",
        "--silence-seconds=0",
        "--load-seconds=nan",
    ],
)
def test_an_invalid_value_is_refused_and_its_flag_named(flag: str) -> None:
    with pytest.raises(Refusal, match=flag.split("=", maxsplit=1)[0]):
        settings(flag, **TOKEN)


def test_all_invalid_values_are_named_at_once() -> None:
    refusal = refusal_from(settings, "--port=70000", "--max-loras=-1")

    for name in ("--port", "--max-loras", "RLFLEET_ADMIN_TOKEN_FILE"):
        assert name in refusal.message


def test_a_port_in_the_environment_that_is_not_a_number_prints_the_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLFLEET_ADMIN_PORT", "http")
    with pytest.raises(SystemExit) as ended:
        settings(**TOKEN)

    assert ended.value.code == 2
    assert "--admin-port" in capsys.readouterr().err
