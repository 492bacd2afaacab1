"""What tests do on the page: open it, type, slide, and read what is drawn."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from adapler.report.heatmap import Picture

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, Route

DONE = "median of 7"
expect.set_options(timeout=30_000)  # a busy machine is not a broken page


@contextmanager
def opened(
    browser: Browser, url: str, path: str = "/ui", *, allowed: str = "^$", waits: bool = True, options: Mapping[str, Any]
) -> Iterator[Page]:
    """The page of a server. In the end, whatever it complained of must be `allowed`, and all it asked for the server's own."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(30_000)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = context.new_page()

    def dismissed(dialog: Dialog) -> None:
        said.append(f"dialog {dialog.message}")
        dialog.dismiss()

    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", dismissed)
    page.goto(url + path)
    if waits:
        expect(page.locator(".waterfall").first).to_be_visible()
    yield page
    context.close()
    assert [line for line in said if not re.search(allowed, line)] == []
    assert [where for where in asked if not where.startswith((url + "/", "data:", "blob:"))] == []


def settled(page: Page, pane: int = 0) -> None:
    """The result is there and timed, and nothing newer was asked for."""
    expect(page.locator(".pane").nth(pane)).to_have_attribute("aria-busy", "false")
    expect(page.locator(".beside .how").nth(pane)).to_contain_text(DONE)


def typed(page: Page, text: str, pane: int = 0) -> None:
    page.locator(".text").nth(pane).fill(text)
    page.locator(".text").nth(pane).press("Control+Enter")


def rows(page: Page, pane: int = 0) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Of every layer its head and its pieces: text, fate and shade."""
    script = """rows => rows.map(row => [row.querySelector("small").textContent,
        [...row.querySelectorAll("[data-place]")].map(piece => [piece.textContent, ...piece.className.split(" ")])])"""
    found = page.locator(".waterfall").nth(pane).locator("tr").evaluate_all(script)
    return [(head, [(text, fate, shade[0] if shade else "") for text, fate, *shade in pieces]) for head, pieces in found]


def check_drawn(page: Page, picture: Picture, pane: int = 0) -> None:
    """The waterfall is the picture that reports draw."""
    expected = []
    for layer in picture.layers:
        pieces = [
            (piece.text, piece.fate, "" if piece.level is None else f"c{piece.level}")
            for word in layer.words
            for piece in word.pieces
        ]
        expected.append((f"{layer.entered}/{picture.tokens}", pieces))
    running_on = page.locator(".waterfall").nth(pane).get_attribute("class") == "waterfall running"
    if running_on:  # words of which nothing is left are dots there
        expected = [(head, [piece for piece in pieces if piece[1] != "gone"]) for head, pieces in expected]
        found = [(head, [piece for piece in pieces if piece[1] != "gone"]) for head, pieces in rows(page, pane)]
    else:
        found = rows(page, pane)
    assert found == expected


def slide(page: Page, *keys: str, pane: int = 0) -> None:
    for key in keys:
        page.locator("input[type=range]").nth(pane).press(key)


def fail(status: int, route: Route) -> None:
    """Answer as a server in trouble would."""
    body = '{"error": "no such point", "error_type": "Validation"}'
    route.fulfill(status=status, body=body, content_type="application/json")


def saved(page: Page, kind: str, folder: Path) -> Path:
    """The file that the button gives."""
    with page.expect_download() as download:
        page.locator(f".save-{kind}").click()
    file: Path = folder / download.value.suggested_filename
    download.value.save_as(file)
    return file
