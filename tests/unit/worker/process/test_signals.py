"""Libraries that set signal handlers do not replace ours for SIGTERM."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from fleet_worker.process.ending import KeptSigterm


def ours(_number: int, _frame: FrameType | None) -> None:
    return


def theirs(_number: int, _frame: FrameType | None) -> None:
    return


@pytest.fixture
def kept() -> Iterator[KeptSigterm]:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR2)
    keeper = KeptSigterm()
    keeper.keep(ours)
    yield keeper
    keeper.release()
    signal.signal(signal.SIGTERM, before[0])
    signal.signal(signal.SIGUSR2, before[1])


def test_a_guarded_handler_cannot_be_replaced(kept: KeptSigterm) -> None:
    assert signal.signal(signal.SIGTERM, theirs) is ours
    assert signal.getsignal(signal.SIGTERM) is ours


def test_other_signals_are_not_guarded(kept: KeptSigterm) -> None:
    signal.signal(signal.SIGUSR2, theirs)

    assert signal.getsignal(signal.SIGUSR2) is theirs


def test_after_the_release_our_handler_stays_until_it_is_replaced(kept: KeptSigterm) -> None:
    kept.release()
    assert signal.getsignal(signal.SIGTERM) is ours
    signal.signal(signal.SIGTERM, theirs)

    assert signal.getsignal(signal.SIGTERM) is theirs


def test_a_forked_engine_sets_its_own_handler(kept: KeptSigterm) -> None:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, theirs)
        os._exit(0 if signal.getsignal(signal.SIGTERM) is theirs else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_saved_reference_to_the_guarded_function_works_after_the_release(
    kept: KeptSigterm,
) -> None:
    taken_along = signal.signal  # as uvloop does, which is imported meanwhile
    kept.release()
    taken_along(signal.SIGTERM, theirs)

    assert signal.getsignal(signal.SIGTERM) is theirs
