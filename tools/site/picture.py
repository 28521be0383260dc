"""Take a picture of an HTML file, as high as the page.

python tools/site/picture.py report.html report.png --chromium /usr/bin/chromium
"""

from __future__ import annotations

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH = 1000


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--chromium", type=Path, required=True)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        # Root has no sandbox in containers. The page is our own.
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(color_scheme="light", viewport={"width": WIDTH, "height": 300})
        page.goto(options.page.resolve().as_uri(), wait_until="load")
        page.screenshot(path=options.picture, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
