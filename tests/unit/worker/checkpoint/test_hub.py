"""Finding repositories in the local cache."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint import opening
from fleet_worker.protocol import Reason

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "models--org--name"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "refs" / "pr").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "refs" / "pr" / "1").write_text(COMMIT + "\n")
    (folder / "refs" / "odd").write_text("../../..")
    (folder / "refs" / "damaged").write_bytes(b"\xff\xfe")
    return tmp_path


@pytest.mark.parametrize("revision", ["main", "pr/1", COMMIT])
def test_a_cached_revision_is_found(cache: Path, revision: str) -> None:
    found = opening.snapshot("org/name", revision, cache=cache)

    assert found == str(cache / "models--org--name" / "snapshots" / COMMIT)


@pytest.mark.parametrize(
    ("repository", "revision"),
    [
        pytest.param("org/other", "main", id="another repository"),
        pytest.param("org/name", "v2", id="another revision"),
        pytest.param("org/name", "f" * 40, id="another commit"),
        pytest.param("org/name", "odd", id="a reference that is not a commit"),
        pytest.param("org/name", "damaged", id="a reference that is not text"),
        pytest.param("../../etc", "main", id="a repository that climbs"),
        pytest.param("org/name", "../main", id="a revision that climbs"),
        pytest.param("org/name", "a/../../main", id="a revision that climbs later"),
        pytest.param("a/b/c", "main", id="three parts"),
    ],
)
def test_a_revision_that_is_not_cached_is_not_found_and_not_downloaded(
    cache: Path, repository: str, revision: str
) -> None:
    refusal = refusal_from(opening.snapshot, repository, revision, cache=cache)
    assert refusal.reason is Reason.SOURCE_NOT_FOUND


@pytest.mark.parametrize(("revision", "call"), [("main", "read_text"), (COMMIT, "is_dir")])
def test_a_cache_that_the_worker_may_not_read_is_unreadable(
    cache: Path, monkeypatch: pytest.MonkeyPatch, revision: str, call: str
) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, call, forbidden)
    refusal = refusal_from(opening.commit_of, "org/name", revision, cache=cache)
    assert refusal.reason is Reason.SOURCE_UNREADABLE


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        ({"HF_HUB_CACHE": "/cache"}, "/cache"),
        ({"HF_HOME": "/home"}, "/home/hub"),
        ({"HF_HUB_CACHE": "/cache", "HF_HOME": "/home"}, "/cache"),
    ],
)
def test_the_cache_directory_is_the_librarys(environment: dict[str, str], directory: str) -> None:
    assert str(opening.cache_directory(environment)) == directory


def test_the_default_cache_is_in_the_home_directory() -> None:
    assert opening.cache_directory({}).parts[-3:] == (".cache", "huggingface", "hub")
