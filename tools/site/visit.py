"""Visit a built site as a reader would, and print what is wrong with it.

    python tools/site/visit.py build/site SCREENSHOTS --chromium /usr/bin/chromium

It follows the quickstart's links from the front page in the light and the dark theme, uses the search
and writes PNGs of what it saw. Exit code 1: there was a console error or a request to another host. Or
a page or a table of fields is wider than the window. Or a search misses the page that readers look for.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from playwright.sync_api import (
    ConsoleMessage,
    Page,
    Request,
    Response,
    Route,
    TimeoutError,  # noqa: A004 - the name of the library
    ViewportSize,
    sync_playwright,
)

FRONT = "index.html"
QUICKSTART = "tutorial/first-fleet.html"
PICTURES = {"front": FRONT, "how-it-works": "explanation/how-it-works.html"}
WHOLE = tuple(
    f"reference/{name}.html" for name in ("inferencefleet", "weightversion", "values", "metrics")
)
"""Pages whose tables fit the window, also that of a phone."""

WIDEST = "reliability.html"
"""Its tables fit a window of 800 pixels, but not a phone."""

NARROW = ("index.html", *WHOLE, "examples/deltas.html", WIDEST)
"""Pages that are visited on a phone, too."""

FOUND = {
    "latch": "",
    "s3": "",
    "stuck rollout": "reference/troubleshooting.html",
    "HF_TOKEN": "explanation/faq.html",
    "RDMA": "",
    "gang": "explanation/faq.html",
    "multi-node": "explanation/faq.html",
    "root user": "explanation/faq.html",
    "argocd": "examples/argocd.html",
}
"""Words of a search → the page that comes first; any page if it is empty."""

TABLET = ViewportSize(width=800, height=1000)
PHONE = ViewportSize(width=390, height=844)

THEMES = {"light": "default", "dark": "slate"}


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files and logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
        """Log nothing."""
        del format, args


class Visit:
    """One reader with one theme."""

    def __init__(self, page: Page, root: str, theme: str) -> None:
        self.page, self.root, self.theme = page, root, theme
        self.problems: list[str] = []
        page.on("console", self._check_console)
        page.on("pageerror", lambda error: self.report(f"script: {error}"))
        page.on("response", self._check_response)
        page.route("**/*", self.only_this_host)

    def _check_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.report(f"console: {message.text}")

    def _check_response(self, response: Response) -> None:
        if response.status >= 400:
            self.report(f"{response.status} for {response.url}")

    def report(self, problem: str) -> None:
        """Note what is wrong with the present page."""
        self.problems.append(f"{self.theme}: {self.page.url.removeprefix(self.root)}: {problem}")

    def only_this_host(self, route: Route, request: Request) -> None:
        """Stop and report a request to another host."""
        if urlsplit(request.url).netloc == urlsplit(self.root).netloc or request.url.startswith(
            ("data:", "blob:")
        ):
            route.continue_()
        else:
            self.report(f"asks another host: {request.url}")
            route.abort()

    def open(self, path: str) -> None:
        """Open a page of the site, and check its theme and width."""
        self.page.goto(urljoin(self.root, path), wait_until="load")
        shown = self.page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        if shown != THEMES[self.theme]:
            self.report(f"the theme is {shown}")
        too_wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        if too_wide > 0:
            self.report(f"{too_wide} pixels wider than the window")
        cut = self.page.evaluate(
            "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
            ".filter(table => table.scrollWidth > table.clientWidth).length"
        )
        on_a_phone = self.page.viewport_size == PHONE
        if cut and (path in WHOLE or not on_a_phone):
            self.report(f"{cut} tables are wider than the page")

    def follow_quickstart(self) -> None:
        """Go from the front page to the quickstart, and to each page that it links to."""
        self.open(FRONT)
        self.page.click(f".md-content a[href='{QUICKSTART}']")
        self.page.wait_for_url(f"**/{QUICKSTART}")
        links = self.page.eval_on_selector_all(
            ".md-content a[href]:not(.headerlink)", "found => found.map(a => a.href)"
        )
        pages = sorted({link.partition("#")[0] for link in links if link.startswith(self.root)})
        if not pages:
            self.report("the quickstart has no links")
        for link in pages:
            self.open(link)

    def search(self) -> None:
        """Search for what readers look for."""
        results = self.page.locator(".md-search-result__item > a")
        for words, wanted in FOUND.items():
            self.open(FRONT)
            self.page.fill(".md-search__input", words)
            try:
                # A result marks the words that it was found by.
                first = self.page.locator(
                    ".md-search-result__item > a mark", has_text=re.split("[ -]", words)[0]
                ).first
                first.wait_for(timeout=60_000)
            except TimeoutError:
                self.report(f"a search for {words!r} finds nothing")
                continue
            found = (results.first.get_attribute("href") or "").removeprefix(self.root)
            if wanted and found.partition("?")[0].partition("#")[0] != wanted:
                self.report(f"a search for {words!r} finds {found} first")

    def in_narrow_windows(self) -> None:
        """Open the widest page on a tablet, and others on a phone."""
        self.page.set_viewport_size(TABLET)
        self.open(WIDEST)
        self.page.set_viewport_size(PHONE)
        for path in NARROW:
            self.open(path)


def main() -> int:
    """Visit the site in both themes. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("screenshots", type=Path)
    parser.add_argument("--chromium", type=Path, required=True)
    options = parser.parse_args()
    serve = functools.partial(QuietHandler, directory=str(options.site))
    server = ThreadingHTTPServer(("127.0.0.1", 0), serve)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}/"
    problems: list[str] = []
    with sync_playwright() as playwright:
        # Root has no sandbox in containers. The pages are our own.
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        for theme in THEMES:
            context = browser.new_context(
                color_scheme=theme, viewport={"width": 1400, "height": 800}
            )
            visit = Visit(context.new_page(), root, theme)
            visit.follow_quickstart()
            visit.search()
            for path in WHOLE:
                visit.open(path)
            for name, path in PICTURES.items():
                visit.open(path)
                visit.page.screenshot(path=options.screenshots / f"{name}-{theme}.png")
            visit.in_narrow_windows()
            problems += visit.problems
            context.close()
        browser.close()
    server.shutdown()
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
