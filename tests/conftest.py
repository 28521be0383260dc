"""Settings of all tests."""

from __future__ import annotations

from hypothesis import settings

# Other work on the machine must fail no test: no example has a deadline.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
