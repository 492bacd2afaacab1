"""The page at /docs: the routes as the OpenAPI description has them. Fetches nothing from anywhere."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import Environment, PackageLoader

_TEMPLATES = Environment(loader=PackageLoader("adapler.serve"), autoescape=True, trim_blocks=True, lstrip_blocks=True)


def page(described: dict[str, Any]) -> str:
    """Of an OpenAPI description."""
    routes = [
        {
            "method": method.upper(),
            "path": path,
            "summary": told.get("summary", ""),
            "asked": _shown(_schema(told.get("requestBody", {}))),
            "answers": {code: answer.get("description", "") for code, answer in told.get("responses", {}).items()},
            "answer": _shown(_schema(told.get("responses", {}).get("200", {}))),
        }
        for path, methods in described["paths"].items()
        for method, told in methods.items()
    ]
    schemas = {name: _shown(schema) for name, schema in described.get("components", {}).get("schemas", {}).items()}
    return _TEMPLATES.get_template("reference.html.j2").render(info=described["info"], routes=routes, schemas=schemas)


def _schema(told: dict[str, Any]) -> Any:
    return told.get("content", {}).get("application/json", {}).get("schema")


def _shown(schema: Any) -> str:
    return "" if not schema else json.dumps(schema, indent=1, ensure_ascii=False)
