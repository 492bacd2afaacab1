"""A server asked from Python: with adapler's own client, and as a program written for text-embeddings-inference asks.

adapler serve MODEL
python examples/serve_client.py [ADDRESS]
"""

from __future__ import annotations

import json
import sys
import urllib.request
from typing import Any

from adapler import Client

ADDRESS = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8080"


def with_adapler(texts: list[str]) -> list[str]:
    """Labels; the client keeps its connection, splits lists, and comes back where the server is overloaded."""
    with Client(ADDRESS) as client:
        return [answer.label for answer in client.predict(texts)]


def as_for_text_embeddings_inference(texts: list[str]) -> list[str]:
    """The same by the plain wire: a batch is a list of lists, the first label is the best."""
    body = json.dumps({"inputs": [[text] for text in texts], "truncate": True}).encode()
    request = urllib.request.Request(f"{ADDRESS}/predict", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        rows: list[list[dict[str, Any]]] = json.load(response)
    return [row[0]["label"] for row in rows]


if __name__ == "__main__":
    some = ["a warm and funny film", "a cold mess"]
    sys.stdout.write(f"{with_adapler(some)}\n{as_for_text_embeddings_inference(some)}\n")
