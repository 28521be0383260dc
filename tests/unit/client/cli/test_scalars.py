"""Manifests mean to `rlfleet validate` what they mean to kubectl, quoted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.scalars import KUBECTL

from rlfleet.cli.manifests import read


def loaded(tmp_path: Path, text: str) -> Any:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    (manifest,), problems = read([str(file)], "rl")
    assert problems == []
    return manifest.body


@pytest.mark.parametrize(("text", "value"), KUBECTL.items())
def test_an_unquoted_scalar_has_the_value_that_kubectl_reads(
    tmp_path: Path, text: str, value: Any
) -> None:
    found = loaded(tmp_path, f"kind: X\nvalue: {text}\n")["value"]

    assert (found, type(found)) == (value, type(value))


def test_a_number_of_more_digits_than_python_converts_is_text(tmp_path: Path) -> None:
    digits = 5_000 * "1"

    assert loaded(tmp_path, f"kind: X\nvalue: {digits}\n")["value"] == digits


@pytest.mark.parametrize("written", ['"{}"', "'{}'", "!!str {}"])
@pytest.mark.parametrize("text", ["yes", "017", "1_000", "2026-01-01"])
def test_a_quoted_scalar_is_text(tmp_path: Path, written: str, text: str) -> None:
    assert loaded(tmp_path, f"kind: X\nvalue: {written.format(text)}\n")["value"] == text


def test_keys_are_text_and_a_merge_is_one(tmp_path: Path) -> None:
    text = "kind: X\nbase: &b {on: 1, 8: 2}\nvalue:\n  <<: *b\n  no: 3\n"

    assert loaded(tmp_path, text)["value"] == {"true": 1, "8": 2, "false": 3}
