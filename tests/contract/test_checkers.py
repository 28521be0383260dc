"""The programs that `make lint` runs on workflows and alerts find what is wrong."""

from __future__ import annotations

from pathlib import Path

from checkers import programs

WORKFLOW = """\
name: Greet
on: {push: {branches: [main]}}
permissions: {}
jobs:
  greet:
    runs-on: ubuntu-24.04
    permissions: {}
    steps:
      - run: echo "$NAME"
        env:
          NAME: ${{ github.event.head_commit.message }}
"""
CASE = """\
rule_files: [rules.yaml]
tests:
  - interval: 1m
    input_series: [{series: up, values: '0x5'}]
    promql_expr_test:
      - {expr: 'count(ALERTS{alertstate="firing"})', eval_time: 2m, exp_samples: [{value: NUMBER}]}
"""
RULES = "groups: [{name: g, rules: [{alert: Down, expr: up == 0}]}]\n"


def workflow(folder: Path, old: str = "", new: str = "") -> list[Path]:
    assert old in WORKFLOW
    file = folder / "greet.yml"
    file.write_text(WORKFLOW.replace(old, new, 1) if old else WORKFLOW)
    return [file]


def test_an_unknown_key_of_a_workflow_is_found(tmp_path: Path) -> None:
    done = programs.actionlint(workflow(tmp_path, "env:", "envs:"))

    assert done.returncode == 1
    assert 'unexpected key "envs"' in done.stdout


def test_a_text_of_others_that_a_shell_would_run_is_found(tmp_path: Path) -> None:
    done = programs.zizmor(workflow(tmp_path, '"$NAME"', "${{ github.event.head_commit.message }}"))

    assert done.returncode != 0
    assert "template-injection" in done.stdout


def test_an_alert_that_does_not_fire_as_expected_is_found(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    for number, code in (("1", 0), ("2", 1)):
        case = tmp_path / f"{number}.yaml"
        case.write_text(CASE.replace("NUMBER", number))
        assert programs.promtool("test", "rules", case).returncode == code
