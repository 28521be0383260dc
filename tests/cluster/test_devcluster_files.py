"""Images, distribution packages and configuration: what is written, byte for byte."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from tests.support.programs import written_by

from devcluster import DevclusterError, ImageConfig, distribution, settings
from devcluster.errors import BuildError
from devcluster.images import write_archive
from devcluster.paths import cache_folder, run_folder


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "package/__pycache__").mkdir(parents=True)
    (folder / "package/module.py").write_text("x = 1\n")
    (folder / "package/__pycache__/module.pyc").touch()
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o700)
    (folder / "link").symlink_to("run.sh")
    return folder


def _layer(archive: Path) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("layer.tar")
        assert layer is not None
        with tarfile.open(fileobj=io.BytesIO(layer.read())) as inner:
            return {member.name: member for member in inner.getmembers()}


def test_an_image_holds_the_base_and_the_given_files(tmp_path: Path, tree: Path) -> None:
    write_archive(tmp_path / "a.tar", "x/y:dev", {"/opt/app": tree}, ImageConfig())

    members = _layer(tmp_path / "a.tar")
    assert {"etc/passwd", "etc/group", "bin", "lib", "tmp", "opt/app/package/module.py"} <= set(
        members
    )
    assert not [name for name in members if "__pycache__" in name]
    assert members["bin"].linkname == "usr/bin"
    assert members["tmp"].mode == 0o1777
    # Whatever the files are here, in the image root owns them and all users can read them.
    assert members["opt/app/run.sh"].mode == 0o755
    assert members["opt/app/package/module.py"].mode == 0o644
    assert members["opt/app/link"].linkname == "run.sh"
    assert {(member.uid, member.gid) for member in members.values()} == {(0, 0)}


def test_equal_input_gives_equal_bytes(tmp_path: Path, tree: Path) -> None:
    write_archive(tmp_path / "a.tar", "x/y:dev", {"/app": tree}, ImageConfig())
    os.utime(tree / "run.sh", (1, 1))
    write_archive(tmp_path / "b.tar", "x/y:dev", {"/app": tree}, ImageConfig())

    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert (tmp_path / "a.tar").stat().st_size < 64 * 1024


def test_an_image_without_a_tag_or_with_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DevclusterError, match="has no tag"):
        write_archive(tmp_path / "a.tar", "registry:5000/x", {}, ImageConfig())
    with pytest.raises(DevclusterError, match="does not exist"):
        write_archive(tmp_path / "a.tar", "x:dev", {"/a": tmp_path / "nothing"}, ImageConfig())


_APT_GET = """#!/bin/sh
test "$1" = -c || exit 9
echo "$3" >> "$NOTES"
cp "$2" "$NOTES.conf"
archives=$(sed -n 's/^Dir::Cache "\\(.*\\)";/\\1/p' "$2")archives
case "$*" in
*nothing*) echo "E: Unable to locate package nothing" >&2; exit 100 ;;
*install*) touch "$archives/tool_1.deb" "$archives/library_1.deb" ;;
esac
"""
_DPKG = """#!/bin/sh
case "$2" in
*tool*)
  mkdir -p "$3/usr/sbin"
  printf '#!/bin/sh\\necho "$LD_LIBRARY_PATH" "$@"\\n' > "$3/usr/sbin/tool"
  chmod 755 "$3/usr/sbin/tool" ;;
*library*) mkdir -p "$3/usr/lib/any"; touch "$3/usr/lib/any/lib.so.1" ;;
esac
"""


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fakes of the distribution's clients, which record their arguments."""
    (tmp_path / "bin").mkdir()
    for name, text in (("apt-get", _APT_GET), ("dpkg", _DPKG)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    return tmp_path / "notes"


def test_a_package_is_unpacked_not_installed_and_runs_with_its_own_libraries(
    tmp_path: Path, notes: Path
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    distribution.fetch("tool", target, program="usr/sbin/tool")
    moved = target.rename(tmp_path / "moved")

    assert written_by([moved / "bin/tool", "a b"]) == f"{moved}/usr/lib/any a b\n"
    assert notes.read_text() == "update\ninstall\n"
    settings_text = Path(f"{notes}.conf").read_text()
    assert f'Dir::State::lists "{target}' in settings_text
    assert "#clear DPkg::Post-Invoke;" in settings_text
    assert not (moved / "apt").exists()


def test_a_package_that_is_not_available_is_named_with_the_remedy(
    tmp_path: Path, notes: Path
) -> None:
    with pytest.raises(BuildError, match="Unable to locate package nothing") as caught:
        distribution.fetch("nothing", tmp_path / "target")

    assert caught.value.remedy == "install it: apt-get install nothing"


def test_containers_get_the_machines_folders_read_only_and_no_limit_on_files() -> None:
    default = json.dumps({"process": {"rlimits": [{"type": "RLIMIT_NOFILE"}]}, "mounts": []})

    spec = json.loads(settings.base_spec(default, (("/here", "/there"),)))

    assert "rlimits" not in spec["process"]
    assert spec["mounts"] == [
        {"source": "/here", "destination": "/there", "type": "bind", "options": ["rbind", "ro"]}
    ]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        pytest.param({"RLFLEET_CACHE": "/c", "XDG_CACHE_HOME": "/x"}, "/c", id="ours wins"),
        pytest.param({"XDG_CACHE_HOME": "/x"}, "/x/rlfleet", id="then the user's cache folder"),
        pytest.param({"HOME": "/h"}, "/h/.cache/rlfleet", id="then the one in the home"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: str
) -> None:
    for name in ("RLFLEET_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert cache_folder() == Path(folder)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a" * 33, "a b"])
def test_ids_that_are_unfit_for_file_names_are_refused(name: str) -> None:
    with pytest.raises(DevclusterError, match="cannot be the id"):
        run_folder(name)
