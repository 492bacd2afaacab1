"""The page at /ui: one document made of the small files in `page/`, and the headers that keep it shut."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files

from adapler.points import FULL
from adapler.report.heatmap import LEVELS, level_names
from adapler.report.page import PICTURE_STYLE, template

_PARTS = files("adapler.serve") / "page"
SCRIPTS = ("dom", "api", "texts", "layers", "waterfall", "trail", "dial", "answer", "save", "pane", "race", "link", "main")
"""In this order, as they are read: what begins at once stands last."""
_STYLE, _SCRIPT = "/* style */", "/* script */"


@cache
def document() -> tuple[str, dict[str, str]]:
    """The page, which fetches nothing but the server's own routes, and its headers."""
    style, script = _style(), _script()
    page = _part("index.html").replace(_STYLE, style).replace(_SCRIPT, script)
    return page, _headers(style, script)


def _style() -> str:
    """Pictures look as in every report."""
    pictures = [template("report", name).render(**PICTURE_STYLE) for name in ("story.css.j2", "picture.css.j2")]
    return "\n".join([*pictures, _part("page.css")])


def _script() -> str:
    """All in one scope of its own; what the reports say of shades comes from where they have it."""
    look = json.dumps({"levels": LEVELS, "names": level_names(), "full": FULL})
    parts = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\nconst LOOK = {look};\n{parts}\n}})();\n'


def _headers(style: str, script: str) -> dict[str, str]:
    """Nothing runs but this script, nothing is asked but this server, and text can never become markup."""
    policy = {
        "default-src": "'none'",
        "script-src": _hash(script),
        "style-src": _hash(style),
        "img-src": "data: blob:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    return {
        "content-security-policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "permissions-policy": "camera=(), geolocation=(), microphone=()",
        "cache-control": "no-cache",
    }


def _hash(inline: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (_PARTS / name).read_text(encoding="utf-8")
