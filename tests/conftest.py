"""Settings of all tests."""

from __future__ import annotations

import gc

from hypothesis import settings

# Other work on the machine must fail no test: no example has a deadline.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

# The tests themselves are a million objects that stay. A collection need not walk through them each time.
gc.disable()


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
