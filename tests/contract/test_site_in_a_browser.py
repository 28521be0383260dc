"""The built site and the dashboard in chromium: no page asks another host, and every theme and the search work.

Marked long, since it builds the site and starts a browser. `make test-site` runs it alone. With
RLFLEET_RECORD=1 the pictures of the docs are taken again.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from tests.support.cli import Recorded, run
from tests.unit.client.cli.test_live import EVENTS, METRICS, Watched

import envs
from rlfleet.cli import cluster
from rlfleet.cli.dashboard import _Reader
from rlfleet.cli.live_page import whole_page
from rlfleet.cli.loopback import Latest, Loopback

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="module")
def chromium() -> Path:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing (Debian: apt install chromium)")
    return CHROMIUM


@pytest.fixture(scope="module")
def site(chromium: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a site that was built now."""
    folder = tmp_path_factory.mktemp("site")
    build = [envs.interpreter_of("docs"), "-m", "mkdocs", "build", "-q", "--strict"]
    subprocess.run(
        [*build, "-f", ROOT / "tools/site/mkdocs.yml", "-d", folder],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        check=True,
        timeout=300,
    )
    return folder


def visited(site: Path, screenshots: Path) -> subprocess.CompletedProcess[str]:
    visit = [envs.interpreter_of("browser"), ROOT / "tools/site/visit.py"]
    return subprocess.run(
        [*visit, site, screenshots, "--chromium", CHROMIUM],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_reader_gets_from_the_front_page_through_the_quickstart(
    site: Path, tmp_path: Path
) -> None:
    visit = visited(site, tmp_path)

    assert visit.returncode == 0, visit.stdout + visit.stderr
    assert {file.name for file in tmp_path.iterdir()} >= {"front-light.png", "front-dark.png"}


def test_a_page_that_asks_another_host_is_found(site: Path, tmp_path: Path) -> None:
    page = site / "index.html"
    content = page.read_text()
    page.write_text(content.replace("</head>", '<img src="http://192.0.2.1/x.png"></head>'))
    try:
        visit = visited(site, tmp_path)
    finally:
        page.write_text(content)

    assert visit.returncode == 1
    assert "192.0.2.1" in visit.stdout


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG, from its header."""
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])


def test_the_picture_of_a_report_is_that_of_the_docs(
    chromium: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Fonts differ between machines, so the height may, too."""
    _, page, _ = run(monkeypatch, Recorded("stalled"), "report")
    html, shown = tmp_path / "report.html", ROOT / "docs/images/report.png"
    html.write_text(page)
    picture = shown if os.environ.get("RLFLEET_RECORD") else tmp_path / "report.png"
    draw = [envs.interpreter_of("browser"), ROOT / "tools/site/picture.py", html, picture]
    subprocess.run([*draw, "--chromium", chromium], check=True, timeout=120)

    (width, height), (shown_width, shown_height) = size(picture), size(shown)
    assert width == shown_width
    assert abs(height - shown_height) < 0.1 * shown_height


def test_the_dashboard_is_live_and_fits_wide_and_narrow_windows(
    chromium: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = Watched("stalled")
    monkeypatch.setattr(cluster, "now", lambda: objects.moment)
    reader, latest = _Reader(objects), Latest()
    served = Loopback(0, latest, lambda text, nonce: whole_page("policy", text, nonce))
    latest.put(reader.content("policy"))
    look = [envs.interpreter_of("browser"), ROOT / "tools/site/live.py", served.url, tmp_path]
    with subprocess.Popen(
        [*look, "policy-7 joins", "--chromium", CHROMIUM], stdout=subprocess.PIPE, text=True
    ) as visit:
        joins = {"type": "Normal", "reason": "Joining", "message": "policy-7 joins"}
        objects.answers[f"GET {EVENTS}"] = {"items": [joins]}
        number = 0
        while visit.poll() is None:  # its own waits have limits
            number += 1
            objects.metrics = METRICS.replace("1000.0", f"{1000 + number * 90}")
            latest.put(reader.content("policy"))
            time.sleep(0.2)
        said = visit.stdout.read() if visit.stdout else ""
    served.close()

    assert visit.returncode == 0, said
    assert {file.name for file in tmp_path.iterdir()} == {"dashboard-1400.png", "dashboard-390.png"}
