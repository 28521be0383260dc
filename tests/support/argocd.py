"""Argo CD's health scripts, run by Lua 5.1, the version that Argo CD's interpreter implements."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "examples/argocd/health.lua"

# Argo CD hands the object over as the global `obj`, and opens no library that reaches the system.
_RUN = """
import json, sys
from lupa.lua51 import LuaRuntime

def table(lua, value):
    if isinstance(value, dict):
        return lua.table_from({k: table(lua, v) for k, v in value.items() if v is not None})
    if isinstance(value, list):
        return lua.table_from([table(lua, v) for v in value])
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value

script, found = json.load(sys.stdin)
made = []
for each in found:
    lua = LuaRuntime(register_eval=False, register_builtins=False)
    for library in ("os", "io", "package", "require", "debug", "dofile", "loadfile", "python"):
        lua.globals()[library] = None
    lua.globals().obj = table(lua, each)
    made.append(dict(lua.execute(script)))
json.dump(made, sys.stdout)
"""


@functools.cache
def _lua_python() -> str:
    import envs  # noqa: PLC0415 - makes environments; only needed here

    return str(envs.interpreter_of("lua"))


def health(objects: Sequence[dict[str, Any]], script: str = "") -> list[dict[str, str]]:
    """The script's verdict of each object: `status` and `message`."""
    given = json.dumps([script or SCRIPT.read_text(), list(objects)])
    command = [_lua_python(), "-c", _RUN]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, str]] = json.loads(done.stdout)
    return found
