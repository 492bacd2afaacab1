"""The server's answers: the wire of text-embeddings-inference, every error in its form, and what `Classifier` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from adapler.classifier import Classifier
from adapler.export.write import export
from adapler.serve.limits import Limits
from adapler.serve.reading import EMPTY
from adapler.serve.service import Service
from adapler.serve.ui import document
from tests.contract.exports import checkpoint_of
from tests.serving import JSON, Served, made_up_dial, serving, slowed
from tests.tiny import tiny_bert, tiny_classifier, tiny_texts, tiny_tokenizer

TEXTS = [*tiny_texts(60, seed=5), "unbelievably — naïve 数据", "the movie " * 400]
PAIRS = list(zip(tiny_texts(8, seed=1), tiny_texts(8, seed=2), strict=True))
LONG = "good film " * 600


DIAL = made_up_dial(("full", 0.0, 0.0, 1.0), ("half", 0.5, 0.2, 1.5), ("double", 2.0, 2.0, 3.0))
POINTS = ("full", "half", "double", "trained", None)


def another() -> Classifier:
    """The classifier once more, with nothing in common but its weights."""
    made = tiny_classifier(eta=0.5)
    made.dial = DIAL
    return made


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    return another()


@pytest.fixture(scope="module")
def served(classifier: Classifier) -> Iterator[Served]:
    with serving(classifier, Limits(max_client_batch_size=8, payload_limit=200_000)) as server:
        yield server


def check_row(row: list[dict[str, Any]], expected: dict[str, float]) -> None:
    assert [set(each) for each in row] == [{"score", "label"}] * len(expected)
    assert {each["label"]: each["score"] for each in row} == pytest.approx(expected, abs=1e-5)  # float32, other batches
    assert [each["score"] for each in row] == sorted((each["score"] for each in row), reverse=True)


@pytest.mark.parametrize("path", ["/predict", "/", "/invocations"])
def test_a_text_gets_all_labels_best_first(served: Served, classifier: Classifier, path: str) -> None:
    for inputs in ("a good film", ["a good film"]):
        reply = served.predict({"inputs": inputs}, path)
        assert reply.status == 200
        check_row(reply.content, classifier("a good film").scores)


def test_two_strings_are_a_pair_and_a_batch_is_a_list_of_lists(served: Served, classifier: Classifier) -> None:
    pair = served.predict({"inputs": list(PAIRS[0])}).content
    check_row(pair, classifier(PAIRS[0]).scores)
    batch = served.predict({"inputs": [["a good film"], list(PAIRS[0])]}).content
    check_row(batch[0], classifier("a good film").scores)
    check_row(batch[1], classifier(PAIRS[0]).scores)


def test_raw_scores_are_logits(served: Served, classifier: Classifier) -> None:
    row = served.predict({"inputs": "a good film", "raw_scores": True}).content
    logits = classifier("a good film").logits
    assert {each["label"]: each["score"] for each in row} == pytest.approx(logits, abs=1e-4)
    assert sum(logits.values()) != pytest.approx(1.0)


def test_headers_tell_times_tokens_and_what_was_saved(served: Served, classifier: Classifier) -> None:
    told = served.predict({"inputs": [[TEXTS[0]], [TEXTS[1]]]}).headers
    expected = classifier(TEXTS[:2])
    for name in ("total", "tokenization", "queue", "inference", "compute"):
        assert int(told[f"x-{name}-time"]) >= 0
    assert told["x-compute-type"] == "cpu"
    assert int(told["x-compute-characters"]) == len(TEXTS[0]) + len(TEXTS[1])
    assert int(told["x-compute-tokens"]) == int(told["x-adapler-tokens-in"]) == sum(len(p.tokens) for p in expected)
    assert int(told["x-adapler-tokens-kept"]) == sum(p.lengths[-1] for p in expected)
    ratio = sum(p.flops for p in expected) / sum(p.flops_full for p in expected)
    assert float(told["x-adapler-flops-ratio"]) == pytest.approx(ratio, abs=1e-4)
    assert told["x-truncated"] == "0"


def test_truncation_is_told_and_may_be_refused_or_turned_round(served: Served, classifier: Classifier) -> None:
    cut = served.predict({"inputs": LONG + "bad end"})
    assert cut.headers["x-truncated"] == "1"
    check_row(cut.content, classifier(LONG).scores)
    refused = served.predict({"inputs": LONG, "truncate": False})
    given = classifier.encoder.count(LONG)
    assert refused.status == 422
    said = f"Input validation error: `inputs` must have less than 512 tokens. Given: {given}"
    assert refused.content == {"error": said, "error_type": "Validation"}
    for direction in ("Left", "left"):
        left = served.predict({"inputs": LONG + "bad end", "truncation_direction": direction})
        parts = classifier.encoder.cutting("left").parts([LONG + "bad end"])
        check_row(left.content, classifier.answers(parts, [classifier.operating])[0].scores)
        assert left.content != cut.content


ERRORS: dict[str, tuple[bytes, int, str]] = {
    "empty text": (b'{"inputs": ""}', 400, "Empty"),
    "empty list": (b'{"inputs": []}', 400, "Empty"),
    "empty pair": (b'{"inputs": ["", ""]}', 400, "Empty"),
    "three strings": (b'{"inputs": ["a", "b", "c"]}', 422, "Validation"),
    "a number": (b'{"inputs": 3}', 422, "Validation"),
    "a list of numbers": (b'{"inputs": [3]}', 422, "Validation"),
    "null": (b'{"inputs": null}', 422, "Validation"),
    "nothing": (b"{}", 422, "Validation"),
    "a list": (b"[]", 422, "Validation"),
    "not JSON": (b"inputs=a", 400, "Validation"),
    "no body": (b"", 400, "Validation"),
    "not UTF-8": (b'{"inputs": "\xff"}', 400, "Validation"),
    "too deep": (b'{"inputs": ' + b"[" * 10_000, 400, "Validation"),
    "too many lists": (b'{"inputs": ' + b"[" * 100_000, 422, "Validation"),
    "too large a batch": (b'{"inputs": [' + b'["a"],' * 8192 + b'["a"]]}', 422, "Validation"),
    "a wrong flag": (b'{"inputs": "a", "truncate": "yes"}', 422, "Validation"),
    "a wrong direction": (b'{"inputs": "a", "truncation_direction": "Up"}', 422, "Validation"),
    "an unknown point": (b'{"inputs": "a", "point": "warp"}', 422, "Validation"),
    "a loss no point has": (b'{"inputs": "a", "max_loss": -5}', 422, "Validation"),
    "both wishes": (b'{"inputs": "a", "point": "half", "max_loss": 1}', 422, "Validation"),
    "both wishes as trained": (b'{"inputs": "a", "point": "trained", "max_loss": -99}', 422, "Validation"),
    "an infinite loss": (b'{"inputs": "a", "max_loss": Infinity}', 422, "Validation"),
    "a bad item": (b'{"inputs": [["a"], ["b", "c", "d"]]}', 422, "Validation"),
    "an empty item": (b'{"inputs": [["a"], [""]]}', 422, "Empty"),
    "a mixed batch": (b'{"inputs": [["a"], "b"]}', 422, "Validation"),
}


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("path", ["/predict", "/explain"])
def test_what_cannot_be_answered_is_told_in_one_form(served: Served, name: str, path: str) -> None:
    body, status, kind = ERRORS[name]
    reply = served.ask("POST", path, body)
    assert (reply.status, reply.content["error_type"]) == (status, kind)
    assert set(reply.content) == {"error", "error_type"}
    if status == 422 and "item" in name:
        assert reply.content["error"].startswith("item 1: ")
    if kind == "Empty" and status == 400:
        assert reply.content["error"] == EMPTY


@pytest.mark.parametrize(
    ("method", "path", "headers", "body", "status"),
    [
        ("GET", "/nothing", JSON, None, 404),
        ("GET", "/predict", JSON, None, 405),
        ("DELETE", "/health", JSON, None, 405),
        ("POST", "/predict", {"content-type": "text/plain"}, b'{"inputs": "a"}', 415),
        ("POST", "/predict", {}, b'{"inputs": "a"}', 415),
        ("POST", "/predict", JSON, b'{"inputs": "' + b"a" * 200_000 + b'"}', 413),
        ("POST", "/predict", JSON, b'{"inputs": "' + b"a" * 1_200_000 + b'"}', 413),
        ("POST", "/ui", JSON, b"{}", 405),
    ],
)
def test_so_is_what_is_wrong_with_a_request_itself(
    served: Served, method: str, path: str, headers: dict[str, str], body: bytes | None, status: int
) -> None:
    reply = served.ask(method, path, body, headers)
    assert reply.status == status
    assert set(reply.content) == {"error", "error_type"}


def test_a_body_that_is_far_too_large_is_refused_unread(served: Served) -> None:
    with served.connect() as raw:
        raw.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n{")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 413 ") and b"connection: close" in answer.lower()


def test_what_is_not_http_is_told_so_too(served: Served) -> None:
    with served.connect() as raw:
        raw.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        answer = b"".join(iter(lambda: raw.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error_type"] == "Validation"


def test_a_head_without_end_is_refused(served: Served) -> None:
    with served.connect() as raw:
        raw.sendall(b"POST /predict HTTP/1.1\r\nhost: a\r\n")
        answer = b""
        for number in range(64):
            try:
                raw.sendall(b"x-%d: %s\r\n" % (number, b"a" * 4000))
            except ConnectionError:  # it has hung up by now
                break
        with suppress(ConnectionError):
            answer = raw.recv(4096)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")
    assert number > 10, "a head of usual size is read"


def test_requests_may_follow_one_another_without_waiting(served: Served) -> None:
    """Large bodies too: what comes behind one on the same connection is the next request's head."""
    body = json.dumps({"inputs": [["a good film"]] * 2, "padding": "x" * 150_000}).encode()
    one = b"POST /predict HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    with served.connect() as raw:
        sender = Thread(target=raw.sendall, args=((one + body) * 4,))
        sender.start()
        answer = b""
        while answer.count(b"HTTP/1.1 200 OK") < 4 or not answer.endswith(b"]]"):
            got = raw.recv(65536)
            assert got, answer[-300:]
            answer += got
        sender.join()


