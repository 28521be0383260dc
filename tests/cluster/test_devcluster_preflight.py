"""The preflight names each missing prerequisite and its remedy. Nothing is started here."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from devcluster import distribution, machine, preflight, programs
from devcluster.errors import CannotRunHereError
from devcluster.parts import CHOICE
from devcluster.profiles import Profile
from devcluster.starting import start

_FITTING = {"unshare", "nsenter", "mount", "ip", "gcc", "apt-get", "dpkg", "go"}
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def fitting_machine(monkeypatch: Patch, tmp_path: Path) -> None:
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
    monkeypatch.setattr(shutil, "disk_usage", _disk(100))
    monkeypatch.setattr(machine, "available_memory_bytes", lambda: 8 << 30)
    monkeypatch.setattr(preflight, "_groups", lambda _profile: iter(()))
    monkeypatch.setattr(preflight, "_kernel", lambda _profile: iter(()))


def _disk(free_gib: int) -> Callable[[object], SimpleNamespace]:
    return lambda _path: SimpleNamespace(free=free_gib << 30)


def _without(*missing: str) -> object:
    return lambda name: Path("/usr/bin", name) if name in _FITTING - set(missing) else None


def _words(profile: Profile = "node") -> str:
    return preflight.describe(preflight.problems(profile))


def _other_system(patch: Patch) -> None:
    patch.setattr(sys, "platform", "darwin")
    patch.setattr(platform, "system", lambda: "Darwin")


def _lacks(program: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(machine, "find_program", _without(program))


def _cache(folder: str) -> Callable[[Patch], None]:
    return lambda patch: patch.setenv("RLFLEET_CACHE", folder)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        pytest.param(lambda p: p.setenv(CHOICE, "1.12"), "=1.12 is not", id="no such Kubernetes"),
        pytest.param(lambda p: p.setenv(CHOICE, "oldest"), "profile api", id="without a kubelet"),
        pytest.param(_other_system, "this is Darwin", id="another system"),
        pytest.param(
            lambda p: p.setattr(platform, "machine", lambda: "riscv64"),
            "riscv64",
            id="an unknown processor",
        ),
        pytest.param(lambda p: p.setattr(os, "geteuid", lambda: 1000), "sudo", id="not root"),
        *(
            pytest.param(_lacks(program), f"the package {package}", id=program)
            for program, package in (
                *(("unshare", "util-linux"), ("nsenter", "util-linux")),
                *(("ip", "iproute2"), ("mount", "mount")),
            )
        ),
        pytest.param(_lacks("gcc"), "to build runc", id="no compiler"),
        pytest.param(_cache("/run/cache"), "below /run", id="a cache that nodes cannot see"),
        *(
            pytest.param(_cache(f"/var/{name}"), f"/var/{name} has characters", id=name)
            for name in ("with space", "a:b", "a,b", "it's")
        ),
        pytest.param(
            lambda p: p.setattr(shutil, "disk_usage", _disk(3)), "3.0 GiB free", id="a full disk"
        ),
        pytest.param(
            lambda p: p.setattr(machine, "available_memory_bytes", lambda: 512 << 20),
            "0.5 GiB of memory",
            id="too little memory",
        ),
        pytest.param(
            lambda p: p.setattr(machine, "go_is_fit", lambda needed: needed < (1, 20)),
            "to build kube, certs, dns",
            id="an old Go",
        ),
        pytest.param(
            lambda p: p.setattr(distribution, "can_fetch", lambda: False),
            "install nftables",
            id="no packages without apt",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(
    monkeypatch: Patch, harm: Callable[[Patch], None], named: str
) -> None:
    harm(monkeypatch)

    assert named in _words()


def _built(patch: Patch) -> None:
    patch.setattr(programs, "missing", lambda _profile: ())


@pytest.mark.parametrize(
    ("change", "profile"),
    [
        (lambda _: None, "node"),
        (lambda p: p.setenv(CHOICE, "oldest"), "api"),
        (lambda p: (_built(p), p.setattr(shutil, "disk_usage", _disk(3))), "node"),
        (lambda p: (_built(p), p.setattr(machine, "go_is_fit", lambda _: False)), "node"),
        (lambda p: p.setattr(machine, "available_memory_bytes", lambda: 512 << 20), "api"),
        (_lacks("gcc"), "api"),
        (
            lambda p: (
                _lacks("gcc")(p),
                p.setattr(machine, "fitting_runc", lambda: Path("/usr/bin/runc")),
            ),
            "node",
        ),
    ],
    ids=["all is there", "oldest", "disk, built", "Go, built", "memory", "compiler", "runc"],
)
def test_what_the_profile_does_not_need_may_be_missing(
    monkeypatch: Patch, change: Callable[[Patch], object], profile: Profile
) -> None:
    change(monkeypatch)

    assert preflight.problems(profile) == ()


def test_the_error_of_a_start_names_the_problem_and_the_way_to_another_cluster(
    monkeypatch: Patch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(CannotRunHereError) as caught:
        start("some-id", profile="node", nodes=1, mounts=(), detach=False)

    assert "need root" in str(caught.value)
    assert "make demo CLUSTER=existing" in caught.value.remedy
