"""The preflight names each missing prerequisite and its remedy. Nothing is started here."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path

import pytest

from devcluster import distribution, machine, preflight, programs
from devcluster.errors import CannotRunHereError
from devcluster.parts import CHOICE
from devcluster.profiles import Profile
from devcluster.starting import start

_FITTING = {"unshare", "nsenter", "mount", "ip", "gcc", "apt-get", "dpkg", "go"}


@pytest.fixture(autouse=True)
def fitting_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which only the programs are missing, which the build makes."""
    monkeypatch.setenv("RLFLEET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(CHOICE, raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(machine, "find_program", _without())
    monkeypatch.setattr(machine, "fitting_runc", lambda: None)
    monkeypatch.setattr(machine, "fitting_nft", lambda: None)
    monkeypatch.setattr(machine, "has_seccomp_headers", lambda: False)
    monkeypatch.setattr(machine, "go_is_fit", lambda _needed: True)
    monkeypatch.setattr(distribution, "can_fetch", lambda: True)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Disk(free=100 << 30))
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 8 << 30)
    monkeypatch.setattr(preflight, "_groups", lambda _profile: iter(()))
    monkeypatch.setattr(preflight, "_kernel", lambda _profile: iter(()))


class _Disk:
    def __init__(self, free: int) -> None:
        self.free = free


def _without(*missing: str) -> object:
    return lambda name: Path("/usr/bin", name) if name in _FITTING - set(missing) else None


def _words(profile: Profile = "node") -> str:
    return preflight.describe(preflight.problems(profile))


def test_a_fitting_machine_has_no_problems() -> None:
    assert preflight.problems("node") == ()
    assert preflight.problems("api") == ()


def test_the_oldest_kubernetes_has_a_control_plane_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "oldest")

    assert preflight.problems("api") == ()
    assert "has a control plane, but no kubelet\n    take the profile api" in _words()


def test_a_kubernetes_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CHOICE, "1.12")

    assert "RLFLEET_KUBERNETES=1.12 is not a Kubernetes version" in _words("api")


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "system", lambda: "Darwin")

    assert "this is Darwin, not Linux" in _words()
    assert "virtual machine" in _words()


def test_an_unknown_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    assert "riscv64 processors were never tried" in _words()


def test_the_preflight_asks_a_user_without_root_to_become_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    assert "namespaces and mounts need root" in _words()
    assert "sudo" in _words()


@pytest.mark.parametrize(
    ("program", "package"),
    [("unshare", "util-linux"), ("nsenter", "util-linux"), ("ip", "iproute2"), ("mount", "mount")],
)
def test_a_missing_program_of_the_system_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, program: str, package: str
) -> None:
    monkeypatch.setattr(machine, "find_program", _without(program))

    assert f"the program {program} is missing" in _words()
    assert f"install the package {package}" in _words()


def test_a_cache_folder_that_nodes_cannot_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLFLEET_CACHE", "/run/cache")

    assert "/run/cache is below /run" in _words()
    assert "RLFLEET_CACHE" in _words()


@pytest.mark.parametrize("name", ["with space", "a:b", "a,b", "it's"])
def test_a_cache_folder_with_an_unfit_name_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("RLFLEET_CACHE", f"/var/cache/{name}")

    assert f"/var/cache/{name} has characters" in _words()


def test_a_full_disk_is_named_with_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Disk(free=3 << 30))

    assert "3.0 GiB free of the 8 GiB" in _words()


def test_a_built_cluster_needs_less_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: _Disk(free=3 << 30))
    monkeypatch.setattr(programs, "missing", lambda _profile: ())

    assert preflight.problems("node") == ()


def test_too_little_memory_for_a_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 512 << 20)

    assert "0.5 GiB of memory are available; a node takes 0.6" in _words()
    assert preflight.problems("api") == ()


def test_a_missing_or_old_go_is_named_with_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "go_is_fit", lambda needed: needed < (1, 20))

    assert "Go 1.26.6 or newer is missing (to build kube, certs, dns" in _words()
    assert "install it from go.dev/dl" in _words()


def test_go_is_not_needed_once_everything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "go_is_fit", lambda _needed: False)
    monkeypatch.setattr(programs, "missing", lambda _profile: ())

    assert preflight.problems("node") == ()


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_program", _without("gcc"))

    assert "a C compiler is missing (to build runc)" in _words()
    assert preflight.problems("api") == ()


def test_a_fitting_runc_makes_the_compiler_unnecessary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_program", _without("gcc"))
    monkeypatch.setattr(machine, "fitting_runc", lambda: Path("/usr/bin/runc"))

    assert preflight.problems("node") == ()


def test_without_apt_the_packages_to_install_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "can_fetch", lambda: False)

    assert "the program nft is missing (for kube-proxy)" in _words()
    assert "install nftables" in _words()
    assert "libseccomp's header and static library are missing" in _words()


def test_the_error_of_a_start_names_the_problem_and_the_way_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(CannotRunHereError) as caught:
        start("some-id", profile="node", nodes=1, mounts=(), detach=False)

    assert "need root" in str(caught.value)
    assert "make demo CLUSTER=existing" in caught.value.remedy
