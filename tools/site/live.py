"""Look at the dashboard in chromium: its pictures at two widths, and what the browser objects to.

python tools/site/live.py ADDRESS FOLDER "text of a later look" --chromium /usr/bin/chromium

It ends with 1 if a text does not come, if the page asks another host, or if its script is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from playwright.sync_api import Error, sync_playwright

WIDTHS = (1400, 390)
_TABLE = 'document.querySelector(".workers .wide")'


def main() -> None:
    """Open the page, wait for an event, and take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("address")
    parser.add_argument("folder", type=Path)
    parser.add_argument("text")
    parser.add_argument("--chromium", type=Path, required=True)
    options = parser.parse_args()
    found: list[str] = []
    with sync_playwright() as playwright:
        # Root has no sandbox in containers. The page is our own.
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(color_scheme="light", viewport={"width": WIDTHS[0], "height": 900})
        page.on("console", lambda message: found.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: found.append(f"error: {error}"))
        page.on("request", lambda request: _judge(request.url, options.address, found))
        page.goto(options.address, wait_until="load")
        try:
            page.get_by_text(options.text).first.wait_for(timeout=30_000)
        except Error as error:
            found.append(f"{options.text!r} does not come: {error}")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=options.folder / f"dashboard-{width}.png", full_page=True)
            wide = page.evaluate("document.documentElement.scrollWidth")
            if wide > width:
                found.append(f"at {width} px the page is {wide} px wide")
        page.evaluate(f"{_TABLE}.scrollLeft = 40, {_TABLE}.dataset.old = true")
        page.locator(".workers .wide:not([data-old])").wait_for()
        if (left := page.evaluate(f"{_TABLE}.scrollLeft")) != 40:
            found.append(f"a table that was scrolled by 40 px is at {left} px after an event")
        browser.close()
    print("\n".join(found))
    sys.exit(1 if found else 0)


def _judge(url: str, address: str, found: list[str]) -> None:
    if not url.startswith(address):
        found.append(f"the page asks {url}")


if __name__ == "__main__":
    main()
