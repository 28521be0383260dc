"""A run of the collector on a real directory, with the objects of a fleet."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.support.collector import (
    BEAT,
    a_fleet,
    a_weight_version,
    date,
    names_in,
    objects,
    write_versions,
)

from fleet_collector import collection
from fleet_collector.collection import Objects, Outcome, collect
from rlfleet.errors import Unavailable

RULE = {"keep": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five versions, of which a rule keeps the last two, written in their order."""
    made = tmp_path / "run-7"
    write_versions(made, 1, 2, 3, 4, 5)
    date(made)
    return made


def run(
    folder: Path,
    *looks: Objects,
    while_it_waits: Callable[[], object] = lambda: None,
    dry_run: bool = False,
    operator_lives: bool = True,
) -> Outcome:
    """One run. `looks`: what the API server has each time; by default version 5 is applied."""
    waited = list[object]()
    seen = [*looks] or [objects([a_weight_version(folder, "5", retention=RULE)], a_fleet())]

    def read() -> Objects:
        found = seen.pop(0) if len(seen) > 1 else seen[0]
        return replace(found, beats=objects([]).beats) if operator_lives else found

    def wait() -> None:
        if not waited:
            waited.append(while_it_waits())

    (outcome,) = collect(read, [str(folder.parent)], wait, dry_run=dry_run)
    return outcome


def test_versions_that_nothing_needs_are_deleted_and_their_bytes_counted(folder: Path) -> None:
    outcome = run(folder)

    assert names_in(folder) == ["step_4", "step_5"]
    assert [d.name for d in outcome.deleted] == ["step_1", "step_2", "step_3"]
    assert sum(d.size_bytes for d in outcome.deleted) == 3 * 102
    assert outcome.problems == []


def test_a_dry_run_changes_nothing(folder: Path) -> None:
    outcome = run(folder, dry_run=True)

    assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]
    assert ([d.name for d in outcome.kept], outcome.deleted) == (["step_4", "step_5"], [])


def test_nothing_is_deleted_without_a_rule(folder: Path) -> None:
    weights = a_weight_version(folder, "5")

    assert collect(lambda: objects([weights], a_fleet()), [str(folder)], lambda: None) == []


def test_a_version_that_is_put_aside_cannot_be_opened(folder: Path) -> None:
    seen = []
    run(folder, while_it_waits=lambda: seen.extend(n for n in names_in(folder) if n[0] != "."))

    assert seen == ["step_4", "step_5"]


