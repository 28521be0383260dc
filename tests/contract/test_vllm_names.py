"""The names that the worker needs in a supported vLLM that cannot run here.

The manifest was read from the released package by `tools/vllm_names.py`; `tests/engine` has the tool
read the package again.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import vllm_names

ROOT = Path(__file__).parents[2]
MANIFEST: dict[str, Any] = json.loads(vllm_names.MANIFEST.read_text())


def test_the_released_package_has_every_name_that_the_worker_looks_up() -> None:
    assert vllm_names.missing(MANIFEST) == []


def test_the_manifest_is_of_the_wheel_that_is_pinned_and_of_no_other_names() -> None:
    assert (MANIFEST["package"], MANIFEST["sha256"]) == vllm_names.pinned()
    assert set(MANIFEST["names"]) == {wanted.name for wanted in vllm_names.wanted_names()}


def test_the_supported_range_ends_with_the_package_whose_names_were_read() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (declared,) = [r for r in map(Requirement, extras["worker"]) if r.name == "vllm"]
    (read,) = Requirement(MANIFEST["package"]).specifier

    assert declared.specifier.contains(read.version)
    major, minor, _ = read.version.split(".")
    assert not declared.specifier.contains(f"{major}.{int(minor) + 1}.0")


def test_a_name_that_is_gone_and_a_parameter_that_is_gone_are_found() -> None:
    names = dict(MANIFEST["names"])
    pause = "vllm.v1.engine.async_llm:AsyncLLM.pause_generation"
    names[pause] = ["mode"]
    names["vllm.lora.request:LoRARequest"] = None

    assert vllm_names.missing({"names": names}) == [
        f"{pause}(clear_cache)",
        "vllm.lora.request:LoRARequest",
    ]


def test_one_file_of_the_product_names_releases_of_vllm() -> None:
    """The next release is read against that file. Other files say what vLLM does, and not since when."""
    folders = [ROOT / "worker", ROOT / "operator", ROOT / "client"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    naming = [f.name for f in files if re.search(r"(?i)vllm[^\n]{0,3}0\.\d\d", f.read_text())]
    (read,) = [f for f in files if f.name == "vllm_names.py"]

    assert naming == []
    assert MANIFEST["package"].rpartition(".")[0].removeprefix("vllm==") in read.read_text()


PACKAGE = {
    "pkg/__init__.py": "from .inner import Inner as Shown\n",
    "pkg/inner.py": """
from dataclasses import dataclass
from typing import Protocol
import pkg.base
try:
    from pkg.base import Base
except ImportError:
    Base = object

@dataclass
class Part:
    first: int
    second: str = ""

class Inner(Base):
    part: "Part | None" = None
    def __init__(self, left, *, right=None):
        self.held = left
        self.made = Part(left)
    def many(self, *anything):
        other.unheld = 1
    async def own(self, one, two): ...
""",
    "pkg/base.py": """
class Base:
    def above(self, three): ...
    @property
    def shown(self): ...
""",
}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("pkg:", []),
        ("pkg:Shown", ["left", "right"]),
        ("pkg:Shown.own", ["one", "two"]),
        ("pkg:Shown.above", ["three"]),
        ("pkg:Shown.shown", []),
        ("pkg:Shown.held", []),
        ("pkg:Shown.many", ["*"]),
        ("pkg:Shown.part.first", []),
        ("pkg:Shown.made.second", []),
        ("pkg.inner:Part", ["first", "second"]),
        ("pkg.inner:Part.__dataclass_fields__", []),
        ("pkg.inner:Inner.__dataclass_fields__", None),
        ("pkg:Shown.unheld", None),
        ("pkg:Shown.part.third", None),
        ("pkg:Shown.held.first", None),
        ("pkg:Other", None),
        ("pkg.gone:", None),
        ("pkg.base:Base.above.deeper", None),
    ],
)
def test_names_are_found_in_sources_that_are_never_run(
    tmp_path: Path, name: str, parameters: list[str] | None
) -> None:
    for path, text in PACKAGE.items():
        file = tmp_path / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)

    assert vllm_names.Sources(tmp_path).parameters(name) == parameters
