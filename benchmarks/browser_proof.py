"""The page at /ui proved in a real browser; writes benchmarks/results/prove-browser.json, and pictures of it into docs/figures.

    python -m benchmarks.browser_proof                    the checks of tests/e2e/test_browser.py, all of which must hold
    python -m benchmarks.browser_proof runs/ag_news       pictures of the page on this model too, which should have a dial

A check that fails or is skipped ends it, and nothing is written.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any
from xml.etree import ElementTree

import typer
from PIL import Image

from adapler.records import Record, commit, write_records
from benchmarks.browser import browsing, missing
from benchmarks.serve_load import running, served

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
CHECKS = "tests/e2e/test_browser.py"
PATIENCE = 60_000
"""Milliseconds: other work may keep the machine busy."""
COLOURS = 256
WIDE: Mapping[str, Any] = {"viewport": {"width": 1180, "height": 860}}
PHONE: Mapping[str, Any] = {"viewport": {"width": 360, "height": 900}, "is_mobile": True, "device_scale_factor": 1.5}


def main(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="A model folder for pictures of the page.")] = None,
    figures: Annotated[Path, typer.Option(help="Folder of the pictures.")] = FIGURES,
) -> None:
    """Check, take pictures, write."""
    lacking = missing()
    if lacking is not None:
        raise typer.BadParameter(lacking)
    source = commit()  # before there are pictures, which change the tree
    held = checks()
    with browsing() as browser:
        version = browser.version
        taken = [] if model is None else pictures(browser, model, figures)
    told = {"browser": f"Chromium {version}", "pictures": taken}
    record = Record(
        kind="prove",
        variant="the page in a browser",
        n=held,
        value=100.0,
        unit="% of checks hold",
        config=told,
        commit=source,
    )
    write_records(ROOT / "benchmarks" / "results" / "prove-browser.json", [record])
    typer.echo(f"{held} checks hold in {told['browser']}; {', '.join(taken) or 'no pictures: no model given'}")


def checks() -> int:
    """How many checks there are; all held."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        subprocess.run([sys.executable, "-m", "pytest", CHECKS, f"--junitxml={report}"], cwd=ROOT, check=True)
        (suite,) = ElementTree.parse(report).getroot().iter("testsuite")
    count, skipped = int(suite.attrib["tests"]), int(suite.attrib["skipped"])
    if skipped or not count:
        raise RuntimeError(f"{skipped} of {count} checks were skipped")
    return count


def pictures(browser: Browser, model: str, folder: Path) -> list[str]:
    """The page with an answer and a race in the light, with a long text in the dark, and on a phone; their files' names."""
    folder.mkdir(parents=True, exist_ok=True)
    with running(served(model)) as server:
        with shown(browser, server.url, WIDE) as page:
            page.get_by_label("Example").select_option("News, business")
            settled(page)
            page.get_by_role("button", name="Time every point").click()
            said(page, ".pane .said", "Every point was timed")
            page.click("#race-go")
            said(page, "#race-said", "answers are the same")
            keep(page.screenshot(full_page=True), folder / "ui-light.png")
        with shown(browser, server.url, {**WIDE, "color_scheme": "dark"}) as page:
            page.get_by_label("Example").select_option("News, world")
            page.get_by_role("button", name="Side by side").click()
            settled(page, 0)
            settled(page, 1)
            keep(page.locator("#panes").screenshot(), folder / "ui-dark.png")
        with shown(browser, server.url, PHONE) as page:
            page.get_by_label("Example").select_option("News, science")
            settled(page)
            page.locator(".dial").scroll_into_view_if_needed()
            page.evaluate("scrollTo(0, document.querySelector('.dial').offsetTop - 8)")
            keep(page.screenshot(), folder / "ui-phone.png")
    return ["ui-light.png", "ui-dark.png", "ui-phone.png"]


def keep(picture: bytes, path: Path) -> None:
    """Write it with few colours: a page has no more, and a repository keeps every picture for ever."""
    Image.open(BytesIO(picture)).convert("RGB").quantize(COLOURS).save(path, optimize=True)


@contextmanager
def shown(browser: Browser, url: str, options: Mapping[str, Any]) -> Iterator[Page]:
    """The page, opened, at rest."""
    context = browser.new_context(**{**options, "reduced_motion": "reduce"})
    context.set_default_timeout(PATIENCE)
    try:
        page = context.new_page()
        page.goto(f"{url}/ui")
        settled(page)
        yield page
    finally:
        context.close()


def settled(page: Page, pane: int = 0) -> None:
    """Wait until the text is answered and timed."""
    page.wait_for_timeout(300)  # a text that was just picked is on its way
    page.locator(".beside .how").nth(pane).get_by_text("median of 7").wait_for()


def said(page: Page, where: str, words: str) -> None:
    """Wait until these words stand there."""
    page.locator(where).filter(has_text=words).wait_for()


if __name__ == "__main__":
    typer.run(main)
