"""The page as it is served: one document that fetches nothing, and headers that let nothing else run in it."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

import pytest

import adapler
from adapler.report.heatmap import DARK_SHADES, SHADES
from adapler.serve.ui import SCRIPTS, document

FOLDER = Path(adapler.__file__).parent / "serve" / "page"
MARKUP = re.compile(r"innerHTML|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function|setHTML|srcdoc")
"""Ways in which a text could become markup or a program."""
ELSEWHERE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*")


def inline(page: str, tag: str) -> str:
    (found,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    return str(found)


def check_policy(page: str, headers: dict[str, str]) -> None:
    """What stands inside is what the policy names, and nothing else may run."""
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for tag in ("script", "style"):
        digest = base64.b64encode(hashlib.sha256(inline(page, tag).encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{digest}'"
    assert (policy["default-src"], policy["connect-src"], policy["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert not [value for value in policy.values() if "unsafe" in value or "*" in value]


def test_only_its_own_script_and_style_may_run() -> None:
    page, headers = document()
    check_policy(page, headers)
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"\son\w+=|\sstyle=|javascript:", page.replace(inline(page, "script"), ""))


def test_a_changed_script_would_be_noticed() -> None:
    page, headers = document()
    with pytest.raises(AssertionError):
        check_policy(page.replace('"use strict";', '"use strict"; '), headers)


def test_nothing_is_fetched_from_elsewhere() -> None:
    page, _ = document()
    addresses = set(ELSEWHERE.findall(page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page)) == {"data:,", "#work", "docs"}


def test_no_text_can_become_markup() -> None:
    script = inline(document()[0], "script")
    assert MARKUP.findall(script) == []
    assert not re.search(r"</|<!--", re.sub(r"`[^`]*`", "", script)), "would end or hide the script"
    assert MARKUP.search("element.innerHTML = text")


def test_every_part_is_in_it_and_small() -> None:
    assert {file.stem for file in FOLDER.glob("*.js")} == set(SCRIPTS)
    page, _ = document()
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 300, file.name
        assert file.name == "index.html" or text.strip() in page


def test_its_shades_are_those_of_reports() -> None:
    style = inline(document()[0], "style")
    assert all(shade in style for shade in (*SHADES, *DARK_SHADES))
