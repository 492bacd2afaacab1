"""Every runtime of the table answers as `encode` does: same labels, same kept tokens, logits within rounding, in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from adapler.backbones.base import Block
from adapler.backbones.bert import BertBlock
from adapler.classifier import Classifier
from adapler.data.text import Text
from adapler.errors import BadConfig, BadInput, BadModel
from adapler.export import EXPORTS
from adapler.export.encode import build_graph, to_model
from adapler.export.int8 import quantised_weight
from adapler.export.linear import join_projections
from adapler.export.write import export
from adapler.layout import Padded
from adapler.runtimes import RUNTIMES
from adapler.runtimes.base import Answer, Runtime, all_logits
from tests.contract.batches import RelativeBert, assert_worth_testing
from tests.contract.exports import (
    Case,
    altered_runtime,
    case_for,
    check_agrees,
    checkpoint_of,
    exported_runtime,
    reusing_pieces,
    run_batches,
)
from tests.tiny import tiny_classifier, tiny_reducer, tiny_tokenizer

SIZES = (1, 7, 32)
TEXTS = 250
INT8_LABELS = 0.95
"""Least share of texts with the same label in 8 bits. Random weights put labels and scores closer together than training."""
INT8_TOKENS = 0.97
"""Least share of tokens that go equally deep."""
INT8_LOGITS = 0.1
"""Largest mean difference of logits, relative to the largest."""


@dataclass(frozen=True)
class Subject:
    """One classifier in every runtime, and texts with the right answers."""

    made: Classifier
    folders: dict[str, Path]
    runtimes: dict[str, Runtime]
    case: Case


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    made = tiny_classifier(spread=2.0)
    folders = {name: tmp_path_factory.mktemp("exported") / name for name in RUNTIMES}
    with pytest.MonkeyPatch.context() as patch:
        reusing_pieces(patch)
        for name, folder in folders.items():
            if name in EXPORTS:
                export(checkpoint_of(made), folder, to=name)
            else:
                made.save_pretrained(folder)
        yield Subject(made, folders, {name: RUNTIMES[name].open(folders[name]) for name in RUNTIMES}, case_for(made, TEXTS))


@pytest.fixture(scope="module")
def kept_case(subject: Subject) -> Case:
    return case_for(subject.made, TEXTS // 2, seed=2, keep=0.15)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in RUNTIMES if name != "onnx-int8"])
def test_a_float_runtime_answers_as_encode_does(subject: Subject, name: str, size: int) -> None:
    counts = torch.tensor([len(text.ids) for text in subject.case.texts])
    lengths = np.concatenate([answer.lengths for answer in subject.case.answers])
    assert_worth_testing([torch.from_numpy(layer).float() for layer in lengths.T], counts)
    assert len(counts) > 0.9 * TEXTS
    check_agrees(run_batches(subject.runtimes[name], subject.case, size), subject.case.answers)


def test_int8_stays_within_its_bounds(subject: Subject) -> None:
    check_int8(run_batches(subject.runtimes["onnx-int8"], subject.case, 32), subject.case.answers)


def check_int8(got: Sequence[Answer], expected: Sequence[Answer]) -> None:
    ours, theirs = (np.concatenate([answer.logits for answer in answers]) for answers in (got, expected))
    depths = [np.concatenate([answer.depths for answer in answers if answer.depths is not None]) for answers in (got, expected)]
    assert (ours.argmax(-1) == theirs.argmax(-1)).mean() >= INT8_LABELS
    assert (depths[0] == depths[1]).mean() >= INT8_TOKENS
    assert np.abs(ours - theirs).mean() <= INT8_LOGITS * np.abs(theirs).max()
    assert np.abs(ours - theirs).max() > 0  # it is another arithmetic, after all


@pytest.mark.parametrize("name", RUNTIMES)
def test_the_batch_a_text_is_in_does_not_matter(subject: Subject, name: str) -> None:
    alone, *others = (run_batches(subject.runtimes[name], subject.case, size) for size in SIZES)
    for together in others:
        check_agrees(together, alone)


def test_calibrated_int8_stays_within_its_bounds_in_any_batch(subject: Subject, tmp_path: Path) -> None:
    seen = case_for(subject.made, 80, seed=1).texts
    export(checkpoint_of(subject.made), tmp_path / "fixed", to="onnx-int8", texts=seen)
    runtime = RUNTIMES["onnx-int8"].open(tmp_path / "fixed")
    check_int8(run_batches(runtime, subject.case, 32), subject.case.answers)
    check_agrees(run_batches(runtime, subject.case, 7), run_batches(runtime, subject.case, 1))
    rowwise = onnx.load(subject.folders["onnx-int8"] / "model.onnx")
    assert _count(onnx.load(tmp_path / "fixed" / "model.onnx"), "ReduceMin") == 0 < _count(rowwise, "ReduceMin")
    with pytest.raises(BadInput, match="no texts to calibrate on"):
        export(checkpoint_of(subject.made), tmp_path / "none", to="onnx-int8", texts=[])


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_scale_of_nothing_keeps_everything(subject: Subject, name: str) -> None:
    texts = subject.case.texts[:20]
    answer = subject.runtimes[name](texts, scale=np.zeros(20, dtype=np.float32))
    assert (answer.lengths == np.array([[len(text.ids)] for text in texts])).all()
    assert answer.depths is not None and (answer.depths == subject.runtimes[name].layers).all()


def check_kept(got: Sequence[Answer], case: Case, layers: int) -> None:
    """What must stay entered every layer."""
    for text, answer in zip(case.texts, got, strict=True):
        assert answer.depths is not None
        assert text.keep is None or (answer.depths[text.keep] == layers).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RUNTIMES)
def test_named_tokens_stay_in_every_runtime(subject: Subject, kept_case: Case, name: str, size: int) -> None:
    got = run_batches(subject.runtimes[name], kept_case, size)
    check_kept(got, kept_case, subject.runtimes[name].layers)
    if name == "onnx-int8":
        check_int8(got, kept_case.answers)
    else:
        check_agrees(got, kept_case.answers)
    unnamed = replace(kept_case, texts=[replace(text, keep=None) for text in kept_case.texts])
    with pytest.raises(AssertionError):  # without being named many of them would leave
        check_kept(run_batches(subject.runtimes[name], unnamed, size), kept_case, subject.runtimes[name].layers)


@pytest.mark.parametrize("name", RUNTIMES)
def test_naming_nothing_changes_nothing(subject: Subject, name: str) -> None:
    texts = subject.case.texts[:20]
    nothing = [replace(text, keep=np.zeros(len(text.ids), dtype=np.bool_)) for text in texts]
    ours, theirs = subject.runtimes[name](nothing), subject.runtimes[name](texts)
    assert np.array_equal(ours.logits, theirs.logits) and np.array_equal(ours.lengths, theirs.lengths)


def test_a_graph_that_ignores_named_tokens_would_be_noticed(subject: Subject, kept_case: Case, tmp_path: Path) -> None:
    runtime = altered_runtime(subject.folders["onnx"], tmp_path / "wrong", named_tokens_leave)
    check_agrees(run_batches(runtime, subject.case, 32), subject.case.answers)  # wrong in nothing else
    with pytest.raises(AssertionError):
        check_agrees(run_batches(runtime, kept_case, 32), kept_case.answers)
    with pytest.raises(AssertionError):
        check_kept(run_batches(runtime, kept_case, 32), kept_case, runtime.layers)


@pytest.mark.parametrize("alter", ["empty places stay", "numbered anew"])
def test_a_graph_that_keeps_others_would_be_noticed(subject: Subject, kept_case: Case, alter: str, tmp_path: Path) -> None:
    wrong = {"empty places stay": empty_places_stay_at_a_threshold_of_zero, "numbered anew": named_by_place_among_survivors}
    runtime = altered_runtime(subject.folders["onnx"], tmp_path / "wrong", wrong[alter])
    with pytest.raises((AssertionError, BadModel)):
        check_agrees(run_batches(runtime, kept_case, 32), kept_case.answers)


def test_a_graph_of_before_runs_and_says_that_it_cannot_keep(subject: Subject, kept_case: Case, tmp_path: Path) -> None:
    runtime = altered_runtime(subject.folders["onnx"], tmp_path / "old", without_the_input)
    check_agrees(run_batches(runtime, subject.case, 32), subject.case.answers)
    with pytest.raises(BadModel, match="exported before tokens could be kept by name; export it again"):
        run_batches(runtime, kept_case, 32)
    with pytest.raises(BadModel, match="export it again to use always_keep"):
        Classifier.from_pretrained(tmp_path / "old", always_keep=["not"])
    assert Classifier.from_pretrained(tmp_path / "old", always_keep=[])("not a good film").label


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_classifier_keeps_words_in_every_runtime(subject: Subject, name: str) -> None:
    texts: list[Text] = ["not a Good film " * 5, ("the director did NOT", "what was not there")]
    made = Classifier.from_pretrained(subject.folders[name], always_keep=["not", "a good"])
    for answer in made(texts):
        found = [depth for token, depth in zip(answer.tokens, answer.depths, strict=True) if token == "not"]
        assert len(found) >= 2 and set(found) == {made.runtime.layers}


@pytest.mark.parametrize("name", RUNTIMES)
def test_without_a_trace_the_answer_is_the_same(subject: Subject, name: str) -> None:
    traced, plain = (subject.runtimes[name](subject.case.texts[:9], trace=trace) for trace in (True, False))
    assert np.array_equal(traced.logits, plain.logits) and np.array_equal(traced.lengths, plain.lengths)
    assert plain.depths is None and plain.scores is None


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("scale", [[1.0], [1.0, -1.0], [1.0, float("nan")]])
def test_a_scale_that_is_none_is_refused(subject: Subject, name: str, scale: list[float]) -> None:
    with pytest.raises(BadConfig, match="scale must hold 2 numbers of at least 0"):
        subject.runtimes[name](subject.case.texts[:2], scale=np.array(scale, dtype=np.float32))


@pytest.mark.parametrize("name", RUNTIMES)
def test_runtimes_tell_the_same_about_the_model(subject: Subject, name: str) -> None:
    runtime, model = subject.runtimes[name], subject.runtimes["torch"]
    assert runtime.name == name
    told = ("labels", "layers", "cost", "longest", "problem_type")
    assert [getattr(runtime, what) for what in told] == [getattr(model, what) for what in told]


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("scale", [None, 0.7, 0.0])
def test_batches_side_by_side_answer_as_one_after_the_other(subject: Subject, name: str, scale: float | None) -> None:
    runtime = RUNTIMES[name].open(subject.folders[name], **({} if name == "torch" else {"threads": 2}))
    batches = [subject.case.texts[first : first + 9] for first in range(0, 90, 9)]
    with two_threads():
        assert runtime.workers() is not None
        together = list(runtime.each(batches, scale=scale, reduced=scale != 0))
    factors = None if scale is None else np.full(9, scale, dtype=np.float32)
    check_agrees(together, [runtime(batch, scale=factors, reduced=scale != 0) for batch in batches])


@contextmanager
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_an_error_in_a_batch_beside_others_reaches_the_caller(subject: Subject) -> None:
    runtime, text = subject.runtimes["torch"], subject.case.texts[0]
    wrong = replace(text, ids=text.ids + 10**6)
    with two_threads(), pytest.raises(IndexError):
        list(runtime.each([[text], [wrong], [text]]))


def test_torch_workers_have_one_thread_each_and_leave_others_theirs(subject: Subject) -> None:
    with two_threads():
        pool = subject.runtimes["torch"].workers()
        assert pool is not None
        assert [pool.submit(torch.get_num_threads).result() for _ in range(4)] == [1] * 4
        assert torch.get_num_threads() == 2
        with ThreadPoolExecutor(1) as other:
            assert other.submit(torch.get_num_threads).result() == 2


def test_all_logits_come_back_in_order(subject: Subject) -> None:
    texts = subject.case.texts[:40]
    runtime = subject.runtimes["onnx"]
    alone = np.concatenate([runtime([text], trace=False).logits for text in texts])
    assert np.allclose(all_logits(runtime, texts, budget=64), alone, atol=1e-6)  # float32, other summation order


def test_exact_ties_stay(tmp_path: Path) -> None:
    made = tiny_classifier(layers=2)
    assert made.reducer is not None
    with torch.no_grad():
        made.reducer.get_parameter("eta").fill_(1.0)
        made.reducer.get_parameter("predictors.0.dense_out.weight").zero_()  # every token scores exactly 1 / n
    runtime = exported_runtime(made, tmp_path / "model")
    texts = case_for(tiny_classifier(reduced=False), 60).texts
    counts = [len(text.ids) for text in texts]
    assert len(set(counts)) > 20
    assert runtime(texts).lengths[:, 0].tolist() == counts
    strict = altered_runtime(tmp_path / "model", tmp_path / "wrong", ties_leave)
    assert strict(texts).lengths[:, 0].tolist() == [1] * len(counts)


def test_a_model_without_reduction_answers_as_transformers_does(tmp_path: Path) -> None:
    made = tiny_classifier(layers=2, reduced=False)
    runtime = exported_runtime(made, tmp_path / "model")
    case = case_for(made, 40)
    check_agrees(run_batches(runtime, case, 8), case.answers)
    for text, answer in zip(case.texts, run_batches(runtime, case, 8), strict=True):
        with torch.inference_mode():
            expected = made.backbone.model(input_ids=torch.from_numpy(text.ids)[None]).logits.numpy()
        assert np.allclose(answer.logits, expected, atol=1e-6)  # float32, other summation order
        assert answer.lengths.tolist() == [[len(text.ids)] * 2]


class PlacedBlock(BertBlock):
    """BERT's layer with queries and keys that depend on their original positions, as rotary ones do."""

    def query(self, x: Tensor, position: Tensor) -> Tensor:
        return super().query(x, position) * torch.cos(position.to(x.dtype) / 4)[..., None, None]

    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        key, value = super().key_value(x, position)
        return key * torch.sin(position.to(x.dtype) / 3)[..., None, None], value

    def query_key_value(self, x: Tensor, position: Tensor) -> Tensor:
        return Block.query_key_value(self, x, position)


