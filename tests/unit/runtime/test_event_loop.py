"""Which event loop the operator runs in."""

from __future__ import annotations

import asyncio
import sys

import uvloop
from tests.support.programs import written_by

from fleet_operator.runtime.main import loop_factory


def test_uvloop_is_used_where_it_is_installed():
    loop = loop_factory()()
    try:
        assert isinstance(loop, uvloop.Loop)
    finally:
        loop.close()


def test_without_uvloop_the_standard_librarys_loop_is_used(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvloop", None)

    loop = loop_factory()()
    try:
        assert isinstance(loop, asyncio.SelectorEventLoop)
    finally:
        loop.close()


STARTED = """
import gc, runpy, sys
import fleet_operator.runtime.main as main

async def run(_):
    print(gc.get_freeze_count(), len(gc.get_objects()), gc.get_threshold()[0])
    return 0

main.run = run
sys.argv = ["fleet_operator"]
runpy.run_module("fleet_operator", run_name="__main__")
"""


def test_garbage_collections_are_rare_and_skip_the_imported_objects():
    printed = written_by([sys.executable, "-c", STARTED], timeout=120)
    frozen, scanned, new_objects = map(int, printed.split())

    assert frozen > 50_000
    assert scanned < 5_000
    assert new_objects == 500_000
