"""Names of images as nodes list them, and flags as vLLM's parser reads them."""

from __future__ import annotations

import pytest

from rlfleet.cli.engine_flags import Unknown, arguments_of, known, unknown_flags
from rlfleet.cli.images import normalized


@pytest.mark.parametrize(
    ("image", "listed"),
    [
        ("python", "docker.io/library/python:latest"),
        ("rlfleet/worker:1", "docker.io/rlfleet/worker:1"),
        ("docker.io/rlfleet/worker:1", "docker.io/rlfleet/worker:1"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b:latest"),
        ("localhost/worker", "localhost/worker:latest"),
        ("registry.example/a/b:1@sha256:ab", "registry.example/a/b@sha256:ab"),
    ],
)
def test_an_image_is_found_by_the_name_that_nodes_list(image, listed):
    assert normalized(image) == listed
    assert normalized(listed) == listed


@pytest.mark.parametrize(
    "arguments",
    [
        ["--max-model-len", "4096"],
        ["--max_model_len=4096"],
        ["--max-model-l", "4096"],
        ["--no-enable-prefix-caching"],
        ["--compilation-config.level", "3"],
        ["-O3"],
        ["-O.level=3"],
        ["--seed", "-1"],
        ["--max-num-seqs", "4", "value", "-"],
    ],
)
def test_what_the_parser_takes_is_known(arguments):
    assert unknown_flags(arguments) == []


def test_an_unknown_flag_has_those_that_are_spelt_alike():
    assert unknown_flags(["--max-modl-len=4", "--max_modl_len", "4", "--of-a-plugin"]) == [
        Unknown("--max-modl-len", ("--max-model-len",)),
        Unknown("--max_modl_len", ("--max-model-len",)),
        Unknown("--of-a-plugin", ()),
    ]


def test_an_ambiguous_abbreviation_has_the_flags_that_it_begins():
    (found,) = unknown_flags(["--max-num"])

    assert len(found.near) > 1
    assert all(flag.startswith("--max-num") for flag in found.near)


def test_a_flag_is_shown_in_printable_characters_and_not_in_full_length():
    (found,) = unknown_flags([f"--\x1b[31m{'x' * 500}"])

    assert found.flag.isprintable()
    assert len(found.flag) <= 60


@pytest.mark.parametrize(
    "spec", [None, {}, {"engine": None}, {"engine": {"args": "--x"}}, {"engine": {"args": [1]}}]
)
def test_a_spec_of_another_shape_has_no_arguments(spec):
    assert arguments_of({"spec": spec}) == []


def test_the_flags_are_those_of_a_release():
    assert known().version.count(".") == 1
    assert {"--max-model-len", "-tp", "--enforce-eager"} <= known().flags