class TestTheSecondLook:
    def test_a_version_that_a_spec_names_meanwhile_comes_back(self, folder: Path) -> None:
        first = objects([a_weight_version(folder, "5", retention=RULE)], a_fleet())
        back = a_weight_version(folder, "5", rollbackTo="2", retention=RULE)
        outcome = run(folder, first, objects([back], a_fleet()))

        assert names_in(folder) == ["step_2", "step_4", "step_5"]
        assert [d.name for d in outcome.kept] == ["step_4", "step_5", "step_2"]

    def test_a_version_that_a_worker_had_opened_before_comes_back(self, folder: Path) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        run(folder, objects(weights, a_fleet()), objects(weights, a_fleet(f"{folder}/step_1")))

        assert names_in(folder) == ["step_1", "step_4", "step_5"]

    def test_the_wait_is_between_the_rename_and_the_second_look(self, folder: Path) -> None:
        """A status may be late, and shows a worker only after the wait."""
        weights, late = [a_weight_version(folder, "5", retention=RULE)], [True]

        def read() -> Objects:
            return objects(weights, a_fleet(*([] if late else [f"{folder}/step_1"])))

        def wait() -> None:
            assert "step_1" not in names_in(folder)
            late.clear()

        collect(read, [str(folder)], wait)
        assert names_in(folder) == ["step_1", "step_4", "step_5"]

    def test_a_version_that_a_spec_names_while_others_are_deleted_comes_back(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(collection, "_LOOK_SECONDS", 0)
        first = objects([a_weight_version(folder, "5", retention=RULE)], a_fleet())
        back = a_weight_version(folder, "5", rollbackTo="2", retention=RULE)
        outcome = run(folder, first, first, first, objects([back], a_fleet()))

        assert [d.name for d in outcome.deleted] == ["step_1", "step_3"]
        assert names_in(folder) == ["step_2", "step_4", "step_5"]

    def test_a_version_that_is_leased_meanwhile_comes_back(self, folder: Path) -> None:
        run(folder, while_it_waits=(folder / ".step_3.keep-eval").touch)

        assert "step_3" in names_in(folder)

    def test_a_version_that_is_written_again_meanwhile_stays(self, folder: Path) -> None:
        run(folder, while_it_waits=lambda: write_versions(folder, 3))

        assert names_in(folder) == ["step_3", "step_4", "step_5"]

    def test_all_come_back_if_the_api_server_does_not_answer(self, folder: Path) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        looks = [objects(weights, a_fleet()) for _ in range(2)]

        def read() -> Objects:
            if not looks:
                raise Unavailable("no answer")
            return looks.pop()

        with pytest.raises(Unavailable):
            collect(read, [str(folder)], lambda: None)
        assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]

    def test_all_come_back_if_a_fleet_cannot_be_read_any_more(self, folder: Path) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        odd = a_fleet()
        odd["status"]["sourcesInUse"] = [{"version": "1", "source": {"tape": "x"}}]
        outcome = run(folder, objects(weights, a_fleet()), objects(weights, odd))

        assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]
        assert len(outcome.problems) == 1

    def test_all_come_back_unless_the_operator_has_renewed_its_heartbeat_meanwhile(
        self, folder: Path
    ) -> None:
        """One that is down does not say what a worker has opened just before."""
        outcome = run(folder, operator_lives=False)

        assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]
        assert (len(outcome.problems), outcome.waits) == (1, [])
        assert BEAT in outcome.problems[0]

    @pytest.mark.parametrize(("beats", "left"), [("00111", 5), ("00012", 5), ("00122", 2)])
    def test_one_renewal_may_have_begun_before_versions_were_put_aside(
        self, folder: Path, beats: str, left: int
    ) -> None:
        """`beats`: the heartbeat at each look: at first, after the renames, twice later, and before the deletion."""
        weights = [a_weight_version(folder, "5", retention=RULE)]
        looks = (objects(weights, a_fleet(), beat=beat) for beat in beats)
        run(folder, *looks, operator_lives=False)

        assert len(names_in(folder)) == left

    @pytest.mark.parametrize("present", ["first look", "later"])
    def test_nothing_is_deleted_without_a_heartbeat(self, folder: Path, present: str) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        looks = [objects(weights, a_fleet()), Objects([a_fleet()], weights)]
        outcome = run(
            folder, *(looks if present == "first look" else looks[::-1]), operator_lives=False
        )

        assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]
        assert (len(outcome.problems), outcome.waits) == (1, [])

    def test_a_new_fleet_has_no_operator_for_a_moment(self, folder: Path) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        new = {**a_fleet(), "status": {}}
        outcome = run(folder, Objects([new], weights), operator_lives=False)

        assert names_in(folder) == [f"step_{n}" for n in range(1, 6)]
        assert outcome.problems == []

    def test_an_index_that_a_trainer_is_writing_raises_no_alarm(self, folder: Path) -> None:
        write_versions(folder, 6, base=5)
        index = folder / "step_6/model.safetensors.index.json"
        whole = index.read_text()
        index.write_text(whole[:20])
        outcome = run(folder, while_it_waits=lambda: index.write_text(whole))

        assert (outcome.problems, outcome.waits) == ([], [])
        assert len(names_in(folder)) == 6

    def test_an_index_that_is_cut_after_the_rename_waits_for_the_next_run(
        self, folder: Path
    ) -> None:
        def write() -> None:
            write_versions(folder, 6, base=5)
            (folder / "step_6/model.safetensors.index.json").write_text("{")

        outcome = run(folder, while_it_waits=write)

        assert (outcome.problems, len(outcome.waits)) == ([], 1)
        assert len(names_in(folder)) == 6


