"""Requests nobody would send: cases made from the server's own OpenAPI description, bodies with bytes changed, and large ones
that hold very many small things.

Whatever comes, a server answers with what its description says, soon, and without an error of its own.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

MODEL_ROUTES = ("/predict", "/explain")
SLOW = 20.0
"""Seconds from which an answer counts as none."""
_CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
_PIECES = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b'"', b"\\", b"\\ud800", b"{", b"[", b"]", b"}", b",", b":", b"null", b"1e999", b"-0",
    b"NaN", b"\\u0000", b"[CLS]", b"\xf0\x9f\x91\xa9", b"\n", b" " * 40, b"true", b'"inputs"', b'"truncate"',
    b"99999999999999999999",
)  # fmt: skip
HEAVY = (
    (b'{"inputs":[', b"0,", b"[]]}"),  # every item is bad
    (b'{"partial":true,"inputs":[', b"0,", b"[]]}"),
    (b'{"partial":true,"inputs":[', b'["","",0],', b"[]]}"),
    (b'{"inputs":[', b'["a"],', b'["a"]]}'),  # every item is good
    (b'{"inputs":[', b'"",', b"[]]}"),
    (b'{"inputs":[', b"[],", b"[]]}"),
    (b'{"inputs":[', b"[" * 150 + b"]" * 150 + b",", b"[]]}"),
    (b'{"inputs":[', b'{"":0},', b"[]]}"),
    (b'{"partial":true,"inputs":[["a"],[', b"[0],", b"[]]]}"),  # all of it in one item
    (b'{"inputs":"a","unknown":[', b"[],", b"[]]}"),
    (b'{"inputs":"a","unknown":{', b'"":[],', b'"":[]}}'),
    (b'{"inputs":[', b"9" * 4000 + b",", b"[]]}"),
    (b'{"inputs":"', rb"\"", b""),  # a text without end
)
"""Heads, what is repeated, and ends of bodies: cheap to send, dear to make objects of."""
PROMPT = 1.0
"""Seconds in which /health answers, whatever else the server is given."""


def described_cases(url: str, count: int, first_seed: int = 0) -> Counter[str]:
    """`count` cases out of the description: three quarters on the routes that run the model, most of these well-formed.

    Raises on the first answer that is a server error, or not as described. Gives how many cases there were of each kind, and
    how many answers of each status.
    """
    told = requests.get(f"{url}/openapi.json", timeout=SLOW).json()
    schema = schemathesis.openapi.from_dict(told)
    found: Any = schema.get_all_operations()
    operations = [result.ok() for result in found]
    model = [each for each in operations if each.path in MODEL_ROUTES]
    rest = [each for each in operations if each.path not in MODEL_ROUTES]
    seen: Counter[str] = Counter()
    for operation in model:
        _run(url, operation, GenerationMode.POSITIVE, _share(count, 0.6, len(model)), seen, first_seed, "well-formed")
        _run(url, operation, GenerationMode.NEGATIVE, _share(count, 0.15, len(model)), seen, first_seed, "malformed")
    for operation in rest:
        _run(url, operation, GenerationMode.POSITIVE, _share(count, 0.25, len(rest)), seen, first_seed, "other routes")
    return seen


def mutated_bodies(url: str, count: int, first_seed: int = 0) -> Counter[str]:
    """`count` good bodies with bytes changed, dropped, doubled or put in, over one connection where the server lets us.

    Raises on the first server error and on what takes too long; gives how many answers there were of each status.
    """
    draw = random.Random(first_seed)
    parts = urlsplit(url)
    seen: Counter[str] = Counter()
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SLOW)) as connection:
        for number in range(count):
            path = MODEL_ROUTES[number % 2]
            body = mutated(json.dumps(_good(draw)).encode(), draw)
            begin = time.monotonic()
            connection.request("POST", path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            content = json.loads(response.read())
            if response.status >= 500 or time.monotonic() - begin > SLOW:
                raise AssertionError(f"{response.status} after {time.monotonic() - begin:.1f} s to {path} with {body!r}")
            if response.status != 200 and set(content) != {"error", "error_type"}:
                raise AssertionError(f"{response.status} with {content!r} to {body!r}")
            seen[str(response.status)] += 1
    return seen


def heavy_bodies(url: str, size: int = 1_980_000) -> tuple[Counter[str], float]:
    """Every one of `HEAVY`, of about `size` bytes, to the routes that run the model; /health is asked all the while.

    Raises on the first server error, on what takes too long, and where /health is not prompt; gives how many answers there
    were of each status, and the slowest of /health in seconds.
    """
    seen: Counter[str] = Counter()
    slowest = 0.0
    with ThreadPoolExecutor(1) as pool, requests.Session() as session:
        for path, (head, repeated, end) in product(MODEL_ROUTES, HEAVY):
            body = head + repeated * (size // len(repeated)) + end
            sent = pool.submit(requests.post, url + path, body, headers={"content-type": "application/json"}, timeout=SLOW)
            while not sent.done():
                begin = time.monotonic()
                session.get(f"{url}/health", timeout=SLOW).raise_for_status()
                slowest = max(slowest, time.monotonic() - begin)
            response = sent.result()
            if response.status_code >= 500 or set(response.json()) != {"error", "error_type"}:
                raise AssertionError(f"{response.status_code} with {response.text[:200]!r} to {head + repeated[:40]!r}...")
            seen[str(response.status_code)] += 1
    if slowest > PROMPT:
        raise AssertionError(f"/health took {slowest:.2f} s")
    return seen, slowest


def mutated(body: bytes, draw: random.Random) -> bytes:
    """A body with one to six changes."""
    changed = bytearray(body)
    changes: tuple[Callable[[int, int], None], ...] = (
        lambda at, end: changed.__setitem__(slice(at, at + 1), bytes([draw.randrange(256)])),
        lambda at, end: changed.__setitem__(slice(at, end), b""),
        lambda at, end: changed.__setitem__(slice(at, at), changed[at:end] * draw.choice((1, 2, 50))),
        lambda at, end: changed.__setitem__(slice(at, at), draw.choice(_PIECES)),
        lambda at, end: changed.__setitem__(slice(at, at + 1), bytes([changed[at] ^ (1 << draw.randrange(8))])),
    )
    for _ in range(draw.randint(1, 6)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        draw.choice(changes)(at, min(len(changed), at + draw.choice((1, 3, 20))))
    return bytes(changed)


def _good(draw: random.Random) -> dict[str, Any]:
    words = ("good", "film", "naïve", "数据", "👩\u200d👧", "[SEP]", "\x00", "unbelievable", "", " ")
    text = " ".join(draw.choice(words) for _ in range(draw.randint(1, 30))) + "."
    inputs: Any = draw.choice([text, [text], [text, text], [[text], [text, "b"]], [[text]] * draw.randint(1, 12)])
    wishes = {"truncate": draw.choice([True, False, None]), "raw_scores": draw.random() < 0.5, "partial": draw.random() < 0.3}
    return {"inputs": inputs} | {name: wish for name, wish in wishes.items() if draw.random() < 0.5}


def _share(count: int, part: float, among: int) -> int:
    return math.ceil(count * part / among)


def _run(url: str, operation: Any, mode: GenerationMode, count: int, seen: Counter[str], first_seed: int, kind: str) -> None:
    """Hypothesis makes fewer cases where it finds no new ones; rounds with other seeds make up for it."""
    session = requests.Session()
    made = 0
    for turn in range(1000):
        before = made

        @seed(first_seed + turn)
        @settings(
            max_examples=count - made,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Any) -> None:
            nonlocal made
            response = case.call(base_url=url, session=session, timeout=SLOW)
            case.validate_response(response, checks=_CHECKS)
            made += 1
            seen[kind] += 1
            seen[f"status {response.status_code}"] += 1

        try:
            check()
        except Exception as error:
            if type(error).__name__ == "Unsatisfiable":  # there is no malformed case of this route
                return
            raise
        if made >= count or made == before:
            return
