"""Lists which of the worker's required names a released vLLM has, read from its sources.

    python3 tools/vllm_names.py           write the manifest tests/contract/vllm_names_0_33.json
    python3 tools/vllm_names.py --check   fail if the released package says otherwise

For a vLLM that cannot be installed where tests run. Its wheel is downloaded once, by the hash in
`requirements/vllm-next.txt`. Its Python files are unpacked into the cache folder, and never run. The
names are those of `fleet_worker.engine.vllm_names`.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs import REQUIREMENTS, cache_folder, pip
from fleet_worker.engine.vllm_names import (
    API_SERVER_NAMES,
    CONFIGURATION_NAMES,
    ENGINE_NAMES,
    OBJECT_NAMES,
    RUNNER_NAMES,
    WORKER_NAMES,
)

PINS = REQUIREMENTS / "vllm-next.txt"
MANIFEST = REQUIREMENTS.parent / "tests" / "contract" / "vllm_names_0_33.json"
PLATFORM = ("--platform=manylinux_2_28_x86_64", "--python-version=3.11")
ANY = "*"
"""In a list of parameters: it takes any."""

_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_RUNNER = "GPUModelRunner"
_MODEL = "vllm.model_executor.models.qwen3:Qwen3ForCausalLM"
_CONFIGURATION = "vllm.config:VllmConfig"


@dataclass(frozen=True)
class Wanted:
    """A name: `module:attribute`, dots go deeper; parameters that it must take."""

    name: str
    parameters: tuple[str, ...] = ()


def wanted_names() -> list[Wanted]:
    """Every name of `vllm_names`, with the engine class that it must exist on.

    The classes of a GPU's worker and runner are listed here. One model of vLLM is an example of all.
    """
    names = API_SERVER_NAMES + ENGINE_NAMES
    found = [Wanted(f"{n.module}:{n.attribute}", n.parameters) for n in names]
    for attribute, parameters in WORKER_NAMES:
        if attribute.startswith("vllm_config."):
            found.append(Wanted(f"{_CONFIGURATION}.{attribute.partition('.')[2]}", parameters))
        elif attribute.startswith("model_runner.model."):
            found.append(Wanted(f"{_MODEL}.{attribute.rpartition('.')[2]}", parameters))
        elif attribute.startswith("model_runner."):
            found += [_on_runner(runner, attribute, parameters) for runner in RUNNER_NAMES]
        else:
            found.append(Wanted(f"{_WORKER}.{attribute}", parameters))
    for runner, of_runner in RUNNER_NAMES.items():
        found += [_on_runner(runner, *name) for name in of_runner]
    found += [Wanted(name) for name in OBJECT_NAMES]
    found += [Wanted(f"{_CONFIGURATION}.{name}") for name in CONFIGURATION_NAMES]
    return found


def _on_runner(module: str, attribute: str, parameters: tuple[str, ...]) -> Wanted:
    return Wanted(f"{module}:{_RUNNER}.{attribute.partition('.')[2]}", parameters)


class Sources:
    """The Python files of a package, read and never run."""

    def __init__(self, folder: Path) -> None:
        """Read the package below a folder."""
        self._folder = folder

    def parameters(self, name: str) -> list[str] | None:
        """Parameters of what a name names, in alphabetic order; empty if it is not callable.

        None if there is no such name.
        """
        module, _, attribute = name.partition(":")
        if self._tree(module) is None:
            return None
        here: tuple[str, Any] = (module, self._tree(module))
        for part in filter(None, attribute.split(".")):
            found = self._inside(*here, part)
            if found is None:
                return None
            here = found
        return sorted(set(self._taken(*here)))

    def _inside(self, module: str, node: Any, name: str) -> tuple[str, Any] | None:
        if isinstance(node, ast.Module):
            return self._global(module, name)
        if isinstance(node, ast.AnnAssign | ast.Assign):
            held = self._held(module, node)
            return self._inside(*held, name) if held is not None else None
        if isinstance(node, ast.ClassDef):
            if name == "__dataclass_fields__":
                is_one = any("dataclass" in ast.unparse(each) for each in node.decorator_list)
                return (module, ast.Pass()) if is_one else None
            for where, each in self._classes(module, node):
                for member in _members(each):
                    if name in _names_of(member):
                        return where, member
        return None

    def _global(self, module: str, name: str) -> tuple[str, Any] | None:
        tree = self._tree(module)
        if tree is None:
            return None
        for node in _statements(tree.body):
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._global(self._absolute(module, node), alias.name)
            elif name in _names_of(node):
                return module, node
        return None

    def _held(self, module: str, node: ast.AnnAssign | ast.Assign) -> tuple[str, Any] | None:
        """The first class of vLLM in an annotation, or the class that an assigned object is made of."""
        if isinstance(node, ast.AnnAssign):
            text = ast.unparse(node.annotation)
        else:
            text = ast.unparse(node.value.func) if isinstance(node.value, ast.Call) else ""
        for word in re.findall(r"[A-Za-z_]\w*", text):
            found = self._global(module, word)
            if found is not None and isinstance(found[1], ast.ClassDef):
                return found
        return None

    def _classes(self, module: str, node: ast.ClassDef) -> Iterator[tuple[str, ast.ClassDef]]:
        yield module, node
        for base in node.bases:
            found = self._global(module, ast.unparse(base).partition("[")[0])
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from self._classes(found[0], found[1])

    def _taken(self, module: str, node: Any) -> list[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
            if given.vararg or given.kwarg:
                names.append(ANY)
            return [name for name in names if name not in ("self", "cls")]
        if isinstance(node, ast.ClassDef):
            made = self._inside(module, node, "__init__")
            if made is not None:
                return self._taken(*made)
            return [
                member.target.id
                for _, each in self._classes(module, node)
                for member in each.body
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
            ]
        return []

    def _absolute(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = module.split(".")
        is_package = (self._path(module) or Path()).name == "__init__.py"
        kept = package[: len(package) - node.level + (1 if is_package else 0)]
        return ".".join([*kept, node.module] if node.module else kept)

    def _path(self, module: str) -> Path | None:
        stem = self._folder.joinpath(*module.split("."))
        return next(
            (p for p in (stem / "__init__.py", stem.with_suffix(".py")) if p.is_file()), None
        )

    @functools.cache  # noqa: B019 - lives as long as the process
    def _tree(self, module: str) -> ast.Module | None:
        path = self._path(module)
        return ast.parse(path.read_text()) if path is not None else None


def manifest_of(folder: Path) -> dict[str, Any]:
    """The names in a folder's package: name → its parameters, None for what is missing."""
    sources = Sources(folder)
    requirement, digest = pinned()
    names = {wanted.name: sources.parameters(wanted.name) for wanted in wanted_names()}
    return {"package": requirement, "sha256": digest, "names": dict(sorted(names.items()))}


