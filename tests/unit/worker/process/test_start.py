"""Choosing the weights to start on."""

from __future__ import annotations

import pytest

from fleet_worker.errors import Refusal
from fleet_worker.process.start import Start, Wanted, choose_start
from fleet_worker.protocol import Reason

OWN, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def choose(
    version: str | None,
    path: str | None,
    refusal: Refusal | None = None,
    *,
    needs_load: str = "",
    **named: str,
) -> Start:
    def check(_: str) -> str:
        if refusal is not None:
            raise refusal
        return needs_load

    wanted = Wanted(version, path, **named)
    return choose_start(version="base", wanted=wanted, own_digest=lambda: OWN, check=check)


@pytest.mark.parametrize(
    ("version", "path", "why"),
    [
        pytest.param(None, None, "no start version", id="nothing is named"),
        pytest.param("", "", "no start version", id="empty is nothing"),
        pytest.param("7", None, "RLFLEET_START_PATH", id="a version without a path"),
        pytest.param(None, "/weights/7", "RLFLEET_START_VERSION", id="a path without a version"),
        pytest.param("base", "/models/base", "own weights", id="the model's own version"),
    ],
)
def test_otherwise_the_models_weights_are_used(
    version: str | None, path: str | None, why: str
) -> None:
    start = choose(version, path)

    assert (start.path, start.version) == (None, "base")
    assert why in start.why


def test_a_start_version_that_fails_its_checks_is_not_used_and_the_reason_is_kept() -> None:
    start = choose("7", "/weights/7", Refusal(Reason.CHECKPOINT_TRUNCATED, "cut short"))

    assert (start.path, start.version) == (None, "base")
    assert "CheckpointTruncated" in start.why
    assert "cut short" in start.why
    assert start.refused is not None


def test_a_version_that_needs_a_load_is_not_started_on_and_not_refused() -> None:
    start = choose("7", "/weights/7", needs_load="its tensors are cast")

    assert (start.path, start.version, start.refused) == (None, "base", None)
    assert "its tensors are cast" in start.why


def test_the_same_number_of_another_run_is_not_the_models_version() -> None:
    start = choose("base", "/weights/run-8/base", run_id="run-8")

    assert (start.path, start.version, start.run_id) == ("/weights/run-8/base", "base", "run-8")


@pytest.mark.parametrize(("digest", "refused"), [(OWN, False), (OTHER, True), ("", False)])
def test_the_models_weights_are_the_served_version_only_with_its_digest(
    digest: str, refused: bool
) -> None:
    start = choose("base", None, digest=digest or None)  # as the environment is read

    assert (start.path, start.version) == (None, "base")
    assert (start.refused is not None) is refused
    if start.refused is not None:
        assert start.refused.reason is Reason.DIGEST_MISMATCH
        assert OWN in start.why
        assert OTHER in start.why
