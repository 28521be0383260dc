"""The older weights whose keys and values a token may have read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleet_worker.lifecycle.kept_cache import KeptCache


def test_after_a_load_that_clears_the_cache_only_new_keys_are_read() -> None:
    kept = KeptCache()
    before = kept.begin()
    kept.loaded("2", "1", cleared=True)

    assert kept.read_from("2", before, found_cached=True) is None
    assert kept.read_from("2", kept.begin(), found_cached=True) is None


def test_a_request_that_continues_over_a_kept_cache_reads_keys_of_older_weights() -> None:
    kept = KeptCache()
    before = kept.begin()
    kept.loaded("2", "1", cleared=False)

    assert kept.read_from("1", before, found_cached=True) is None
    assert kept.read_from("2", before, found_cached=False) == "1"


def test_a_new_request_reads_older_keys_only_through_the_cache() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    beginning = kept.begin()

    assert kept.read_from("2", beginning, found_cached=True) == "1"
    assert kept.read_from("2", beginning, found_cached=False) is None


def test_requests_after_a_cleared_cache_read_no_older_keys() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    running = kept.begin()
    kept.clear()

    assert kept.read_from("2", kept.begin(), found_cached=True) is None
    assert kept.read_from("2", running, found_cached=True) == "1"


def test_a_request_with_an_image_may_read_older_encoder_outputs_without_a_cached_prefix() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    beginning = kept.begin()

    assert kept.read_from("2", beginning, found_cached=False, has_media=True) == "1"
    kept.loaded("3", "2", cleared=True)
    assert kept.read_from("3", kept.begin(), found_cached=False, has_media=True) is None


def test_encoder_outputs_stay_when_the_prefixes_are_dropped() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    kept.clear_prefixes()
    beginning = kept.begin()

    assert kept.read_from("2", beginning, found_cached=True) is None
    assert kept.read_from("2", beginning, found_cached=True, has_media=True) == "1"
    kept.renamed("2b", "2")
    assert kept.read_from("2b", kept.begin(), found_cached=True) is None
    assert kept.read_from("2b", kept.begin(), found_cached=True, has_media=True) == "1"
    kept.clear()
    assert kept.read_from("2b", kept.begin(), found_cached=True, has_media=True) is None


def test_a_version_loaded_again_over_a_cleared_cache_reads_no_older_keys() -> None:
    kept = KeptCache()
    kept.loaded("2", "1", cleared=False)
    kept.loaded("1", "2", cleared=True)
    before = kept.begin()
    kept.loaded("2", "1", cleared=True)

    assert kept.read_from("2", before, found_cached=True) is None


def test_the_history_of_loads_is_bounded() -> None:
    kept = KeptCache()
    for version in range(1000):
        kept.loaded(str(version + 1), str(version), cleared=False)

    assert len(kept._prefixes._kept) == 256
    assert kept.oldest == "0"


def test_a_request_older_than_a_version_that_returned_has_read_keys_of_others() -> None:
    kept = KeptCache()
    running = kept.begin()
    kept.loaded("2", "1", cleared=False)
    kept.loaded("1", "2", cleared=False)

    assert kept.read_from("1", running, found_cached=False) == "2"
    assert kept.read_from("1", kept.begin(), found_cached=False) is None


def test_a_version_loaded_over_itself_reads_no_other_keys() -> None:
    kept = KeptCache()
    running = kept.begin()
    kept.loaded("1", "1", cleared=False)

    assert kept.read_from("1", running, found_cached=True) is None


class FakeAttention:
    """An engine that remembers whose keys and values are where, and does nothing else."""

    def __init__(self) -> None:
        self.kept = KeptCache()
        self.version = "1"
        self.cached: set[str] = set()
        self.beginning = self.kept.begin()
        self.found_cached = False
        self.read: set[str] = set()
        self.made: dict[str, set[str]] = {}
        """Version → whose keys and values its tokens of the present request have read."""

    def begin(self, *, found_cached: bool) -> None:
        self.beginning, self.found_cached = self.kept.begin(), found_cached
        self.read = set(self.cached) if found_cached else set()
        self.made = {}
        self.generate()

    def generate(self) -> None:
        self.read.add(self.version)
        self.cached.add(self.version)
        self.made.setdefault(self.version, set()).update(self.read)

    def load(self, version: str, *, cleared: bool) -> None:
        if cleared:
            self.clear()
        self.kept.loaded(version, self.version, cleared=cleared)
        self.version = version

    def clear(self) -> None:
        self.cached, self.read = set(), set()
        self.kept.clear()

    def named(self, version: str) -> str | None:
        return self.kept.read_from(version, self.beginning, found_cached=self.found_cached)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.booleans()),
        st.tuples(st.just("load"), st.sampled_from("1234"), st.booleans()),
        st.just(("generate",)),
        st.just(("clear",)),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_token_hides_the_oldest_weights_whose_keys_it_has_read(
    steps: list[tuple[object, ...]],
) -> None:
    engine = FakeAttention()
    engine.generate()
    for what, *how in steps:
        match what, how:
            case "begin", [bool(found)]:
                engine.begin(found_cached=found)
            case "load", [str(version), bool(cleared)]:
                engine.load(version, cleared=cleared)
            case "clear", _:
                engine.clear()
            case _:
                engine.generate()
        for version, read in engine.made.items():
            named = engine.named(version)
            assert named != version
            if read - {version}:
                assert named is not None, f"tokens of {version} have read keys of {read}"