def test_a_partial_batch_has_errors_in_their_places(served: Served, classifier: Classifier) -> None:
    items = [["a good film"], [""], ["a", "b", "c"], 7, [LONG], ["bad"]]
    reply = served.predict({"inputs": items, "partial": True, "truncate": False})
    assert reply.status == 200
    check_row(reply.content[0], classifier("a good film").scores)
    check_row(reply.content[5], classifier("bad").scores)
    kinds = [row["error_type"] for row in reply.content[1:5]]
    assert kinds == ["Empty", "Validation", "Validation", "Validation"]
    assert all(row["error"].startswith(f"item {index}: ") for index, row in enumerate(reply.content[1:5], start=1))


def test_a_partial_batch_may_have_errors_alone(served: Served) -> None:
    reply = served.predict({"inputs": [[], *range(300)], "partial": True})
    assert reply.status == 200
    assert [row["error"].split(":")[0] for row in reply.content] == [f"item {index}" for index in range(301)]


def test_larger_batches_are_split_or_refused(served: Served, classifier: Classifier) -> None:
    texts = TEXTS[:50]
    reply = served.predict({"inputs": [[text] for text in texts]})
    for row, expected in zip(reply.content, classifier(texts), strict=True):
        check_row(row, expected.scores)
    bad = served.predict({"inputs": [*([text] for text in texts[:30]), [LONG], ["a"]], "truncate": False})
    assert bad.status == 422
    assert bad.content["error"].startswith("item 30: ")
    with serving(classifier, Limits(split=False)) as strict:
        refused = strict.predict({"inputs": [["a"]] * 33})
    assert refused.status == 422
    assert refused.content == {"error": "batch size 33 > maximum allowed batch size 32", "error_type": "Validation"}


