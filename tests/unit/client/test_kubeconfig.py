"""Where the API server is, and as what the client talks to it."""

from __future__ import annotations

import base64
import json
import os
import ssl
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.programs import written_by

from rlfleet import NotConfigured
from rlfleet.kubeconfig import Access, contexts_of, load_access


def write(file: Path, **user: Any) -> Path:
    """A kubeconfig with one context, `main` of the namespace `rl`."""
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://one:6443/"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "rl"}}],
        "current-context": "main",
    }
    file.write_text(yaml.safe_dump(config))
    return file


def load(file: Path, **more: Any) -> Access:
    return load_access(file, environment={}, **more)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Certificate and key of a client, which is its own authority."""
    folder = tmp_path_factory.mktemp("identity")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=trainer", "-keyout", str(key), "-out", str(certificate)]
    written_by(command)
    return certificate, key


def test_token_and_namespace_come_from_the_context(tmp_path):
    found = load(write(tmp_path / "config", token="secret"))

    assert (found.server, found.namespace, found.token()) == ("https://one:6443", "rl", "secret")
    assert found.tls.verify_mode is ssl.CERT_REQUIRED


def test_an_explicit_namespace_is_used(tmp_path):
    assert load(write(tmp_path / "config"), namespace="other").namespace == "other"


def test_a_token_file_next_to_the_kubeconfig_is_read_each_time(tmp_path):
    found = load(write(tmp_path / "config", tokenFile="token"))
    for text in ("first\n", "second\n"):
        (tmp_path / "token").write_text(text)
        assert found.token() == text.strip()


def test_certificates_come_from_files_or_data(tmp_path, identity):
    certificate, key = identity
    as_data = {
        f"{name}-data": base64.b64encode(file.read_bytes()).decode()
        for name, file in (("client-certificate", certificate), ("client-key", key))
    }
    as_files = {"client-certificate": str(certificate), "client-key": str(key)}
    for user in (as_data, as_files):
        file = write(tmp_path / "config", **user)
        config = yaml.safe_load(file.read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = str(certificate)
        file.write_text(yaml.safe_dump(config))
        (authority,) = load(file).tls.get_ca_certs()
        assert authority["subject"] == ((("commonName", "trainer"),),)


def test_a_certificate_without_its_key_is_refused(tmp_path, identity):
    with pytest.raises(NotConfigured, match="config cannot be used"):
        load(write(tmp_path / "config", **{"client-certificate": str(identity[0])}))


def test_other_settings_of_cluster_and_user_are_used(tmp_path):
    file = write(tmp_path / "config", **{"as": "jane"})
    config = yaml.safe_load(file.read_text())
    config["clusters"][0]["cluster"] |= {
        "tls-server-name": "api.rl",
        "proxy-url": "http://proxy:3128",
        "insecure-skip-tls-verify": True,
    }
    file.write_text(yaml.safe_dump(config))

    found = load(file)

    assert (found.server_name, found.proxy) == ("api.rl", "http://proxy:3128")
    assert found.headers == {"Impersonate-User": "jane"}
    assert found.tls.verify_mode is ssl.CERT_NONE


def test_a_context_is_chosen_by_name(tmp_path):
    file = write(tmp_path / "config", token="t")
    config = yaml.safe_load(file.read_text())
    config["contexts"].append({"name": "bare", "context": {"cluster": "c"}})
    file.write_text(yaml.safe_dump(config))

    found = load(file, context="bare")

    assert (found.namespace, found.token()) == ("default", "")
    with pytest.raises(NotConfigured, match="no context 'gone'"):
        load(file, context="gone")
    del config["current-context"]
    file.write_text(yaml.safe_dump(config))
    with pytest.raises(NotConfigured, match="no current context; it has: bare, main"):
        load(file)


def test_the_first_of_several_files_wins(tmp_path):
    (tmp_path / "a").mkdir()
    first = write(tmp_path / "a" / "config", tokenFile="token")
    (tmp_path / "a" / "token").write_text("from-a")
    second = write(tmp_path / "config", token="from-b")
    config = yaml.safe_load(second.read_text())
    config["contexts"].append({"name": "more", "context": {"cluster": "c", "user": "u"}})
    second.write_text(yaml.safe_dump(config))
    named = {"KUBECONFIG": f"{first}{os.pathsep}{tmp_path / 'absent'}{os.pathsep}{second}"}

    found = load_access(context="more", environment=named)

    assert (found.namespace, found.token()) == ("default", "from-a")


@pytest.mark.parametrize("key", ["username", "auth-provider", "as-groups"])
def test_an_unsupported_setting_is_refused(tmp_path, key):
    with pytest.raises(NotConfigured, match=f"{key} is not supported"):
        load(write(tmp_path / "config", **{key: "x"}))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "a: [", "current-context: main", "contexts: 5", "token: t0ken: x", "token: @t0ken"],
)
def test_an_invalid_kubeconfig_is_named_and_its_token_is_not(tmp_path, text):
    file = tmp_path / "config"
    file.write_text(text)

    with pytest.raises(NotConfigured, match="config") as raised:
        load(file)

    assert "t0ken" not in str(raised.value)


@pytest.mark.parametrize(
    "user",
    [
        {"token": "two\nlines"},
        {"token": "t\u00f6ken"},
        {"tokenFile": "missing"},
        {"tokenFile": "two-lines"},
        {"tokenFile": "bytes"},
    ],
)
def test_a_token_that_cannot_be_sent_is_refused_and_never_quoted(tmp_path, user):
    (tmp_path / "two-lines").write_text("two\nlines")
    (tmp_path / "bytes").write_bytes(b"\xfflines")

    with pytest.raises(NotConfigured, match="token") as raised:
        load(write(tmp_path / "config", **user)).token()

    assert not any(part in str(raised.value) for part in ("lines,", "t\u00f6ken", "two\n"))


def test_a_context_whose_user_is_missing_is_refused(tmp_path):
    file = write(tmp_path / "config")
    file.write_text(file.read_text().replace("user: u", "user: gone"))

    with pytest.raises(NotConfigured, match="'gone' is missing"):
        load(file)


# --- in a pod -------------------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path, identity: tuple[Path, Path]) -> Path:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("of-the-pod\n")
    (folder / "namespace").write_text("rl\n")
    (folder / "ca.crt").write_bytes(identity[0].read_bytes())
    return folder


@pytest.mark.parametrize(("host", "shown"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]")])
def test_a_pod_uses_its_service_account(account, tmp_path, host, shown):
    pod = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443", "HOME": str(tmp_path)}

    found = load_access(environment=pod, account=account)

    assert (found.server, found.namespace) == (f"https://{shown}:443", "rl")
    for token in ("of-the-pod", "rotated"):
        (account / "token").write_text(token)
        assert found.token() == token
    named = pod | {"KUBECONFIG": str(write(tmp_path / "config", token="named"))}
    assert load_access(environment=named, account=account).token() == "named"


def test_without_a_cluster_the_message_names_the_places_that_were_read(tmp_path):
    with pytest.raises(NotConfigured, match=r"no cluster: .*\.kube/config.*KUBECONFIG"):
        load_access(environment={"HOME": str(tmp_path)}, account=tmp_path)


def test_the_kubeconfig_of_the_home_directory_comes_last(tmp_path):
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube" / "config", token="at-home")

    found = load_access(environment={"HOME": str(tmp_path)}, account=tmp_path)

    assert found.token() == "at-home"


# --- credential plugins ---------------------------------------------------------------------------


def plugin(tmp_path: Path, status: dict[str, Any], *, code: str = "") -> Path:
    """A kubeconfig whose program counts its calls, and prints a credential."""
    program = tmp_path / "plugin"
    answer = json.dumps({"kind": "ExecCredential", "status": status})
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "assert asked['spec'] == {'interactive': False}, asked\n"
        "assert (sys.argv[1:], os.environ['MODE']) == (['get-token'], 'test')\n"
        f"open({str(tmp_path / 'calls')!r}, 'a').write('x')\n{code}\nprint({answer!r})\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    settings = {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}
    settings |= {"args": ["get-token"], "env": [{"name": "MODE", "value": "test"}]}
    return write(tmp_path / "config", exec=settings)


def calls(tmp_path: Path) -> int:
    return len((tmp_path / "calls").read_text())


def test_a_plugin_runs_once_while_its_credential_is_valid(tmp_path):
    status = {"token": "of-a-plugin", "expirationTimestamp": "2099-01-01T00:00:00Z"}

    found = load(plugin(tmp_path, status))

    assert [found.token(), found.token()] == ["of-a-plugin"] * 2
    assert calls(tmp_path) == 1


def test_a_plugin_runs_again_after_its_credential_expired(tmp_path):
    status = {"token": "old", "expirationTimestamp": "2020-01-01T00:00:00Z"}

    found = load(plugin(tmp_path, status))

    assert found.token() == "old"
    assert calls(tmp_path) == 2


def test_a_plugin_may_return_a_certificate(tmp_path, identity):
    certificate, key = (file.read_text() for file in identity)

    found = load(plugin(tmp_path, {"clientCertificateData": certificate, "clientKeyData": key}))

    assert found.token() == ""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("sys.exit('log in first')", "log in first"),
        ("print('no json'); sys.exit(0)", "gives no credential"),
    ],
)
def test_a_plugin_that_fails_is_named(tmp_path, code, words):
    with pytest.raises(NotConfigured, match=f"plugin .*{words}"):
        load(plugin(tmp_path, {"token": "t"}, code=code))


@pytest.mark.parametrize(
    ("hint", "remedy"),
    [
        ("Install it with\n  gcloud components", "Install it with gcloud components"),
        (None, "install it, or put its folder into PATH"),
    ],
)
def test_a_plugin_that_is_missing_is_named_with_its_user_and_the_remedy(tmp_path, hint, remedy):
    settings = {"apiVersion": "client.authentication.k8s.io/v1", "command": "gke-auth"}
    file = write(tmp_path / "config", exec=settings | ({"installHint": hint} if hint else {}))

    with pytest.raises(NotConfigured) as raised:
        load(file)

    for word in ("gke-auth", "user 'u'", remedy):
        assert word in str(raised.value)


def test_a_plugin_that_cannot_be_run_is_named_with_the_fault(tmp_path):
    file = plugin(tmp_path, {"token": "t"})
    (tmp_path / "plugin").chmod(0o600)

    with pytest.raises(NotConfigured, match=r"plugin .*Permission denied"):
        load(file)


def test_the_output_of_a_plugin_is_in_no_message(tmp_path):
    with pytest.raises(NotConfigured) as raised:
        load(plugin(tmp_path, {}, code="print('a secret', end=''); sys.exit(0)"))

    assert "a secret" not in repr(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("just text", "form of a kubeconfig"),
        ("[1, 2]", "form of a kubeconfig"),
        ("clusters: 3", "form of a kubeconfig"),
        ("clusters: [a]\ncurrent-context: x", "form of a kubeconfig"),
        ("a: [1\n b", "line 2"),
        ("contexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x", "'c' is missing"),
    ],
)
def test_a_file_of_another_form_is_named_in_one_line(tmp_path, text, words):
    file = tmp_path / "config"
    file.write_text(text)

    with pytest.raises(NotConfigured, match=words) as refused:
        load(file)

    assert str(file) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contexts_of(file) in ([], ["x"])
