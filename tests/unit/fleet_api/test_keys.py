"""The files with keys of fleets: when they are read, and what is logged about them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_cluster import STRANGER
from tests.unit.fleet_api.conftest import STATIC_KEY

from fleet_api.keys import READ_SECONDS, PublicKeys, StaticKeys

STATE = "/v1/rl/state"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[Path]:
    """How often each file was opened."""
    found: Counter[Path] = Counter()
    before = Path.open

    def counted(path: Path, *given: Any, **options: Any) -> Any:
        found[path] += 1
        return before(path, *given, **options)

    monkeypatch.setattr(Path, "open", counted)
    return found


@pytest.mark.parametrize("sent", [STRANGER, "well-formed-and-unknown", None])
async def test_requests_read_the_keys_of_a_fleet_at_most_once_a_second(api, opened, sent):
    file = api.keys / "rl.policy"
    file.write_text(STATIC_KEY)
    opened.clear()
    began = time.monotonic()
    for _ in range(10):
        await api.get(STATE, sent)

    assert opened[file] <= 1 + (time.monotonic() - began) / READ_SECONDS


async def test_requests_with_the_key_of_the_public_port_read_it_at_most_once_a_second(api, opened):
    file = api.public_keys / "rl.policy"
    file.write_text(STATIC_KEY)
    opened.clear()
    began = time.monotonic()
    for _ in range(10):
        await api.get("/v1/models")

    assert opened[file] <= 1 + (time.monotonic() - began) / READ_SECONDS


async def test_what_is_wrong_with_a_file_is_logged_once(api, caplog):
    (api.keys / "rl.policy").write_text("short")
    (api.public_keys / "rl.policy").write_text("key\x07")
    for _ in range(5):
        assert (await api.get(STATE))[0] == 200
        await api.get("/v1/models")

    assert len([one for one in caplog.records if one.name == "fleet_api.keys"]) == 2


class TestTime:
    """The keys of one file, by a clock of the test."""

    @pytest.fixture(autouse=True)
    def _clock(self, tmp_path: Path) -> None:
        self.now = 0.0
        self.file = tmp_path / "rl.policy"
        self.static = StaticKeys(tmp_path, lambda: self.now)
        self.public = PublicKeys(tmp_path, lambda: self.now)

    def allowed(self, *keys: str) -> list[bool]:
        return [self.static.allow(key, "rl", "policy") for key in keys]

    def test_keys_are_exchanged_without_a_restart_and_without_a_gap(self):
        old, new = STATIC_KEY, "the-next-static-key"
        self.file.write_text(old)
        assert self.allowed(old, new) == [True, False]
        self.file.write_text(f"{new}\n{old}\n")
        self.now += READ_SECONDS
        assert self.allowed(old, new) == [True, True]
        self.file.write_text(new)
        self.now += READ_SECONDS
        assert self.allowed(old, new) == [False, True]
        assert self.public.of("rl", "policy") == new
        self.file.unlink()
        self.now += READ_SECONDS
        assert self.allowed(old, new) == [False, False]
        assert self.public.of("rl", "policy") is None

    def test_a_file_that_comes_later_counts_at_once(self):
        assert self.allowed(STATIC_KEY) == [False]
        self.file.write_text(STATIC_KEY)
        assert self.allowed(STATIC_KEY) == [True]

    def test_each_content_with_a_short_key_is_logged_once(self, caplog):
        caplog.set_level(logging.WARNING)
        for content in ("short", "short\nother"):
            self.file.write_text(content)
            for _ in range(10):
                self.now += READ_SECONDS / 2
                assert self.allowed("short") == [False]

        assert [one.args and one.args[0] for one in caplog.records] == ["1 key", "2 keys"]

    def test_a_file_that_cannot_be_read_permits_nothing_and_is_logged_once(self, caplog):
        self.file.mkdir()
        for _ in range(10):
            self.now += READ_SECONDS
            assert self.allowed(STATIC_KEY) == [False]

        assert len(caplog.records) == 1

    def test_names_without_a_file_take_no_memory(self):
        self.file.write_text(STATIC_KEY)
        for number in range(100):
            assert not self.static.allow(STATIC_KEY, "rl", f"other-{number}")
        assert self.allowed(STATIC_KEY) == [True]

        assert list(self.static._files._files) == ["rl.policy"]