def check_mixed(server: Served, classifier: Classifier, texts: list[str]) -> None:
    """Requests of many sizes at different points, all at once, are each answered as `Classifier` answers them."""
    requests = [(texts[first : first + 1 + first % 4], POINTS[first % len(POINTS)]) for first in range(len(texts) - 4)]
    expected = [classifier(some, point=name) for some, name in requests]
    bodies = [{"inputs": [[text] for text in some], **({"point": name} if name else {})} for some, name in requests]
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(server.predict, bodies))
    for reply, answers in zip(replies, expected, strict=True):
        assert reply.status == 200
        for row, answer in zip(reply.content, answers, strict=True):
            check_row(row, answer.scores)
        ratio = sum(answer.flops for answer in answers) / sum(answer.flops_full for answer in answers)
        assert float(reply.headers["x-adapler-flops-ratio"]) == pytest.approx(ratio, abs=1e-4)


def test_answers_are_the_classifiers_whatever_the_batch(served: Served, classifier: Classifier) -> None:
    with slowed(classifier, 0.02) as sizes:  # so that requests meet in batches
        check_mixed(served, another(), TEXTS)
    assert max(sizes) > 8  # texts of several requests


def test_answers_of_others_would_be_noticed(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    compute = Service._compute
    monkeypatch.setattr(Service, "_compute", lambda self, tasks: compute(self, tasks)[::-1])
    with serving(classifier) as server, slowed(classifier, 0.05), pytest.raises((AssertionError, ValueError)):
        check_mixed(server, another(), TEXTS[:24])


def test_a_failure_of_the_servers_own_has_the_same_form(classifier: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(classifier) as server:
        monkeypatch.setattr(server.service.classifier, "wished", lambda **wishes: 1 / 0)
        reply = server.predict({"inputs": "a"})
        assert (reply.status, reply.content["error_type"]) == (500, "Internal")
        assert b'adapler_request_failure_total{err="internal"} 1.0' in server.ask("GET", "/metrics").content
        monkeypatch.undo()
        assert server.predict({"inputs": "a"}).status == 200


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_scores_are_as_the_models_problem_wants_them(problem: str) -> None:
    model = tiny_bert(labels=3 if problem.startswith("multi") else 1)
    model.config.problem_type = problem
    made = Classifier(model, tiny_tokenizer())
    with serving(made) as server:
        row = server.predict({"inputs": "a good film"}).content
        raw = server.predict({"inputs": "a good film", "raw_scores": True}).content
        thresholds = server.ask("GET", "/info").content["adapler"]["thresholds"]
    check_row(row, made("a good film").scores)
    if problem == "regression":
        assert row == raw
        assert thresholds is None
    else:
        assert sum(each["score"] for each in row) != pytest.approx(1.0)
        assert thresholds == dict.fromkeys(made.labels, 0.5)


def test_the_labels_of_a_text_follow_from_what_is_told() -> None:
    model = tiny_bert(labels=3)
    model.config.problem_type = "multi_label_classification"
    made = Classifier(model, tiny_tokenizer())
    first, second, _ = sorted(made("a good film").scores.values(), reverse=True)
    made.set_thresholds(dict.fromkeys(made.labels, (first + second) / 2))
    with serving(made) as server:
        least = server.ask("GET", "/info").content["adapler"]["thresholds"]
        row = server.predict({"inputs": "a good film"}).content
    given = [each["label"] for each in row if each["score"] >= least[each["label"]]]
    assert given == made("a good film").labels == [row[0]["label"]]


def test_an_exported_model_is_served_too(tmp_path: Path) -> None:
    classifier = tiny_classifier(eta=0.5, layers=2, hidden=16, heads=2)
    export(checkpoint_of(classifier), tmp_path / "onnx", to="onnx")
    opened = Classifier.from_pretrained(tmp_path / "onnx")
    with serving(opened) as server:
        for text, expected in zip(TEXTS[:8], classifier(TEXTS[:8]), strict=True):
            check_row(server.predict({"inputs": text}).content, expected.scores)
        assert server.ask("GET", "/info").content["adapler"]["runtime"] == "onnx"


def test_the_account_of_tokens_is_the_predictions(served: Served, classifier: Classifier) -> None:
    told = served.predict({"inputs": TEXTS[0], "point": "half"}, "/explain").content
    expected = classifier(TEXTS[0], point="half")
    assert told["tokens"] == expected.tokens
    assert told["label"] == expected.label
    assert told["kept"] == expected.kept
    assert told["lengths"] == expected.lengths
    assert (told["flops"], told["flops_full"]) == (expected.flops, expected.flops_full)
    layers = len(expected.lengths)
    assert told["left"] == [None if depth == layers else depth for depth in expected.depths]
    account = classifier.explain(TEXTS[0], point="half").to_dict()
    assert told["words"] == account["words"] and told["rationale"] == account["rationale"]
    assert [[score is None for score in row] for row in told["contributions"]] == [
        [score is None for score in row] for row in account["contributions"]
    ]
    batch = served.predict({"inputs": [[text] for text in TEXTS[:12]]}, "/explain").content
    assert [each["tokens"] for each in batch] == [each.tokens for each in classifier(TEXTS[:12])]


def test_info_has_their_keys_and_the_operating_points(served: Served) -> None:
    told = served.ask("GET", "/info").content
    assert told["model_type"]["classifier"]["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    assert (told["max_client_batch_size"], told["max_input_length"], told["max_batch_tokens"]) == (8, 512, 16384)
    assert [each["name"] for each in told["adapler"]["operating_points"]] == ["full", "half", "double"]
    assert told["adapler"]["dev"] == {"n": 10, "metric": "accuracy", "reference": "itself", "reference_score": 0.9}
    assert told["adapler"]["latencies_ms"] == {}


def test_the_speedup_to_expect_is_the_one_measured(served: Served) -> None:
    assert served.ask("GET", "/info").content["adapler"]["expected_speedup"] is None  # nobody measured it as trained
    made = another()
    both = DIAL.points[2].model_copy(update={"name": "both", "escalate": 0.5, "careful": 0.0, "flops_speedup": 2.5})
    made.dial = DIAL.model_copy(update={"points": (*DIAL.points, both)})
    with serving(made) as server:
        for point, speedup in (("half", 1.5), ("double", 3.0), ("both", 2.5)):
            made.operate(point=point)
            assert server.ask("GET", "/info").content["adapler"]["expected_speedup"] == speedup
        made.operate(point="double", escalate=0.9)
        assert server.ask("GET", "/info").content["adapler"]["expected_speedup"] is None


def test_a_probe_of_the_machine_is_in_info() -> None:
    made = another()
    made.examine(["a good film", "a bad story"], seconds=0.1)
    assert made.diagnosis is not None
    with serving(made) as server:
        assert server.ask("GET", "/info").content["adapler"]["latencies_ms"] == made.diagnosis.latencies


def test_full_length_may_be_asked_for_by_name_without_a_dial(classifier: Classifier) -> None:
    bare = tiny_classifier(eta=0.5)
    with serving(bare) as server:
        reply = server.predict({"inputs": TEXTS[0], "point": "full"})
        assert float(reply.headers["x-adapler-flops-ratio"]) == 1.0
        check_row(reply.content, classifier(TEXTS[0], point="full").scores)
        told = server.predict({"inputs": TEXTS[0], "point": "full"}, "/explain").content
        assert set(told["lengths"]) == {len(told["tokens"])}
        assert server.predict({"inputs": TEXTS[0]}).headers["x-adapler-flops-ratio"] != "1.0000"  # it does remove by itself


def test_the_page_comes_with_headers_that_keep_it_shut(served: Served) -> None:
    reply = served.ask("GET", "/ui")
    assert reply.status == 200 and reply.headers["content-type"] == "text/html; charset=utf-8"
    page, headers = document()
    assert reply.content.decode() == page
    assert {name: reply.headers[name] for name in headers} == headers


def test_health_is_empty_and_metrics_count_once(classifier: Classifier) -> None:
    with serving(classifier) as server:
        for path in ("/health", "/ping", "/"):
            for method in ("GET", "HEAD"):
                reply = server.ask(method, path)
                assert (reply.status, reply.content) == (200, b"")
        server.predict({"inputs": "a"})
        server.predict({"inputs": [["a"], ["b"]]})
        server.predict({"inputs": ""})
        told = server.ask("GET", "/metrics").content.decode()
        for line in (
            'adapler_request_count_total{method="single"} 1.0',
            'adapler_request_count_total{method="batch"} 1.0',
            'adapler_request_success_total{method="single"} 1.0',
            'adapler_request_failure_total{err="empty"} 1.0',
            "adapler_request_input_length_count 3.0",
            "adapler_queue_size 0.0",
        ):
            assert line in told.splitlines()
        assert 'adapler_tokens_kept_ratio_count{layer="3"} 3.0' in told
        server.service.draining = True
        assert server.ask("GET", "/health").content == {"error": "unhealthy", "error_type": "Unhealthy"}
        with server.connect() as raw:
            raw.sendall(b"HEAD /ping HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            head = b"".join(iter(lambda: raw.recv(4096), b""))
        assert head.startswith(b"HTTP/1.1 503 ") and head.endswith(b"\r\n\r\n")


def test_the_reference_fetches_nothing(served: Served) -> None:
    page = served.ask("GET", "/docs").content.decode()
    assert "/predict" in page
    assert "http://" not in page and "https://" not in page and "<script" not in page
    assert "/explain" in served.ask("GET", "/openapi.json").content["paths"]