class TestStatuses:
    @pytest.mark.parametrize("late", ["fleet", "weights"])
    def test_nothing_is_deleted_while_the_operator_has_not_seen_a_spec(
        self, folder: Path, late: str
    ) -> None:
        weights, fleet = a_weight_version(folder, "5", retention=RULE), a_fleet()
        {"fleet": fleet, "weights": weights}[late]["metadata"]["generation"] += 1
        outcome = run(folder, objects([weights], fleet))

        assert len(names_in(folder)) == 5
        assert (outcome.problems, len(outcome.waits)) == ([], 1)

    def test_nothing_is_deleted_if_the_list_of_sources_is_full(self, folder: Path) -> None:
        weights = a_weight_version(folder, "5", retention=RULE)
        outcome = run(folder, objects([weights], a_fleet(*(f"/y/{n}" for n in range(100)))))

        assert len(names_in(folder)) == 5
        assert "rl/policy is full" in outcome.problems[0]

    @pytest.mark.parametrize(("root", "left"), [("", 5), ("/run-7", 5), ("/run-8", 2)])
    def test_nothing_is_deleted_where_an_external_fleet_may_read(
        self, folder: Path, root: str, left: int
    ) -> None:
        weights = a_weight_version(folder, "5", retention=RULE)
        external = a_fleet(management="External", roots=[f"{folder.parent}{root}"])

        run(folder, objects([weights], external))
        assert len(names_in(folder)) == left

    @pytest.mark.parametrize(
        "spec",
        [
            {"engine": {"args": ["--tokenizer=/w/run-7/step_1"]}},
            {"engine": {"args": ["--speculative-config", '{"model": "/w/run-7/step_1", "n": 2}']}},
            {"podOverlay": {"volumes": [{"nfs": {"path": "/export/step_1"}}, {"a\0b": "/\0"}]}},
            {"podOverlay": {"containers": [{"volumeMounts": [{"subPath": "step_1"}]}]}},
        ],
    )
    def test_what_the_spec_of_a_fleet_names_anywhere_stays(
        self, folder: Path, spec: dict[str, object]
    ) -> None:
        """Workers read it at each start, and no status says so."""
        fleet = a_fleet()
        fleet["spec"] |= spec
        run(folder, objects([a_weight_version(folder, "5", retention=RULE)], fleet))

        assert names_in(folder) == ["step_1", "step_4", "step_5"]

    def test_versions_for_a_way_back_stay(self, folder: Path) -> None:
        weights = a_weight_version(folder, "5", rollbackTo="1", retention={"keep": 1})
        weights["status"]["history"] = [
            {
                "version": v,
                "result": "Applied",
                "startedAt": "2026-01-01T00:00:00Z",
                "totalSeconds": 1,
            }
            for v in ("5", "2", "3")
        ]
        fleet = a_fleet()
        fleet["status"]["transition"] = {
            "version": "5",
            "strategy": "Rolling",
            "startedAt": "2026-01-01T00:00:00Z",
            "base": {"version": "3", "source": {"path": "/elsewhere/step_3"}},
        }
        run(folder, objects([weights], fleet))

        assert names_in(folder) == ["step_1", "step_2", "step_3", "step_5"]

    def test_the_template_is_known_while_a_patch_names_one_directory(self, folder: Path) -> None:
        weights = a_weight_version(folder, "5", retention=RULE)
        weights["metadata"]["annotations"] = {
            "rlfleet.dev/source-template": f'{{"path": "{folder}/step_{{version}}"}}'
        }
        weights["spec"]["source"] = {"path": f"{folder}/step_5"}
        run(folder, objects([weights], a_fleet()))

        assert names_in(folder) == ["step_4", "step_5"]

    def test_a_source_without_a_version_is_a_problem(self, folder: Path) -> None:
        weights = a_weight_version(folder, "5", retention=RULE)
        weights["spec"]["source"] = {"path": f"{folder}/step_5"}

        assert "without {version}" in run(folder, objects([weights], a_fleet())).problems[0]


