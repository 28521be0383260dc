"""What `images.build` shows of buildah, with a fake buildah."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.build import BuildError, push

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
