"""Choosing the weights to start on."""

from __future__ import annotations

import pytest

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.start import Start, choose_start
from fleet_worker.protocol import Reason


def choose(version: str | None, path: str | None, refusal: Refusal | None = None) -> Start:
    def check(_: str) -> None:
        if refusal is not None:
            raise refusal

    return choose_start(version="base", start_version=version, start_path=path, check=check)


def test_a_good_start_version_is_taken() -> None:
    start = choose("7", "/weights/7")

    assert (start.path, start.version, start.refused) == ("/weights/7", "7", None)


@pytest.mark.parametrize(
    ("version", "path", "why"),
    [
        pytest.param(None, None, "no start version", id="nothing is named"),
        pytest.param("", "", "no start version", id="empty is nothing"),
        pytest.param("7", None, "only the version", id="a version without a path"),
        pytest.param(None, "/weights/7", "only the path", id="a path without a version"),
        pytest.param("base", "/models/base", "own weights", id="the model's own version"),
    ],
)
def test_otherwise_the_models_own_weights_are(
    version: str | None, path: str | None, why: str
) -> None:
    start = choose(version, path)

    assert (start.path, start.version) == (None, "base")
    assert why in start.why


def test_a_start_version_that_fails_its_checks_is_not_taken_and_the_log_will_say_why() -> None:
    start = choose("7", "/weights/7", Refusal(Reason.CHECKPOINT_TRUNCATED, "cut short"))

    assert (start.path, start.version) == (None, "base")
    assert "CheckpointTruncated" in start.why
    assert "cut short" in start.why
    assert start.refused is not None