class TestTheVolume:
    def test_a_file_that_is_added_to_the_applied_version_takes_nothing_from_what_is_written_after_it(
        self, folder: Path
    ) -> None:
        """As the results of an evaluation, next to a run that counts from 0 again."""
        for path in [*(folder / "step_1").iterdir(), folder / "step_1"]:
            os.utime(path, (100, 100))
        (folder / "step_5/results.json").touch()
        run(folder)

        assert names_in(folder) == ["step_1", "step_4", "step_5"]

    def test_the_chain_of_a_delta_stays(self, folder: Path) -> None:
        write_versions(folder, 6, base=2)
        date(folder)
        weights = a_weight_version(folder, "6", retention={"keep": 1})
        run(folder, objects([weights], a_fleet()))

        assert names_in(folder) == ["step_2", "step_6"]

    def test_the_chain_of_a_delta_that_this_process_may_not_delete_stays(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As one of another user: workers read it all the same."""
        write_versions(folder, 6, base=2)
        date(folder)
        monkeypatch.setattr(os, "access", lambda path, *_, **__: path != "step_6")
        run(folder, objects([a_weight_version(folder, "6", retention={"keep": 1})], a_fleet()))

        assert names_in(folder) == ["step_2", "step_6"]

    @pytest.mark.parametrize("link", [None, "step_7"])
    def test_the_chain_of_a_delta_under_another_name_stays(
        self, folder: Path, link: str | None
    ) -> None:
        """As a copy that another fleet serves, or one that a version leads to."""
        write_versions(folder, 6, base=2)
        kept = folder / (".golden" if link else "golden")
        (folder / "step_6").rename(kept)
        if link:
            (folder / link).symlink_to(kept.name)
        run(folder)

        assert {*names_in(folder)} == {kept.name, "step_2", "step_4", "step_5", link or kept.name}

    def test_a_file_with_the_name_of_a_version_keeps_nothing(self, folder: Path) -> None:
        (folder / "step_6").touch()
        (folder / "lost+found").mkdir()

        assert run(folder).problems == []

    def test_nothing_is_deleted_while_an_index_of_a_version_that_stays_is_cut(
        self, folder: Path
    ) -> None:
        (folder / "step_5/model.safetensors.index.json").write_text('{"metadata": {"base_ver')

        assert "step_5" in run(folder).problems[0]
        assert len(names_in(folder)) == 5

    def test_a_folder_outside_of_the_roots_is_refused(self, folder: Path, tmp_path: Path) -> None:
        weights = objects([a_weight_version(folder, "5", retention=RULE)], a_fleet())
        (outcome,) = collect(lambda: weights, [str(tmp_path / "run")], lambda: None)

        assert "not below" in outcome.problems[0]
        assert len(names_in(folder)) == 5

    def test_a_folder_that_is_not_mounted_is_a_problem(self, tmp_path: Path) -> None:
        weights = a_weight_version(tmp_path / "run-9", "5", retention=RULE)

        assert "does not exist" in run(tmp_path / "run-9", objects([weights])).problems[0]

    def test_a_folder_behind_a_link_is_refused(self, folder: Path, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(folder)
        weights = a_weight_version(tmp_path / "link", "5", retention=RULE)

        assert "is a link" in run(folder, objects([weights], a_fleet())).problems[0]

    def test_an_applied_version_behind_a_link_is_a_problem(self, folder: Path) -> None:
        (folder / "step_5").rename(folder.parent / "elsewhere")
        (folder / "step_5").symlink_to(folder.parent / "elsewhere")
        outcome = run(folder)

        assert "it is a link" in outcome.problems[0]
        assert len(names_in(folder)) == 5

    def test_links_and_what_they_lead_to_stay(self, folder: Path) -> None:
        outside = folder.parent / "outside"
        write_versions(outside, 0)
        (folder / "step_0").symlink_to(outside / "step_0")
        (folder / "best").symlink_to("step_1")
        run(folder)

        assert names_in(folder) == ["best", "step_0", "step_1", "step_4", "step_5"]
        assert names_in(outside / "step_0") == ["config.json", "model.safetensors"]

    def test_what_a_link_in_a_version_leads_to_stays(self, folder: Path) -> None:
        (folder / "step_1/optimizer").symlink_to(folder.parent)
        date(folder)
        run(folder)

        assert names_in(folder) == ["step_4", "step_5"]

    def test_a_version_that_a_fleet_reads_by_a_link_stays(self, folder: Path) -> None:
        (folder.parent / "served").symlink_to(folder / "step_2")
        weights = a_weight_version(folder, "5", retention=RULE)
        run(folder, objects([weights], a_fleet(str(folder.parent / "served"))))

        assert names_in(folder) == ["step_2", "step_4", "step_5"]

    def test_what_cannot_be_deleted_is_reported_and_not_tried_again(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = []

        def refused(path: str, **_: object) -> None:
            tried.append(path)
            raise PermissionError(13, "not yours", path)

        with monkeypatch.context() as broken:
            broken.setattr("shutil.rmtree", refused)
            outcome = run(folder)
        assert (len(tried), len(outcome.problems), outcome.deleted) == (3, 3, [])
        assert run(folder).problems == []  # the next run finishes
        assert names_in(folder) == ["step_4", "step_5"]

    @pytest.mark.parametrize("name", [".step_1.trash-x", ".other_1.deleting-00000000", ".step_1.x"])
    def test_hidden_names_of_others_stay(self, folder: Path, name: str) -> None:
        (folder / name).mkdir()
        run(folder)

        assert name in names_in(folder)


class TestKills:
    """Each rename and each removal of a file is a step; the audit hook kills the process before it."""

    def test_a_kill_at_any_step_leaves_versions_whole_or_gone_and_the_next_run_finishes(
        self, tmp_path: Path
    ) -> None:
        for step in range(1, 100):
            folder = tmp_path / str(step) / "run-7"
            _write_a_chain(folder)
            killed = _killed_at(step, partial(run, folder))
            for version in folder.glob("step_*"):
                assert {"config.json", "model.safetensors"} <= {*names_in(version)}, f"step {step}"
            assert {"step_4", "step_5"} <= {*names_in(folder)}
            _assert_that_no_delta_is_alone(folder)
            run(folder)
            assert names_in(folder) == ["step_4", "step_5"], f"step {step}"
            if not killed:
                break
        # Of each of three versions: two renames, two files, and the directory; and of two deltas the index.
        assert step == 3 * 5 + 2 + 1

    @pytest.mark.parametrize("to", [".trash-", ".deleting-"])
    def test_a_delta_that_cannot_be_renamed_keeps_its_chain(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
    ) -> None:
        folder, rename = tmp_path / "run-7", os.rename
        _write_a_chain(folder)

        def renamed(old: str, new: str, **at: int) -> None:
            if new.startswith(f".step_2{to}"):
                raise PermissionError(new)
            rename(old, new, **at)

        monkeypatch.setattr(os, "rename", renamed)
        outcome = run(folder)

        assert [d.name for d in outcome.deleted] == ["step_3"]
        assert {"step_1", "step_4", "step_5"} <= {*names_in(folder)}
        assert len(outcome.problems) == 1

    def test_what_was_aside_when_a_collector_was_killed_comes_back_if_it_is_needed(
        self, folder: Path
    ) -> None:
        assert _killed_at(4, partial(run, folder))
        back = a_weight_version(folder, "5", rollbackTo="1", retention=RULE)
        run(folder, objects([back], a_fleet()))

        assert names_in(folder) == ["step_1", "step_4", "step_5"]


def _write_a_chain(folder: Path) -> None:
    """As the fixture, but versions 2 and 3 are deltas, each against the one before."""
    write_versions(folder, 1, 4, 5)
    for version in (2, 3):
        write_versions(folder, version, base=version - 1)
    date(folder)


def _assert_that_no_delta_is_alone(folder: Path) -> None:
    """Neither under its own name, nor aside, from where it may come back."""
    for pattern in (r"step_([123])", r"\.?step_([123])(\.trash-.*)?"):
        found = (re.fullmatch(pattern, name) for name in names_in(folder))
        there = sorted(int(each[1]) for each in found if each)
        assert there == [1, 2, 3][: len(there)], names_in(folder)


def _killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do work in a process that is killed before its step of this number. Returns: whether it was."""
    child = os.fork()
    if child == 0:
        left = step

        def hook(event: str, _: object) -> None:
            nonlocal left
            if event in {"os.rename", "os.remove", "os.rmdir"}:
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


class TestTwoCollectors:
    def test_one_that_works_while_the_other_waits_does_no_harm(self, folder: Path) -> None:
        outcome = run(folder, while_it_waits=lambda: run(folder))

        assert names_in(folder) == ["step_4", "step_5"]
        assert (outcome.deleted, outcome.problems) == ([], [])

    def test_one_that_brings_back_what_the_other_put_aside_wins(self, folder: Path) -> None:
        weights = [a_weight_version(folder, "5", retention=RULE)]
        fleets = a_fleet(f"{folder}/step_1")
        run(folder, while_it_waits=lambda: run(folder, objects(weights, fleets)))

        assert names_in(folder) == ["step_1", "step_4", "step_5"]
