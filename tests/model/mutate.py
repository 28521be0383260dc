"""Runs a module in a process of its own, after one mistake was made in the code under test.

    python -m tests.model.mutate '{"module": "fleet_operator.core.pins", "line": …, "instead": …}' \\
        tests.model.hunt --steps 20000

Nothing is copied: the mistake is made while the module is imported.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.mutants import Mutant

ROOT = Path(__file__).parents[2]
FOLDERS = {"fleet_operator": ROOT / "operator", "fleet_worker": ROOT / "worker"}


def run_mutated(mutant: Mutant | None, module: str, *arguments: str, seconds: float = 570) -> str:
    """The output of a module that runs with a mistake in the code; None: with the code as it is."""
    command = [sys.executable, "-m", module]
    if mutant is not None:
        found = (FOLDERS[mutant.package] / mutant.package / mutant.file).read_text()
        assert found.count(mutant.line) == 1, "the line is not there any more, or not once"
        name = f"{mutant.package}/{mutant.file}".removesuffix(".py").replace("/", ".")
        mistake = {"module": name, "line": mutant.line, "instead": mutant.instead}
        command = [*command[:2], "tests.model.mutate", json.dumps(mistake), module]
    done = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "client", *FOLDERS.values(), ROOT)))},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def breaks(mutant: Mutant | None, module: str, *arguments: str) -> bool:
    """Whether a module that looks for a broken promise (`hunt`) finds one."""
    said = run_mutated(mutant, module, *arguments)
    assert said.startswith(("promise ", "every promise held\n")), said
    return said.startswith("promise ")


class _Mistaken(SourceFileLoader):
    """Loads a module with another line in the place of one of its own."""

    def __init__(self, name: str, path: str, line: str, instead: str) -> None:
        super().__init__(name, path)
        self.line, self.instead = line, instead

    def path_stats(self, path: str) -> Any:
        """No compiled form of the module counts."""
        raise OSError(path)

    def get_data(self, path: str) -> bytes:
        text = super().get_data(path).decode()
        assert text.count(self.line) == 1
        return text.replace(self.line, self.instead).encode()


@dataclass(frozen=True)
class _Finder(MetaPathFinder):
    module: str
    line: str
    instead: str

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(fullname, path, target) if fullname == self.module else None
        if found is not None:
            assert found.origin is not None
            found.loader = _Mistaken(fullname, found.origin, self.line, self.instead)
        return found


def main() -> None:
    mistake, module, *arguments = sys.argv[1:]
    sys.meta_path.insert(0, _Finder(**json.loads(mistake)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()
