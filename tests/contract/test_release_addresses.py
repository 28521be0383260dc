"""The files that a release publishes have absolute links: the pages of both distributions, and the chart's README."""

from __future__ import annotations

import email
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.programs import written_by

from release_addresses import PAGES, Release, UnknownPlaceError, absolute_links

ROOT = Path(__file__).parents[2]
FORGE = "https://github.com/owner/rlfleet"
REGISTRY = "mirror.example/team"
HELD = ("charts", "client", "crds", "docs", "examples", "operator", "worker")
TARGET = re.compile(r'\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)"')
OF_THE_RELEASE = re.compile(rf"{re.escape(FORGE)}/(?:blob|raw)/v0\.1\.0/([^#]+)(?:#.*)?")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, changed as by the release."""
    folder = tmp_path_factory.mktemp("release")
    for name in HELD:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "pyproject.toml"):
        shutil.copy(file, folder)
    (folder / "tools").mkdir()
    script = shutil.copy(ROOT / "tools/release_addresses.py", folder / "tools")
    words = ["--repository", FORGE, "--tag", "v0.1.0", "--registry", REGISTRY]
    # Isolated: the job of the chart has no library but the standard one.
    subprocess.run([sys.executable, "-I", "-S", script, *words], check=True)
    return folder


def links(text: str) -> Iterator[str]:
    without_blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for in_markdown, in_html in TARGET.findall(without_blocks):
        yield in_markdown or in_html


def relative(text: str) -> list[str]:
    return [link for link in links(text) if not re.match(r"https://|#", link)]


@pytest.mark.parametrize("project", [".", "client"])
def test_the_page_of_a_distribution_has_absolute_links(
    published: Path, tmp_path: Path, project: str
) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    written_by(command, cwd=published / project)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        fields = email.message_from_string(archive.read(metadata).decode())

    assert fields.get_content_type() == "text/plain"
    assert relative((ROOT / project / "README.md").read_text()) != []
    assert relative(str(fields.get_payload())) == []
    assert f"Repository, {FORGE}" in fields.get_all("Project-URL", [])


@pytest.mark.parametrize("page", PAGES)
def test_each_link_into_the_repository_leads_to_a_file_of_it(published: Path, page: str) -> None:
    text = (published / page).read_text()
    into = [found[1] for link in links(text) if (found := OF_THE_RELEASE.fullmatch(link))]

    assert relative(text) == []
    assert into
    assert [path for path in into if not (ROOT / path).exists()] == []


def test_the_chart_names_its_home_its_icon_and_its_owner(published: Path) -> None:
    chart = yaml.safe_load((published / "charts/rlfleet/Chart.yaml").read_text())
    in_the_tree = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())

    assert chart == in_the_tree | {
        "home": FORGE,
        "sources": [FORGE],
        "icon": f"{FORGE}/raw/v0.1.0/docs/images/icon.svg",
        "maintainers": [{"name": "owner", "url": "https://github.com/owner"}],
    }
    assert set(chart) - set(in_the_tree) == {"home", "sources", "icon", "maintainers"}


def test_the_clone_has_the_address_of_the_repository(published: Path) -> None:
    commands = re.findall(
        r"^git clone (\S+)", (published / "CONTRIBUTING.md").read_text(), re.MULTILINE
    )

    assert commands == [FORGE]


@pytest.mark.parametrize("page", ["README.md", "client/README.md"])
def test_the_client_is_installed_by_its_name_from_the_release_on(
    published: Path, page: str
) -> None:
    names = re.compile(r"pip install ['\"]?([./\w]*)")
    before, after = ((folder / page).read_text() for folder in (ROOT, published))

    assert {"./client"} == set(names.findall(before))
    assert {"rlfleet"} == set(names.findall(after))


def test_no_text_installs_our_distributions_by_a_name_that_is_not_registered() -> None:
    by_name = re.compile(r"(?:pip|pipx|uv) (?:install|add) [^\n`]*?(?<![\w./-])rlfleet(?![\w./])")
    texts = [
        file
        for folder in ("docs", "examples", "client", "operator", "worker", "charts")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in {".md", ".py", ".sh", ".yaml", ".txt"}
        # Decisions may say what a name is for.
        and "decisions" not in file.parts
    ]

    assert by_name.search("pip install 'rlfleet[cli]'")
    assert not by_name.search("pip install ./client")
    assert [file for file in texts if by_name.search(file.read_text())] == []


def test_the_icon_is_a_small_picture_without_parts_from_elsewhere() -> None:
    icon = (ROOT / "docs/images/icon.svg").read_text()

    assert len(icon) < 4096
    assert icon.startswith('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "href" not in icon


def test_the_chart_has_the_registry_of_the_release(published: Path) -> None:
    values = yaml.safe_load((published / "charts/rlfleet/values.yaml").read_text())
    readme = (published / "charts/rlfleet/README.md").read_text()

    assert values["image"]["registry"] == REGISTRY
    assert set(re.findall(r"oci://\S+", readme)) == {f"oci://{REGISTRY}/rlfleet/charts/rlfleet"}


def test_both_distributions_stay_valid_projects(published: Path) -> None:
    """The server's one needs the client of its release: its packages import what both share."""
    for project, needs in (("pyproject.toml", ["rlfleet==0.1.0"]), ("client/pyproject.toml", [])):
        before = tomllib.loads((ROOT / project).read_text())
        after = tomllib.loads((published / project).read_text())
        before["project"]["dependencies"][:0] = needs

        assert after["project"].pop("urls")["Repository"] == FORGE
        assert after == before


def test_links_within_a_page_and_in_code_stay() -> None:
    release = Release(FORGE, "v1")
    text = "[a](#a) [b](https://b.example) [c](LICENSE)\n```python\nx[0](LICENSE)\n```\n"

    assert absolute_links(text, "README.md", release, ROOT) == text.replace(
        "[c](LICENSE)", f"[c]({FORGE}/blob/v1/LICENSE)"
    )


def test_a_link_to_nothing_is_refused() -> None:
    with pytest.raises(UnknownPlaceError, match=r"client/README\.md links to \.\./gone\.md"):
        absolute_links("[a](../gone.md)", "client/README.md", Release(FORGE, "v1"), ROOT)