class JointBlock(BertBlock):
    """BERT's layer with query, key and value cut out of one weight, as other families store them."""

    def __init__(self, block: BertBlock, layer: torch.nn.Module) -> None:
        super().__init__(layer, block.heads, block.activation, 0.0)
        self.joint = torch.nn.Parameter(torch.cat([block.q.weight, block.k.weight, block.v.weight]).detach())
        layer.register_parameter("joint", self.joint)

    def query(self, x: Tensor, position: Tensor) -> Tensor:
        return self._split(torch.nn.functional.linear(x, self.joint.chunk(3)[0]))

    def key_value(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        _, key, value = (self._split(torch.nn.functional.linear(x, part)) for part in self.joint.chunk(3))
        return key, value


def test_a_joint_weight_is_cut_and_put_into_8_bits_too(tmp_path: Path) -> None:
    made = tiny_classifier(layers=2, spread=2.0)
    backbone = made.backbone
    blocks = zip(backbone.blocks, made.backbone.model.bert.encoder.layer, strict=True)
    backbone.blocks = [JointBlock(block, layer) for block, layer in blocks if isinstance(block, BertBlock)]
    with pytest.MonkeyPatch.context() as patch:
        reusing_pieces(patch)
        case = case_for(made, 30)
        check_agrees(run_batches(exported_runtime(made, tmp_path / "model"), case, 8), case.answers)
        export(checkpoint_of(made), tmp_path / "small", to="onnx-int8")
    small = onnx.load(tmp_path / "small" / "model.onnx")
    assert _count(small, "MatMulIntegerToFloat") == 2 * 4 + 1  # in the last layer the query is a product of its own


def test_positions_are_original_and_the_mean_is_over_survivors(tmp_path: Path) -> None:
    made = tiny_classifier(layers=3, spread=2.0)
    backbone = made.backbone
    backbone.blocks = [PlacedBlock(layer, 4, backbone.activation, 0.0) for layer in made.backbone.model.bert.encoder.layer]
    backbone.pooling = "mean"
    case = case_for(made, 60)
    assert min(answer.lengths[0, -1] / len(text.ids) for text, answer in zip(case.texts, case.answers, strict=True)) < 0.5
    check_agrees(run_batches(exported_runtime(made, tmp_path / "model"), case, 8), case.answers)


def test_a_bias_between_positions_is_in_the_graph(tmp_path: Path) -> None:
    backbone = RelativeBert(2)
    made = Classifier(backbone, tiny_tokenizer(), tiny_reducer(backbone, spread=2.0))
    case = case_for(made, 30)
    assert min(answer.lengths[0, -1] / len(text.ids) for text, answer in zip(case.texts, case.answers, strict=True)) < 0.5
    check_agrees(run_batches(exported_runtime(made, tmp_path / "model"), case, 8), case.answers)

    def unbiased(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "MultiHeadAttention":
                del node.input[5:]

    with pytest.raises(AssertionError):
        check_agrees(run_batches(altered_runtime(tmp_path / "model", tmp_path / "without", unbiased), case, 8), case.answers)


def test_joined_projections_answer_the_same(subject: Subject, tmp_path: Path) -> None:
    graph = build_graph(subject.made.backbone, subject.made.reducer)
    apart = to_model(graph, reduced=True)
    join_projections(graph)
    joined = to_model(graph, reduced=True)
    # Three products become one in every layer; in the last only the first tokens ask, so two become one.
    assert _count(apart, "Gemm") - _count(joined, "Gemm") == 2 * 3 + 1
    runtime = altered_runtime(subject.folders["onnx"], tmp_path / "apart", lambda model: model.CopyFrom(apart))
    ours, theirs = run_batches(runtime, subject.case, 32), run_batches(subject.runtimes["onnx"], subject.case, 32)
    check_agrees(ours, theirs)


def test_every_weight_is_stored_once_and_only_layers_are_in_8_bits(subject: Subject) -> None:
    assert subject.made.reducer is not None
    held = [*subject.made.backbone.model.parameters(), *subject.made.reducer.parameters()]
    numbers = sum(parameter.numel() for parameter in held)
    sound, small = (onnx.load(subject.folders[name] / "model.onnx") for name in EXPORTS)
    stored = sum(int(np.prod(tensor.dims)) for tensor in sound.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    assert 0.9 * numbers < stored < 1.01 * numbers
    eighths = [tensor for tensor in small.graph.initializer if tensor.data_type == onnx.TensorProto.INT8]
    linears = [block.linears for block in map(_Linears, subject.made.backbone.blocks)]
    assert sum(int(np.prod(tensor.dims)) for tensor in eighths) == sum(map(sum, linears))
    assert all(tensor.name.split("/")[0].split(".")[1] in ("query", "key_value", "merge", "feed_forward") for tensor in eighths)


class _Linears:
    def __init__(self, block: object) -> None:
        assert isinstance(block, BertBlock)
        self.linears = [m.weight.numel() for m in (block.q, block.k, block.v, block.out, block.wide, block.narrow)]


def test_a_quantised_weight_is_off_by_half_a_step_at_most() -> None:
    weight = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    weight[:, 2] = 0
    whole, scale = quantised_weight(weight)
    assert whole.dtype == np.int8
    assert (np.abs(whole * scale - weight) <= 0.5 * scale * 1.001).all()


Alter = Callable[[onnx.ModelProto], None]


def ties_leave(model: onnx.ModelProto) -> None:
    for node in _nodes(model, "GreaterOrEqual"):
        node.op_type = "Greater"


def attention_to_padding(model: onnx.ModelProto) -> None:
    for node in _nodes(model, "MultiHeadAttention"):
        node.input[4] = ""


def empty_places_stay_at_a_threshold_of_zero(model: onnx.ModelProto) -> None:
    for node in _nodes(model, "And"):
        node.input[1] = node.input[0]


def survivors_one_row_off(model: onnx.ModelProto) -> None:
    """In front of the second layer the row before each survivor's goes on in its place."""
    one = onnx.numpy_helper.from_array(np.array(1), "one")
    zero = onnx.numpy_helper.from_array(np.array(0), "zero")
    model.graph.initializer.extend([one, zero])
    place, taken = next(
        (place, node)
        for place, node in enumerate(model.graph.node)
        if node.op_type == "Gather" and node.input[0].startswith("0.feed_forward/") and "Compress" in node.input[1]
    )
    before = onnx.helper.make_node("Sub", [taken.input[1], "one"], ["before"])
    clipped = onnx.helper.make_node("Max", ["before", "zero"], ["clipped"])
    taken.input[1] = "clipped"
    model.graph.node.insert(place, clipped)
    model.graph.node.insert(place, before)


def the_largest_scale_for_all(model: onnx.ModelProto) -> None:
    largest = onnx.helper.make_node("ReduceMax", ["scale"], ["largest"], keepdims=1)
    for node in model.graph.node:
        for place, value in enumerate(node.input):
            node.input[place] = "largest" if value == "scale" else value
    model.graph.node.insert(0, largest)


def named_tokens_leave(model: onnx.ModelProto) -> None:
    _reading_keep(model, "nothing")
    model.graph.node.insert(0, onnx.helper.make_node("Xor", ["keep", "keep"], ["nothing"]))


def named_by_place_among_survivors(model: onnx.ModelProto) -> None:
    """Looked up by the row a token has now, not by the one it came in."""
    nodes = [node for node in _nodes(model, "Gather") if node.input[0] == "keep"]
    for node in nodes[1:]:
        node.input[1] = nodes[0].input[1]


def without_the_input(model: onnx.ModelProto) -> None:
    """As graphs were exported at first."""
    _reading_keep(model, "nothing")
    model.graph.node.insert(0, onnx.helper.make_node("Less", ["ids", "ids"], ["nothing"]))
    left = [entry for entry in model.graph.input if entry.name != "keep"]
    del model.graph.input[:]
    model.graph.input.extend(left)


ALTERATIONS: list[Alter] = [
    attention_to_padding,
    empty_places_stay_at_a_threshold_of_zero,
    survivors_one_row_off,
    the_largest_scale_for_all,
]


@pytest.mark.parametrize("alter", ALTERATIONS, ids=[alter.__name__ for alter in ALTERATIONS])
def test_a_wrong_graph_would_be_noticed(subject: Subject, alter: Alter, tmp_path: Path) -> None:
    runtime = altered_runtime(subject.folders["onnx"], tmp_path / "wrong", alter)
    assert (tmp_path / "wrong" / "model.onnx").read_bytes() != (subject.folders["onnx"] / "model.onnx").read_bytes()
    with pytest.raises(AssertionError):
        check_agrees(run_batches(runtime, subject.case, 32), subject.case.answers)


def test_a_threshold_of_the_longest_text_would_be_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tiny_classifier(layers=2, spread=2.0)
    case = case_for(made, 60)
    longest = lambda self, tokens: self.total(tokens.weight).amax(0).expand(tokens.weight.shape[0])  # noqa: E731
    monkeypatch.setattr(Padded, "length", longest)
    runtime = exported_runtime(made, tmp_path / "wrong")
    check_agrees(run_batches(runtime, case, 1), case.answers)
    with pytest.raises(AssertionError):
        check_agrees(run_batches(runtime, case, 8), case.answers)


def _reading_keep(model: onnx.ModelProto, instead: str) -> None:
    for node in _nodes(model, "Gather"):
        if node.input[0] == "keep":
            node.input[0] = instead


def _nodes(model: onnx.ModelProto, op: str) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.op_type == op]


def _count(model: onnx.ModelProto, op: str) -> int:
    return len(_nodes(model, op))