def missing(manifest: dict[str, Any]) -> list[str]:
    """Those of the wanted names that a manifest lacks, or whose parameters it lacks."""
    names: dict[str, list[str] | None] = manifest["names"]
    found = []
    for wanted in wanted_names():
        has = names.get(wanted.name)
        if has is None:
            found.append(wanted.name)
        elif ANY not in has and (lacks := set(wanted.parameters) - set(has)):
            found.append(f"{wanted.name}({', '.join(sorted(lacks))})")
    return found


def pinned() -> tuple[str, str]:
    """The package, e.g. `vllm==0.33.0`, and the SHA-256 of its wheel."""
    text = PINS.read_text()
    requirement = re.search(r"^(vllm==\S+)", text, re.MULTILINE)
    digest = re.search(r"--hash=sha256:([0-9a-f]{64})", text)
    if requirement is None or digest is None:
        sys.exit(f"vllm_names: {PINS} pins no wheel")
    return requirement[1], digest[1]


def sources() -> Path:
    """Folder with the Python files of the pinned package; fetches its wheel once (336 MB)."""
    requirement, digest = pinned()
    folder = cache_folder() / "sources" / f"{requirement.replace('==', '-')}-{digest[:12]}"
    if folder.exists():
        return folder
    wheels = folder.with_suffix(".wheel")
    shutil.rmtree(wheels, ignore_errors=True)
    command = [*pip(), "download", "-q", "--no-deps", "--no-cache-dir", "--require-hashes"]
    command += ["--only-binary=:all:", *PLATFORM, "-r", str(PINS), "-d", str(wheels)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (wheel,) = wheels.glob("*.whl")
    with wheel.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            sys.exit(f"vllm_names: {wheel.name} is not the wheel that {PINS} pins")
    with zipfile.ZipFile(wheel) as archive:
        python = [name for name in archive.namelist() if name.endswith(".py")]
        archive.extractall(wheels / "sources", python)
    (wheels / "sources").rename(folder)
    shutil.rmtree(wheels)
    return folder


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module, also those under conditions and in `try`."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            parts = [node.body, node.orelse]
            if isinstance(node, ast.Try):
                parts += [handler.body for handler in node.handlers]
            for part in parts:
                yield from _statements(part)


def _members(node: ast.ClassDef) -> Iterator[ast.AST]:
    """Members of a class, and what its methods assign to `self`."""
    yield from _statements(node.body)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Assign | ast.AnnAssign):
            yield inner


def _names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    found = [target.id for target in targets if isinstance(target, ast.Name)]
    return found + [
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
    ]


def main() -> None:
    """Write the manifest, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only compare")
    check = parser.parse_args().check
    text = json.dumps(manifest_of(sources()), indent=1) + "\n"
    if not check:
        MANIFEST.write_text(text)
    elif MANIFEST.read_text() != text:
        sys.exit(f"vllm_names: {MANIFEST} is not what the released package holds; make it again")
    if lacks := missing(json.loads(text)):
        sys.exit(f"vllm_names: {pinned()[0]} lacks {', '.join(lacks)}")


if __name__ == "__main__":
    main()
