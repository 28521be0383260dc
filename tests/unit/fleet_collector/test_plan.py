"""Which versions of a folder go, and which reason keeps the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleet_collector.plan import Claim, Directory, Needs, Obstacle, Plan, Template, deletions
from rlfleet_resources.retention import Retention
from rlfleet_resources.source import WeightSource

STEPS = Template("/weights/run-7", "step_", "")


def claim(
    applied: str = "10", template: Template = STEPS, who: str = "rl/policy", **rule: Any
) -> Claim:
    return Claim(who, template, applied, Retention(**rule) if rule else None)


def steps(*numbers: int, **fields: Any) -> list[Directory]:
    return [Directory(name=f"step_{n}", place=f"step_{n}", **fields) for n in numbers]


def gone(plan: Plan) -> list[str]:
    return [v.directory.name for v in plan.verdicts if v.goes]


def why(plan: Plan, name: str) -> str:
    (found,) = (v.why for v in plan.verdicts if v.directory.name == name)
    return found


def test_the_newest_versions_up_to_the_applied_one_stay_and_so_do_newer_ones() -> None:
    plan = deletions([claim(keep=3)], Needs(), steps(1, 2, 7, 8, 9, 10, 11, 12))

    assert gone(plan) == ["step_1", "step_2", "step_7"]
    assert "not older than 10" in why(plan, "step_11")


def test_multiples_of_keep_every_stay() -> None:
    plan = deletions([claim(keep=1, keep_every=4)], Needs(), steps(3, 4, 6, 8, 10))

    assert gone(plan) == ["step_3", "step_6"]


@pytest.mark.parametrize("path", ["/weights/run-7/step_3", "/mnt/elsewhere/step_3", "/w/step_3/hf"])
def test_a_version_in_use_stays_wherever_its_user_mounts_the_volume(path: str) -> None:
    plan = deletions([claim(keep=1)], Needs({path: "fleet rl/other"}), steps(3, 4, 10))

    assert gone(plan) == ["step_4"]
    assert why(plan, "step_3") == "in use: fleet rl/other"


def test_a_version_that_a_reader_leases_stays() -> None:
    leased = steps(3, lease=".step_3.keep-eval")

    assert gone(deletions([claim(keep=1)], Needs(), [*leased, *steps(4, 10)])) == ["step_4"]


def test_what_this_process_cannot_delete_stays_with_the_reason() -> None:
    plan = deletions([claim(keep=1)], Needs(), [*steps(3, obstacle="it is a link"), *steps(10)])

    assert why(plan, "step_3") == "it is a link"


def test_what_was_written_after_the_applied_version_stays() -> None:
    """As the first versions of a run that counts from 0 again, before they are published."""
    plan = deletions(
        [claim(keep=1)],
        Needs(),
        [*steps(1, modified_ns=30), *steps(2, 10, modified_ns=20, written_ns=20)],
    )

    assert gone(plan) == ["step_2"]


def test_what_is_not_older_than_the_desired_version_stays() -> None:
    """As the versions that a run writes ahead that counts from 0 again. Times of files may be those of a wrong clock."""
    back = replace(claim(keep=1), desired="2")

    assert gone(deletions([back], Needs(), steps(1, 2, 3, 10))) == ["step_1"]


def test_a_version_stays_until_a_former_one_of_its_name_is_gone() -> None:
    """Else either could come back under the name."""
    former = Directory(name="step_3", place=".step_3.trash-00000000")
    plan = deletions([claim(keep=1)], Needs(), [*steps(3, 10), former])

    assert [v.directory.place for v in plan.verdicts if v.goes] == [former.place]


class TestDeltas:
    def test_the_chain_of_a_delta_that_stays_stays_down_to_its_anchor(self) -> None:
        chain = [
            *steps(6, 7),
            *steps(8, version="8", base="7"),
            *steps(9, version="9", base="000008"),
            *steps(10, version="10", base="9"),
        ]

        assert gone(deletions([claim(keep=1)], Needs(), chain)) == ["step_6"]

    def test_the_chain_of_a_version_that_is_not_published_yet_stays(self) -> None:
        found = [*steps(4, 5, 10), *steps(11, version="11", base="5")]

        assert gone(deletions([claim(keep=1)], Needs(), found)) == ["step_4"]

    def test_a_base_that_only_its_index_names_stays(self) -> None:
        found = [*steps(3, version="77", base="0"), *steps(10, version="10", base="77")]

        assert gone(deletions([claim(keep=1)], Needs(), found)) == []

    def test_an_old_delta_keeps_nothing_and_goes_before_its_base(self) -> None:
        """Also if names are in the other order, two deltas have one base, and the index names the version."""
        found = [
            *steps(2),
            *steps(3, version="00003", base="9"),
            *steps(4, version="4", base="step_9"),
            *steps(5, version="77", base="4"),
            *steps(6, version="6", base="77"),
            *steps(9, version="9", base="2"),
            *steps(10),
        ]
        going = gone(deletions([claim(keep=1)], Needs(), found))

        assert sorted(going) == [f"step_{n}" for n in (2, 3, 4, 5, 6, 9)]
        for delta, base in ((3, 9), (4, 9), (5, 4), (6, 5), (9, 2)):
            assert going.index(f"step_{delta}") < going.index(f"step_{base}")

    def test_a_chain_of_10000_links_goes_from_its_end(self) -> None:
        links = [step for n in range(10_000) for step in steps(n, version=str(n), base=str(n - 1))]
        plan = deletions([claim("10000", keep=1)], Needs(), [*links, *steps(10_000)])

        assert gone(plan) == [f"step_{n}" for n in range(9_999, -1, -1)]

    @pytest.mark.parametrize("bases", [(3, 3), (4, 3)])
    def test_deltas_that_are_bases_of_each_other_go(self, bases: tuple[int, int]) -> None:
        cycle = [*steps(3, base=str(bases[0])), *steps(4, base=str(bases[1])), *steps(10)]

        assert len(gone(deletions([claim(keep=1)], Needs(), cycle))) == 2

    def test_nothing_goes_while_the_base_of_a_version_that_stays_is_not_known(self) -> None:
        plan = deletions(
            [claim(keep=1)], Needs(), [*steps(3), *steps(10, base_unknown="its index is cut")]
        )

        assert gone(plan) == []
        assert "its index is cut" in plan.obstacles[0].why


class TestObstacles:
    def test_nothing_goes_while_a_status_does_not_tell_all(self) -> None:
        needs = Needs(obstacles=(Obstacle("late", passes=True),))
        plan = deletions([claim(keep=1)], needs, steps(3, 10))

        assert (gone(plan), plan.obstacles, why(plan, "step_3")) == ([], needs.obstacles, "late")

    @pytest.mark.parametrize(("applied", "passes"), [("11", False), ("", True), ("latest", False)])
    def test_nothing_goes_unless_the_applied_version_is_in_the_folder(
        self,
        applied: str,
        passes: bool,
    ) -> None:
        plan = deletions([claim(applied, keep=1)], Needs(), steps(3, 10))

        assert gone(plan) == []
        assert [o.passes for o in plan.obstacles] == [passes]


class TestSeveralWeightVersions:
    def test_a_version_goes_only_if_it_is_older_than_what_each_of_them_has_applied(self) -> None:
        slow = claim("4", who="rl/slow")
        plan = deletions([claim(keep=1), slow], Needs(), steps(2, 3, 4, 5, 10))

        assert gone(plan) == ["step_2", "step_3"]

    def test_a_version_goes_only_if_each_rule_lets_it_go(self) -> None:
        careful = claim("10", who="rl/eval", keep=2)
        plan = deletions([claim(keep=1), careful], Needs(), steps(8, 9, 10))

        assert gone(plan) == ["step_8"]

    def test_a_directory_of_a_template_without_a_rule_stays(self) -> None:
        math = claim("2", Template("/weights/run-7", "math_", ""), "rl/math")
        adapters = [Directory(name=f"math_{n}", place=f"math_{n}") for n in (1, 2)]

        assert gone(deletions([claim(keep=1), math], Needs(), [*adapters, *steps(10)])) == []


class TestTemplates:
    @pytest.mark.parametrize(
        "path",
        [
            "/weights/step_43",
            "/{version}",
            "/weights/{version}/hf",
            "/weights/{version}/step_{version}",
            "/weights/{version}_{version}",
        ],
    )
    def test_versions_that_are_not_next_to_each_other_have_no_template(self, path: str) -> None:
        with pytest.raises(ValueError, match="version"):
            Template.of(WeightSource(path=path))

    @pytest.mark.parametrize(
        "name", ["step_", "step", "xstep_1", "optimizer", ".step_1.trash-00000000", "step_-1"]
    )
    def test_what_the_template_does_not_match_is_not_even_looked_at(self, name: str) -> None:
        plan = deletions([claim(keep=1)], Needs(), [Directory(name=name, place=name), *steps(10)])

        assert [v.directory.name for v in plan.verdicts] == ["step_10"]

    @pytest.mark.parametrize("name", ["models", "run-6", "lost.found", "step_latest"])
    def test_a_directory_without_a_number_of_a_version_stays(self, name: str) -> None:
        bare = Template.of(WeightSource(path="/weights/{version}"))
        found = [Directory(name=n, place=n) for n in (name, "3", "step_4", "10")]

        assert gone(deletions([claim("10", bare, keep=1)], Needs(), found)) == ["3", "step_4"]

    def test_zeros_before_a_number_do_not_count(self) -> None:
        padded = Template.of(WeightSource(path="/weights/weight_v{version}"))
        found = [Directory(name=n, place=n) for n in ("weight_v000009", "weight_v000010")]

        assert gone(deletions([claim("000010", padded, keep=1)], Needs(), found)) == [
            "weight_v000009"
        ]
