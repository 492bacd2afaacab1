"""The small parts of training and evaluation: settings, order of examples, choices, steering, metrics."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from adapler.config import build_config, parse_assignments, read_config, setting_names
from adapler.data.batches import epoch_batches
from adapler.data.load import load_dataset, read_split
from adapler.data.tasks import TASKS
from adapler.errors import BadConfig, BadInput
from adapler.evaluation.evaluate import evaluate, paired_bootstrap
from adapler.evaluation.metrics import class_weights, score
from adapler.training import finish
from adapler.training.progress import progress_for
from adapler.training.reduce import predictor_rate, threshold_memory, threshold_rate
from adapler.training.schedule import lambda_of_epoch
from adapler.training.selection import Point, Selection, choose_point
from adapler.training.session import Session
from adapler.training.snapshot import Snapshots
from adapler.training.steering import steered
from tests.tiny import tiny_classifier, tiny_texts


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_a_paper_preset_that_is_valid(name: str) -> None:
    task = TASKS[name]
    config = build_config(task.paper)
    assert config.reduce.start == "pretrained" and config.reduce.threshold_lr == 5e-4 and config.reduce.lr == 3e-5
    assert config.steer.target_speedup is None and len(task.labels) >= 2


def test_paper_presets_are_the_appendix_tables() -> None:
    mrpc, imdb, hate = (build_config(TASKS[name].paper) for name in ("mrpc", "imdb", "hatexplain"))
    assert (mrpc.finetune.epochs, mrpc.reduce.epochs, mrpc.reduce.gamma, mrpc.reduce.phi) == (5, 10, 3e-2, 5e-2)
    lambdas = [lambda_of_epoch(e, 10, mrpc.reduce.lambda_base, mrpc.reduce.lambda_growth) for e in (0, 1, 9)]
    assert lambdas == pytest.approx([10, 30, 196830])
    assert (imdb.finetune.batch_size, TASKS["imdb"].max_length) == (16, 512)
    assert (hate.finetune.lr, hate.reduce.lambda_base, hate.reduce.lambda_growth) == (3e-5, 50, 50)


def test_settings_merge_in_order_and_short_names_are_found(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("reduce:\n  gamma: 0.3\n  phi: 0.5\nrun:\n  seed: 4\n")
    config = build_config(TASKS["sst2"].paper, read_config(file), parse_assignments(["phi=0.7", "finetune.lr=1e-3"]))
    assert (config.reduce.gamma, config.reduce.phi, config.run.seed, config.finetune.lr) == (0.3, 0.7, 4, 1e-3)
    assert build_config(json.loads(config.model_dump_json())) == config


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        (["gama=1"], r"no setting 'gama'.*gamma"),
        (["lr=1"], r"finetune\.lr or reduce\.lr"),
        (["gamma"], "key=value"),
        (["gamma=-1"], r"reduce\.gamma"),
        (["start=somewhere"], r"reduce\.start"),
        (["gamma=NaN"], r"reduce\.gamma"),
        (["settle_from=2"], "settling comes to target_speedup from settle_from, 2 here, but there is none"),
        (["settle_from=4", "target_speedup=3"], "settle_from, 4 here, but that is 3"),
    ],
)
def test_wrong_settings_are_refused_with_the_nearest_name(assignments: list[str], words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        build_config(parse_assignments(assignments))


def test_an_unknown_key_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("reduce:\n  gammma: 0.3\n")
    with pytest.raises(BadConfig, match=r"reduce\.gammma.*reduce\.gamma"):
        build_config(read_config(file))
    with pytest.raises(BadConfig, match="no config file"):
        read_config(tmp_path / "none.yaml")
    file.write_text("- a\n- b\n")
    with pytest.raises(BadConfig, match="table of settings"):
        read_config(file)


@pytest.mark.parametrize("name", ["run.yaml", "run.json"])
def test_a_file_may_leave_groups_out_as_the_command_line_may(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    content: dict[str, Any] = {"gamma": 0.3, "reduce": {"phi": 0.5}, "finetune.lr": 1e-3, "seed": 4, "method": "power"}
    file.write_text(json.dumps(content))  # which is YAML too
    config = build_config(read_config(file))
    assert (config.reduce.gamma, config.reduce.phi, config.run.seed, config.finetune.lr) == (0.3, 0.5, 4, 1e-3)
    assert build_config(parse_assignments(["gamma=0.3", "phi=0.5", "finetune.lr=1e-3", "seed=4", "method=power"])) == config


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("gama: 1", r"no setting 'gama'.*gamma"),
        ("lr: 1", r"no setting 'lr'.*finetune\.lr or reduce\.lr"),
        ("finetune: {gamma: 1}", r"no setting 'finetune\.gamma'\. Did you mean reduce\.gamma\?"),
        ("reduction: {gamma: 1}", r"no setting 'reduction'\. Did you mean reduce "),
        ("reduce: 3", r"setting reduce: .* got 3"),
        ("gamma: -1", r"setting reduce\.gamma: .* got -1"),
        ("1: 2", r"no setting '1'"),
    ],
)
def test_a_wrong_name_in_a_file_is_answered_with_the_nearest(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(BadConfig, match=words):
        build_config(read_config(file))


def test_every_setting_is_described() -> None:
    assert len(setting_names()) > 30
    assert all(name.count(".") <= 1 for name in setting_names())


@settings(max_examples=30, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 64), min_size=1, max_size=300), size=st.integers(1, 40), epoch=st.integers(0, 3))
def test_an_epoch_visits_every_example_once_in_an_order_of_its_own(lengths: list[int], size: int, epoch: int) -> None:
    batches = epoch_batches(lengths, size, 0, epoch)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    assert all(1 <= len(batch) <= size for batch in batches)
    assert batches == epoch_batches(lengths, size, 0, epoch)


def test_epochs_and_seeds_differ_in_order() -> None:
    orders = [epoch_batches(list(range(1, 200)), 8, seed, epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert all(first != second for i, first in enumerate(orders) for second in orders[i + 1 :])


def test_steering_pays_for_tokens_once_the_target_is_passed() -> None:
    assert steered(0.02, target=3, speedup=1) == 0.02
    assert steered(0.02, target=3, speedup=3) == 0
    assert steered(0.02, target=3, speedup=9) == -0.02
    assert 0 < steered(0.02, target=3, speedup=2.9) < 0.02


def test_rates_reach_the_papers_at_the_papers_length() -> None:
    assert threshold_rate(10_000) == pytest.approx(5e-4) and threshold_rate(500) == pytest.approx(1e-2)
    assert threshold_memory(10_000) == 0.999 and threshold_memory(20) == 0.9
    assert predictor_rate(750, 5e-5) == pytest.approx(1e-3) and predictor_rate(10**6, 5e-5) == 5e-5


def test_the_chosen_point_is_the_fastest_within_the_margin_or_nearest_to_the_target() -> None:
    points = [Point(0.5, 0.91, 1.2), Point(0.8, 0.905, 2.0), Point(1.0, 0.90, 3.0), Point(1.2, 0.85, 5.0)]
    assert choose_point(points, 0.899, None).speedup == 3.0
    assert choose_point(points, 0.899, 2.2).speedup == 2.0
    assert choose_point(points, 0.90, 5.0).speedup == 2.0  # strictly above the threshold
    assert choose_point(points, 0.95, None).score == 0.91  # none within: the best-scoring


def test_selection_asks_for_more_speed_and_enough_score() -> None:
    selection = Selection(0.9, margin=0.02)
    assert [selection.offer(0.89, 2.0), selection.offer(0.95, 1.5), selection.offer(0.88, 3.0)] == [True, False, False]


def test_metrics_by_name() -> None:
    labels, answers = [0, 1, 1, 0], np.array([0, 1, 0, 0])
    assert score("accuracy", labels, answers) == 0.75
    assert score("f1", labels, answers) == pytest.approx(2 / 3)
    assert score("matthews", labels, answers) == pytest.approx(1 / np.sqrt(3))


def test_class_weights_are_inverse_frequencies() -> None:
    assert torch.allclose(class_weights([0, 0, 0, 1], 2), torch.tensor([4 / 6, 2.0]))


def test_a_paired_bootstrap_knows_when_nothing_changed() -> None:
    labels = np.arange(200) % 2
    assert paired_bootstrap("accuracy", labels, labels, labels) == (0.0, 0.0)
    worse = labels.copy()
    worse[:20] = 1 - worse[:20]
    low, high = paired_bootstrap("accuracy", labels, labels, worse)
    assert 4 < low < 10 < high < 16


def test_evaluation_tells_losses_by_class_and_length(tmp_path: Path) -> None:
    made = tiny_classifier(labels=2)
    made.save_pretrained(tmp_path / "model")
    texts = tiny_texts(40)
    full = tiny_classifier(labels=2, reduced=False)(texts)
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps({"text": t, "label": p.label}) + "\n" for t, p in zip(texts, full, strict=True)))
    data = build_config({"data": {"source": str(file)}}).data
    report = evaluate(tmp_path / "model", data, "test")
    assert report["against_own_full_length"]["score_full"] == 1.0  # the labels are its own answers at full length
    changed = report["against_own_full_length"]["answers_changed"]
    assert report["score"] == pytest.approx(1 - changed / 40) and report["flops_speedup"] > 1
    assert sum(row["n"] for row in report["by_class"]) == sum(row["n"] for row in report["by_length"]) == 40
    with pytest.raises(BadInput, match="line 1: column 'label' holds 'other', a label not known to the model"):
        file.write_text(json.dumps({"text": "a", "label": "other"}) + "\n")
        read_split(data, "test", made.labels)


def test_numbers_and_names_are_both_labels(tmp_path: Path) -> None:
    for content, names in (
        ("a,1\nb,0\nc,1\n", ("0", "1")),
        ("a,x\nb,y\nc,x\n", ("x", "y")),
        ("a,10\nb,9\nc,10\n", ("9", "10")),
    ):
        (tmp_path / "train.csv").write_text("text,label\n" + content)
        (tmp_path / "dev.csv").write_text("text,label\n" + content.splitlines()[0] + "\n")
        assert load_dataset(build_config({"data": {"source": str(tmp_path)}}).data, 0).labels == names


def test_changed_conditions_are_said_on_resuming(tmp_path: Path) -> None:
    said: list[str] = []

    class Listener:
        def say(self, line: str) -> None:
            said.append(line)

        def phase(self, name: str) -> None: ...
        def advance(self, share: float) -> None: ...
        def note(self, text: str) -> None: ...

    store = Snapshots(tmp_path, 2, said.append)
    state = {"phase": "finetune", "epoch": 0, "step": 3, "history": [], "conditions": {"threads": -1}}
    store.write(1, {"a": torch.ones(1)}, state)
    session = Session(store, Listener(), 60)
    assert session.resume() is not None
    assert "resuming" in said[0] and "threads -1 ->" in said[1]


def split_result(score: float, speedup: float) -> finish.SplitResult:
    return finish.SplitResult(100, 0.9, score, 20.0, [20.0], speedup, speedup, speedup, None)


def test_the_account_says_when_a_speed_was_missed_and_when_nothing_is_saved() -> None:
    kept = {"within_margin": True}
    account = finish._account("accuracy", {"dev": split_result(0.89, 2.9)}, kept, 3.0)
    assert account.endswith("at 2.90x fewer FLOPs, 1.0 points less than the full-length model it was made from (90.0).")
    account = finish._account("accuracy", {"dev": split_result(0.89, 2.9), "test": split_result(0.88, 2.8)}, kept, 5.0)
    assert "2.80x fewer FLOPs" in account and "5x was asked for, 2.90x was reached on dev" in account
    account = finish._account("accuracy", {"dev": split_result(0.4, 0.9)}, kept, None)
    assert "at 1.11x the FLOPs" in account and "saves nothing" in account


def test_quiet_still_says_what_must_be_read() -> None:
    console = Console(file=io.StringIO(), width=200)
    progress = progress_for(console, quiet=True)
    progress.phase("finetune")
    progress.note("dev 0.9")
    progress.say("snapshot 3 is broken")
    assert isinstance(console.file, io.StringIO) and console.file.getvalue() == "snapshot 3 is broken\n"
