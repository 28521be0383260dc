"""The callback in two processes of one training, with a real process group of torch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.environments import worker_python
from tests.support.pages import ROOT

PROGRAM = Path(__file__).parent / "trainers" / "two_processes.py"
ERRORS = {
    "files": ("FileExistsError", "another directory"),
    "refused": ("Refused", "version 10 is refused, CheckpointNotFinite"),
    "at the end": ("Refused", "version 10 is refused, CheckpointNotFinite"),
    "forbidden": ("PermissionError", "not yours"),
    "save": ("OSError", "No space left on device"),
    "odd": ("RlfleetError", "OddError: odd"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Any]]]:
    """Of each process, its outcomes by case."""
    folder = tmp_path_factory.mktemp("processes")
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{ROOT / 'client'}:{ROOT}",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    started = [
        subprocess.Popen(
            [worker_python(), str(PROGRAM), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    found = []
    for process in started:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        found.append({case["case"]: case for case in map(json.loads, output.splitlines())})
    return found


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_of_one_process_is_raised_in_both_before_the_next_collective(
    outcomes: list[dict[str, dict[str, Any]]], case: str
) -> None:
    kind, words = ERRORS[case]
    first, second = (by_case[case] for by_case in outcomes)

    assert (second["error"], second["reason"]) == (kind, first["reason"])
    assert words in second["words"]
    if case == "odd":  # it cannot be sent
        assert (first["error"], first["words"]) == ("OddError", "odd")
    else:
        assert (first["error"], first["words"]) == (kind, second["words"])


def test_one_process_publishes_what_both_have_written(
    outcomes: list[dict[str, dict[str, Any]]],
) -> None:
    first, second = outcomes

    assert "error" not in first["obeyed"] | second["obeyed"]
    assert first["obeyed"]["published"] == ["20", "30"]
    assert first["refused"]["published"] == ["10"]
    assert first["save"]["published"] == []  # a part is missing
    assert [each["published"] for each in second.values()] == [[]] * len(second)
