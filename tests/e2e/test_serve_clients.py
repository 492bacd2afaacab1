"""A server asked by programs that were not written for these tests: one for text-embeddings-inference, and the examples."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import InferenceClient

from adapler.classifier import Classifier
from tests.serving import Served, serving
from tests.tiny import tiny_classifier

EXAMPLES = Path(__file__).parents[2] / "examples"
SECONDS = 120  # a process starts; the machine may be busy


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return tiny_classifier(eta=0.5)


@pytest.fixture(scope="module")
def served(classifier: Classifier) -> Iterator[Served]:
    with serving(classifier) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def output_of(*command: str, **environment: str) -> list[str]:
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **environment}, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.parametrize("path", ["", "/predict"])
def test_huggingface_hubs_client_gets_the_best_label(served: Served, classifier: Classifier, path: str) -> None:
    client = InferenceClient(served.url + path, timeout=SECONDS)
    for text in ("a warm and funny film", "a cold mess"):
        # It takes the first of what it is given: of this wire, unlike of the hub's own, the first label.
        best: Any = client.text_classification(text, top_k=1)
        expected = classifier(text)
        assert best.label == expected.label
        assert best.score == pytest.approx(expected.score, abs=1e-5)  # float32, other batches


def test_it_brings_its_key(classifier: Classifier) -> None:
    with serving(classifier, key="k") as server:
        best: Any = InferenceClient(server.url, token="k", timeout=SECONDS).text_classification("a film")
        assert best.label == classifier("a film").label
        with pytest.raises(Exception, match="401"):
            InferenceClient(server.url, token="wrong", timeout=SECONDS).text_classification("a film")


def test_the_example_in_python_runs(served: Served, classifier: Classifier) -> None:
    lines = output_of(sys.executable, str(EXAMPLES / "serve_client.py"), served.url)
    labels = [answer.label for answer in classifier(["a warm and funny film", "a cold mess"])]
    assert lines == [str(labels), str(labels)]  # by either client


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_the_example_with_curl_runs(classifier: Classifier) -> None:
    with serving(classifier, key="k") as server:
        lines = output_of("sh", str(EXAMPLES / "serve_curl.sh"), server.url, API_KEY="k")
    best = classifier("a warm and funny film").label
    assert lines[0].startswith('[{"score": ') and f'"label": "{best}"' in lines[0].split("}")[0]
    assert lines[2].startswith("[[") and lines[2].count("[") == 3
    assert '"error": "item 1: ' in lines[3]
    assert '"rationale"' in lines[4]
    told = {line.split(":")[0].lower() for line in lines[5:]}
    assert told >= {"x-adapler-tokens-kept", "x-adapler-flops-ratio", "x-truncated"}
