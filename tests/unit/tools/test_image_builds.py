"""Calls of buildah by `images.build`, with a fake buildah."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.build import BuildError, push, save

STEPS = 'echo "STEP 1/2: FROM base"; echo "STEP 2/2: RUN make"'


@pytest.fixture
def fake_buildah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "buildah"
    program.write_text(f"#!/bin/sh\n{STEPS}\n")
    program.chmod(0o755)
    return program


def test_each_step_of_buildah_is_shown(
    fake_buildah: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    push("operator", "127.0.0.1:5000")

    shown = capfd.readouterr()
    assert [line.split(":")[0] for line in shown.err.splitlines()] == ["STEP 1/2", "STEP 2/2"]
    assert shown.out == ""


def test_a_step_that_fails_is_an_error_with_its_command(fake_buildah: Path) -> None:
    fake_buildah.write_text(f"#!/bin/sh\n{STEPS}\nexit 3\n")

    with pytest.raises(BuildError, match=r"^buildah push .*: exit code 3$"):
        push("operator", "127.0.0.1:5000")


@pytest.mark.parametrize(
    ("is_list", "pushed"), [("true", "manifest push --all"), ("false", "push --quiet")]
)
def test_an_archive_has_all_platforms_of_a_list_without_a_question_to_registries(
    fake_buildah: Path, tmp_path: Path, is_list: str, pushed: str
) -> None:
    calls = tmp_path / "calls"
    fake_buildah.write_text(
        f'#!/bin/sh\necho "$@" >> {calls}\ncase "$2" in exists) {is_list} ;; inspect) exit 1 ;; esac\n'
    )
    save("operator", tmp_path / "operator.tar")

    asked, written = calls.read_text().splitlines()
    # `buildah manifest inspect` looks for the name in registries, too.
    assert asked.startswith("manifest exists ")
    assert written.startswith(pushed)
