"""Odd files: names that are not text, names of the greatest length, and endlessly nested JSON. A disk,
a broken writer or an attacker makes them. The worker reports them and continues.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import damage
from tests.support.tiny import write_tiny
from tests.support.worker_harness import WorkerHarness, refused

from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import EngineFailure, Refusal, shorten
from fleet_worker.process.manifest import manifest
from fleet_worker.protocol import ErrorDetail, Reason, WorkerState
from rlfleet_resources.weight_files import digest_of

NO_UTF8 = "model-\udcff.safetensors"
"""As Python shows a file name that holds the byte 0xFF."""
HALF_A_LETTER = "\ud83d"
BOTTOMLESS = 100_000


def _rename(checkpoint: Path) -> None:
    """The weights under a name that is not UTF-8, and truncated."""
    file = checkpoint / damage.WEIGHTS
    os.truncate(file, 50)
    file.rename(checkpoint / NO_UTF8)


def _index(checkpoint: Path) -> None:
    """An index that names a file by half a letter."""
    wanted = {"weight_map": {"embed.weight": f"{HALF_A_LETTER}.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(wanted))
    (checkpoint / damage.WEIGHTS).unlink()


def _config(checkpoint: Path) -> None:
    damage.edit_config(checkpoint, **{f"odd{HALF_A_LETTER}": 1})


def _tensor(checkpoint: Path) -> None:
    def add(tensors: damage.Tensors) -> None:
        tensors[HALF_A_LETTER] = ("BF16", [4], damage.bfloat16(1.0) * 4)

    damage.edit_tensors(checkpoint, add)


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (_rename, Reason.CHECKPOINT_TRUNCATED),
        (_index, Reason.SOURCE_NOT_FOUND),
        (_config, Reason.CHECKPOINT_MISMATCH),
        (_tensor, Reason.CHECKPOINT_MISMATCH),
    ],
)
async def test_a_refusal_that_names_a_file_with_an_invalid_name_can_be_sent(
    serving: WorkerHarness, edit: Callable[[Path], None], reason: Reason
) -> None:
    path = write_tiny(serving.root / "1")
    edit(path)
    refusal = await refused(serving.stage("1", path))

    assert refusal.reason is reason
    answer = ErrorDetail(reason=refusal.reason, message=refusal.message)
    assert ErrorDetail.model_validate_json(answer.model_dump_json()) == answer
    state = WorkerState.model_validate_json(serving.state.model_dump_json(by_alias=True))
    assert state.stage_failure is not None
    assert state.stage_failure.message == refusal.message


@given(st.text(st.characters(exclude_categories=()), max_size=2000))
def test_a_message_with_any_name_is_one_valid_line(text: str) -> None:
    for why in (Refusal(Reason.BAD_REQUEST, text), EngineFailure(text, touched=True)):
        assert why.message.encode().decode() == why.message
        assert len(why.message) <= 1000
        assert why.message == shorten(why.message), "it is one line"


def test_valid_text_is_unchanged() -> None:
    assert shorten("Gewichte für 模型 🙂") == "Gewichte für 模型 🙂"


@pytest.mark.parametrize("opening", ["[", '{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("file", ["config.json", "model.safetensors.index.json", damage.WEIGHTS])
async def test_endlessly_nested_json_is_malformed(
    serving: WorkerHarness, file: str, opening: str
) -> None:
    path = write_tiny(serving.root / "1")
    content = (opening * BOTTOMLESS).encode()
    if file == damage.WEIGHTS:
        content = struct.pack("<Q", len(content)) + content
    (path / file).write_bytes(content)
    assert (await refused(serving.stage("1", path))).reason is Reason.CHECKPOINT_MALFORMED
    assert serving.state.stage_failure is not None, "whoever asks later must hear of it, too"


@pytest.mark.parametrize("letter", ["a", "é", "漢"])
async def test_weights_with_the_longest_possible_file_name_are_held(
    serving: WorkerHarness, letter: str
) -> None:
    path = write_tiny(serving.root / "1")
    room = 255 - len(b".safetensors")
    name = letter * (room // len(letter.encode())) + ".safetensors"
    (path / damage.WEIGHTS).rename(path / name)
    await serving.stage("1", path)

    assert serving.state.staged is not None
    assert serving.state.staged.in_memory


def test_the_digest_uses_the_bytes_of_names_as_sha256sum_does(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = write_tiny(tmp_path / "1")
    (path / damage.WEIGHTS).rename(path / NO_UTF8)
    lines = b"".join(
        hashlib.sha256((path / name).read_bytes()).hexdigest().encode() + b"  " + raw + b"\n"
        for name, raw in (("config.json", b"config.json"), (NO_UTF8, b"model-\xff.safetensors"))
    )
    checkpoint = open_checkpoint(str(path), None)
    found = checkpoint.digest(lambda: None)
    checkpoint.close()
    assert manifest(str(path), only_digest=False) == 0
    sys.stdout.flush()

    assert found == "sha256:" + hashlib.sha256(lines).hexdigest()
    assert capfdbinary.readouterr().out == lines


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0/\n"), min_size=1, max_size=20)
HASHES = st.dictionaries(NAMES, st.binary(min_size=32, max_size=32).map(bytes.hex), max_size=6)


@given(HASHES, st.randoms())
def test_the_digest_does_not_depend_on_the_order_of_files(
    hashes: dict[str, str], order: object
) -> None:
    shuffled = list(hashes.items())
    order.shuffle(shuffled)

    assert digest_of(dict(shuffled)) == digest_of(hashes)


@given(HASHES, HASHES)
def test_two_sets_of_files_have_the_same_digest_only_if_they_are_equal(
    one: dict[str, str], other: dict[str, str]
) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)
