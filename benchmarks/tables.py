"""The tables of README.md and docs, written from benchmarks/results so that no published number is typed by hand.

A page marks a place with `<!-- table:NAME -->` and `<!-- end -->`; between them goes what NAME's function below makes of
results/NAME.json. `--check` writes nothing and fails where a page differs from what it would write.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
MISSING = "*not measured yet*"
_BLOCK = re.compile(r"(?P<open><!-- table:(?P<name>[\w-]+) -->\n).*?(?P<close><!-- end -->)", re.DOTALL)

Records = list[dict[str, Any]]


def packed(records: Records) -> str:
    """Speed of the packed engine beside transformers, all at full length."""
    by_sorted = next((record["value"] for record in records if "sorted" in record["variant"]), None)
    lines = [
        "| full length, nothing removed | batch | texts/s | spread | vs padded | vs sorted |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for record in records:
        against = "" if by_sorted is None else f"{record['value'] / by_sorted:.2f}x"
        cells = (
            record["variant"],
            record["batch"],
            f"{record['value']:.0f}",
            f"{record['spread']:.0f}",
            f"{record['wall_speedup']:.2f}x",
            against,
        )
        lines.append(f"| {' | '.join(cells)} |")
    first = records[0]
    sample = f"{first['n']} texts of {first['config']['tokens_mean']} tokens on average ({first['task']})"
    return "\n".join([*lines, "", f"{first['backbone']}, {sample}; {_conditions(first)}"])


TABLES: dict[str, Callable[[Records], str]] = {"packed": packed}


def pages() -> Iterator[Path]:
    """Every page that may hold a table."""
    yield ROOT / "README.md"
    yield ROOT / "CHANGELOG.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def rendered(name: str) -> str:
    """The table of that name as it has to stand on a page."""
    if name not in TABLES:
        sys.exit(f"no table {name!r}; known: {', '.join(TABLES)}. Add its function to benchmarks/tables.py")
    file = RESULTS / f"{name}.json"
    return TABLES[name](json.loads(file.read_text(encoding="utf-8"))) if file.exists() else MISSING


def filled(page: str) -> str:
    """A page with all of its tables made anew."""
    return _BLOCK.sub(lambda block: f"{block['open']}{rendered(block['name'])}\n{block['close']}", page)


def _conditions(record: dict[str, Any]) -> str:
    """What a number was measured under, in one line."""
    versions = record.get("versions", {})
    software = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
    commit = str(record.get("commit", "no commit"))
    shown = commit[:10] + ("+changed" if commit.endswith("+changed") else "")
    runs = f"median of {record['repeats']} interleaved repeats, {record['threads']} threads"
    return f"{runs}; {record['machine']}; {software}; {record['date']}, {shown}."


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page is out of date")
    check = parser.parse_args().check
    stale = []
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if before != after:
            stale.append(str(page.relative_to(ROOT)))
            if not check:
                page.write_text(after, encoding="utf-8")
    if check and stale:
        sys.exit(f"tables out of date in {', '.join(stale)}; run: make tables")
    if stale:
        sys.stdout.write(f"written: {', '.join(stale)}\n")


if __name__ == "__main__":
    main()
