"""Which weights' keys and values tokens may have been computed from."""

from __future__ import annotations

from fleet_worker.core.kept_cache import KeptCache


def test_after_a_load_that_clears_the_cache_nothing_old_is_read() -> None:
    kept = KeptCache()
    before = kept.begin("1")
    kept.loaded("2", "1", cleared=True)

    assert kept.read_from("2", before, found_cached=True) is None
    assert kept.read_from("2", kept.begin("2"), found_cached=True) is None


def test_a_request_that_runs_on_over_a_kept_cache_reads_the_keys_of_before() -> None:
    kept = KeptCache()
    before = kept.begin("1")
    kept.loaded("2", "1", cleared=False)

    assert kept.read_from("1", before, found_cached=True) is None
    assert kept.read_from("2", before, found_cached=False) == "1"


def test_over_several_kept_loads_the_oldest_is_named() -> None:
    kept = KeptCache()
    before = kept.begin("1")
    kept.loaded("2", "1", cleared=False)
    kept.loaded("3", "2", cleared=False)

    assert kept.read_from("2", before, found_cached=False) == "1"
    assert kept.read_from("3", before, found_cached=False) == "1"
    assert kept.read_from("3", kept.begin("3"), found_cached=True) == "1"


def test_a_new_request_reads_old_keys_only_out_of_the_cache() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    beginning = kept.begin("2")

    assert kept.read_from("2", beginning, found_cached=True) == "1"
    assert kept.read_from("2", beginning, found_cached=False) is None


def test_a_cleared_cache_is_clean_for_those_who_come_after() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    running = kept.begin("1")
    kept.clear()

    assert kept.read_from("2", kept.begin("2"), found_cached=True) is None
    assert kept.read_from("2", running, found_cached=True) == "1"


def test_a_version_that_is_loaded_again_over_a_cleared_cache_is_clean() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    kept.loaded("1", "2", cleared=True)
    before = kept.begin("1")
    kept.loaded("2", "1", cleared=True)

    assert kept.read_from("2", before, found_cached=True) is None


def test_what_is_remembered_is_bounded() -> None:
    kept = KeptCache()
    for version in range(1000):
        kept.loaded(str(version + 1), str(version), cleared=False)

    assert len(kept._kept) == 256
    assert kept.oldest == "0"
