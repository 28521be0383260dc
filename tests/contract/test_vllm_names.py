"""The releases of vLLM that the worker supports are those whose source was read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

import vllm_next

ROOT = Path(__file__).parents[2]


def test_the_supported_range_ends_with_the_package_whose_names_were_read() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (declared,) = [r for r in map(Requirement, extras["worker"]) if r.name == "vllm"]
    (read,) = Requirement(vllm_next.pinned()[0]).specifier

    assert declared.specifier.contains(read.version)
    major, minor, _ = read.version.split(".")
    assert not declared.specifier.contains(f"{major}.{int(minor) + 1}.0")


def test_one_file_of_the_product_names_releases_of_vllm() -> None:
    """The next release is read against that file. Other files say what vLLM does, and not since when."""
    folders = [ROOT / "worker", ROOT / "operator", ROOT / "client"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    naming = [f.name for f in files if re.search(r"(?i)vllm[^\n]{0,3}0\.\d\d", f.read_text())]
    (read,) = [f for f in files if f.name == "vllm_names.py"]

    assert naming == []
    minor = vllm_next.pinned()[0].rpartition(".")[0].removeprefix("vllm==")
    assert minor in read.read_text()
