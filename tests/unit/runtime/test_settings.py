"""Flags win over variables, and an invalid value is refused with a message before anything starts."""

from __future__ import annotations

import pytest

from fleet_operator.runtime import settings as settings_module
from fleet_operator.runtime.settings import parse_settings


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch, tmp_path):
    for name in ("NAMESPACES", "LEASE_NAMESPACE", "PORT", "LOG_LEVEL", "LOG_FORMAT"):
        monkeypatch.delenv(f"RLFLEET_{name}", raising=False)
    monkeypatch.setattr(settings_module, "SERVICE_ACCOUNT_NAMESPACE", tmp_path / "namespace")
    return tmp_path


def test_defaults_are_those_of_the_chart():
    settings = parse_settings([])

    assert (settings.namespaces, settings.lease_namespace) == ((), "default")
    assert (settings.lease_name, settings.metrics_port) == ("rlfleet-operator", 8080)
    assert (settings.log_format, settings.log_level) == ("json", "INFO")
    assert (settings.resync_seconds, settings.default_image) == (30.0, "")
    assert settings.otlp_endpoint == ""


@pytest.mark.parametrize(
    ("given", "namespaces"),
    [
        pytest.param("", (), id="none means all"),
        pytest.param("a", ("a",), id="one"),
        pytest.param("a,b", ("a", "b"), id="two"),
        pytest.param(" a, b ,", ("a", "b"), id="spaces and commas too many"),
        pytest.param("a,b,a", ("a", "b"), id="each once"),
    ],
)
def test_namespaces(given, namespaces):
    assert parse_settings([f"--namespaces={given}"]).namespaces == namespaces


def test_a_variable_takes_the_place_of_a_flag_and_a_flag_wins(monkeypatch):
    monkeypatch.setenv("RLFLEET_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("RLFLEET_METRICS_PORT", "9000")

    assert parse_settings([]).log_level == "DEBUG"
    assert parse_settings(["--metrics-port=9001"]).metrics_port == 9001


def test_the_lease_is_in_the_pods_own_namespace(bare_environment):
    (bare_environment / "namespace").write_text("system\n")

    assert parse_settings([]).lease_namespace == "system"


def test_every_process_has_an_identity_of_its_own():
    assert parse_settings([]).identity != parse_settings([]).identity


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param("--metrics-port", "http", id="a port that is not a number"),
        pytest.param("--metrics-port", "70000", id="a port that does not exist"),
        pytest.param("--metrics-port", "80.5", id="half a port"),
        pytest.param("--metrics-port", "0", id="no port"),
        pytest.param("--resync-seconds", "often", id="a time that is not a number"),
        pytest.param("--resync-seconds", "0", id="looking all the time"),
        pytest.param("--resync-seconds", "nan", id="no number at all"),
        pytest.param("--log-level", "LOUD", id="a level that does not exist"),
        pytest.param("--log-format", "xml", id="a format that does not exist"),
        pytest.param("--otlp-endpoint", "collector:4318", id="an address without a scheme"),
        pytest.param("--lease-namespace", "", id="no namespace for the Lease"),
    ],
)
@pytest.mark.parametrize("how", ["flag", "variable"])
def test_an_invalid_setting_is_refused_by_name(flag, value, how, monkeypatch, capsys):
    arguments = [f"{flag}={value}"] if how == "flag" else []
    if how == "variable":
        monkeypatch.setenv("RLFLEET_" + flag.strip("-").replace("-", "_").upper(), value)

    with pytest.raises(SystemExit) as ended:
        parse_settings(arguments)

    assert ended.value.code == 2
    assert flag in capsys.readouterr().err
