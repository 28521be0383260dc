"""Manifests as `rlfleet validate` reads them."""

from __future__ import annotations

import pytest

from rlfleet.cli.manifests import read


@pytest.mark.parametrize("version", ["2026-01-01", "2026-01-01T10:00:00Z", "2026-02-31"])
def test_a_version_that_looks_like_a_date_is_text(tmp_path, version):
    file = tmp_path / "weights.yaml"
    file.write_text(f"kind: WeightVersion\nspec: {{version: {version}}}\n")

    (manifest,), problems = read([str(file)], "rl")

    assert problems == []
    assert manifest.body["spec"] == {"version": version}


def test_a_number_of_more_digits_than_python_converts_is_a_problem_of_its_file(tmp_path):
    file = tmp_path / "weights.yaml"
    file.write_text(f"kind: WeightVersion\nspec: {{version: {'1' * 5_000}}}\n")

    found, (problem,) = read([str(file)], "rl")

    assert found == []
    assert problem.subject == str(file)
