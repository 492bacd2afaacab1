"""A whole study on a planted task: every method, resumable, chosen on dev, one look at test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from adapler.cli import app
from adapler.data.text import Text
from adapler.errors import BadConfig, BadInput
from adapler.study.clock import read_clock
from adapler.study.curves import above, read_curves, upper_front
from adapler.study.page import contest_table
from adapler.study.places import record_file
from adapler.study.plan import Plan, cells, joined, read_plan
from adapler.study.point import opened
from adapler.study.run import run_cell, run_study
from adapler.study.tables import Table, latex
from adapler.study.words import beginnings
from adapler.training.progress import Silent
from adapler.training.run import train
from tests.e2e.test_recipes import OWN
from tests.planted import planted_settings, write_tiny_encoder
from tests.tiny import tiny_tokenizer

METHODS = ["words", "full", "distilled", "power", "trbert", "adapler"]


def planted_plan(folder: Path) -> dict[str, Any]:
    settings = planted_settings(folder)
    return {
        "tasks": ["data"],
        "data": str(folder),
        "methods": METHODS,
        "model": settings["model"],
        "distilled": str(write_tiny_encoder(folder / "shallow", layers=2)),
        "full_epochs": 6,
        "full_rates": [1e-3, 3e-3],
        "test_limit": 100,
        "settings": {"data": {"max_length": 64}, "finetune": settings["finetune"], "reduce": settings["reduce"]},
        "by_method": {"trbert": OWN["trbert"], "power": {"power": {"epochs": 2, "lr": 1e-3, "retention_lr": 3e-2}}},
        "knobs": {"power": {"power.penalty": [1e-3, 3e-3]}},
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plan's file and the study's folder."""
    folder = tmp_path_factory.mktemp("study")
    plan = folder / "plan.yaml"
    plan.write_text(yaml.safe_dump(planted_plan(folder)))
    answer = CliRunner().invoke(app, ["study", "run", str(plan), "--out", str(folder / "out")])
    assert answer.exit_code == 0, answer.output
    return plan, folder / "out"


def record(out: Path, method: str) -> dict[str, Any]:
    (only,) = json.loads(record_file(out, "data", method, 0).read_text())
    return dict(only)


def test_a_text_is_cut_alike_for_every_method(tmp_path: Path) -> None:
    plan = planted_plan(tmp_path) | {"methods": ["full", "distilled", "adapler"], "full_epochs": 1, "full_rates": [3e-3]}
    del plan["by_method"], plan["knobs"]
    plan["settings"] = {"data": {"max_length": 12}, "finetune": {"epochs": 1, "lr": 3e-3}, "reduce": {"epochs": 1}}
    wanted, out = Plan.model_validate(plan), tmp_path / "out"
    run_study(wanted, out, Silent, lambda line: None)
    for cell in cells(wanted):
        assert opened(out, cell).max_length == 12, cell.name
    assert record(out, "full")["config"]["dataset"]["tokens_mean"] == pytest.approx(12, abs=0.5)  # texts of 13 to 27


def test_every_cell_is_a_record_held_against_the_full_model(done: tuple[Path, Path]) -> None:
    _, out = done
    full = record(out, "full")
    assert full["score"] >= 0.95 and full["loss_points"] == 0 and full["flops_speedup"] == pytest.approx(1.0)
    assert record(out, "words")["score"] > 0.5 and "flops_speedup" not in record(out, "words")
    for method in METHODS[2:]:
        found = record(out, method)
        assert found["kind"] == "study" and found["n"] == 100 and found["split"] == "test" and found["n_train"] == 600
        assert found["score_full"] == full["score"]
        assert found["loss_points"] == pytest.approx(100 * (full["score"] - found["score"]))
        assert found["flops_speedup"] > 1.2, method
        assert found["config"]["data"]["source"] == "data", "no path of this machine"
    assert record(out, "distilled")["flops_speedup"] == pytest.approx(1.5, rel=0.05)  # two layers of three


def test_the_floor_reads_no_more_than_an_encoder() -> None:
    tokenizer = tiny_tokenizer()
    texts: list[Text] = ["the film was good and long", ("the film was good", "the film was long"), "good"]
    whole, pair, short = beginnings(texts, tokenizer, 5)
    assert whole == "the film was" and short == "good"  # two of five are special
    assert isinstance(pair, tuple) and len(" ".join(pair).split()) < 8
    assert beginnings(texts, tokenizer, 64) == texts


def test_dev_chooses_among_models_and_scales(done: tuple[Path, Path]) -> None:
    plan, out = done
    least = record(out, "full")["config"]["dev_score"] - 0.01
    for method in ("power", "adapler"):
        points = [
            point
            for cell in cells(read_plan(plan))
            if cell.method == method
            for point in json.loads((out / "cells" / cell.name / "cell.json").read_text())["points"]
        ]
        within = [point["flops_speedup"] for point in points if point["score"] > least]
        assert record(out, method)["config"]["dev_flops_speedup"] == max(within)
    assert "penalty" in record(out, "power")["variant"]


def test_what_is_done_is_not_done_again_and_a_study_may_grow(done: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plan, out = done
    before = {file.name: file.stat().st_mtime_ns for file in (out / "results").iterdir()}
    monkeypatch.setattr("adapler.study.run.train", lambda *_: pytest.fail("trained again"))
    run_study(read_plan(plan), out, Silent, lambda line: None)
    assert {file.name: file.stat().st_mtime_ns for file in (out / "results").iterdir()} == before
    listed = CliRunner().invoke(app, ["study", "run", str(plan), "--out", str(out), "--dry-run"]).stdout
    assert listed.count("done") == 7 and "to do" not in listed
    grown = Plan.model_validate({**planted_plan(plan.parent), "seeds": [0, 1]})
    (out / "other").mkdir()
    changed = grown.model_copy(update={"full_epochs": 7})
    with pytest.raises(BadConfig, match="full_epochs"):
        run_study(changed, out, Silent, lambda line: None)
    # Settings that come to a method when some of its cells are done already would make its row one of two recipes.
    late = {**planted_plan(plan.parent), "by_method": {"adapler": {"reduce": {"gamma": 0.5}}}}
    with pytest.raises(BadConfig, match=r"data-adapler-0.*reduce\.gamma: .* -> 0\.5"):
        run_study(Plan.model_validate(late), out, Silent, lambda line: None)
    # What a plan leaves out of an older one's settings still holds.
    fewer = {key: value for key, value in planted_plan(plan.parent).items() if key not in ("by_method", "knobs")}
    run_study(Plan.model_validate(fewer), out, Silent, lambda line: None)
    assert {file.name: file.stat().st_mtime_ns for file in (out / "results").iterdir()} == before


def test_a_plan_goes_on_with_another_that_does_not_contradict_it() -> None:
    one = Plan(tasks=("a", "b"), methods=("full", "power"), by_method={"power": {"power": {"epochs": 2}}})
    other = Plan(tasks=("b", "c"), methods=("full", "adapler"), seeds=(0, 1), by_task={"c": {"finetune": {"epochs": 1}}})
    both = joined(one, other, Path("study"))
    assert both.tasks == ("a", "b", "c") and both.methods == ("full", "power", "adapler") and both.seeds == (0, 1)
    assert both.by_method == one.by_method and both.by_task == other.by_task
    few, more = (Plan(tasks=("a",), knobs={"power": {"power.penalty": values}}) for values in ([1e-3], [1e-3, 3e-3]))
    assert joined(few, more, Path("study")).knobs == joined(more, few, Path("study")).knobs == more.knobs
    here, there = (Plan(tasks=("a",), distilled=f"{folder}/half") for folder in ("here", "there"))
    assert joined(here, there, Path("study")).distilled == "there/half"
    with pytest.raises(BadConfig, match="distilled"):
        joined(here, Plan(tasks=("a",), distilled="there/third"), Path("study"))
    with pytest.raises(BadConfig, match=r"by_method\.power"):
        joined(one, Plan(tasks=("a",), methods=("full", "power"), by_method={"power": {"power": {"epochs": 3}}}), Path("s"))


def test_tables_show_every_method_in_three_forms(done: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = done

    def shown(*arguments: str) -> str:
        answer = CliRunner().invoke(app, ["study", "table", str(out), *arguments])
        assert answer.exit_code == 0, answer.output
        return answer.stdout

    for form, row in (("markdown", "| data | AdapLeR | 1 |"), ("latex", "data & AdapLeR & 1 &"), ("html", "<td>AdapLeR</td>")):
        text = shown("--format", form)
        assert row in text and all(name in text for name in ("PoWER-BERT", "TR-BERT", "distilled", "full length"))
    datasets = shown("--datasets").splitlines()[2].split("|")
    assert [cell.strip() for cell in datasets[1:5]] == ["data", "600", "120", "100"]
    assert len(json.loads(shown("--json"))) == len(METHODS)
    refused = CliRunner().invoke(app, ["study", "table", str(tmp_path)])
    assert refused.exit_code == BadInput.exit_code and "adapler study run" in refused.stderr
    assert CliRunner().invoke(app, ["study", "table", str(out), "--format", "word"]).exit_code != 0


def test_curves_and_page_are_drawn_from_every_model_on_test(done: tuple[Path, Path], tmp_path: Path) -> None:
    _, out = done
    for name, start in (("curves.png", b"\x89PNG"), ("curves.svg", b"<?xml")):
        answer = CliRunner().invoke(app, ["study", "curves", str(out), "--out", str(tmp_path / name)])
        assert answer.exit_code == 0, answer.output
        assert (tmp_path / name).read_bytes().startswith(start)
    curves = read_curves(out)
    assert {row["kind"] for row in curves} == {"curve"} and {row["method"] for row in curves} == set(METHODS[3:])
    assert len({row["variant"] for row in curves if row["method"] == "power"}) == 2 and {row["n"] for row in curves} == {100}
    fewer = ["study", "curves", str(out), "--limit", "3", "--out", str(tmp_path / "fewer.png")]
    for again in (True, False):
        before = {file: file.stat().st_mtime_ns for file in (out / "results").glob("curve-*")}
        assert CliRunner().invoke(app, fewer).exit_code == 0
        assert {row["n"] for row in read_curves(out)} == {3}, "all of them on as many texts"
        assert all((file.stat().st_mtime_ns != time) == again for file, time in before.items())
    answer = CliRunner().invoke(app, ["study", "page", str(out), "--out", str(tmp_path / "page.html")])
    assert answer.exit_code == 0, answer.output
    page = (tmp_path / "page.html").read_text()
    assert "<svg" in page and "AdapLeR" in page and "above PoWER-BERT" in page and "http-equiv" in page
    assert (
        CliRunner().invoke(app, ["study", "curves", str(out), "--out", str(tmp_path / "c.doc")]).exit_code == BadInput.exit_code
    )


def test_a_front_and_who_lies_above_whom() -> None:
    def rows(*points: tuple[float, float]) -> list[dict[str, Any]]:
        return [{"flops_speedup": x, "score": y / 100} for x, y in points]

    better, worse = rows((1, 90), (2, 91), (4, 88), (8, 80)), rows((1.5, 89), (4, 85), (16, 60))
    assert [(x, round(y)) for x, y in upper_front(better)] == [(2, 91), (4, 88), (8, 80)]
    assert above(better, worse) == 1.0 and above(worse, better) == 0.0
    assert above(rows((1, 90), (2, 80)), rows((3, 90), (4, 80))) is None
    assert above(rows((1, 90), (4, 88), (8, 80)), rows((4, 85))) == 1.0, "a method of one speed is met at that speed"
    # One that is best where it is fast serves at slower speeds too: above from 1x to 4x, level nowhere, below from 4x to 8x.
    assert above(rows((1, 80), (4, 90), (8, 80)), rows((1, 89), (8, 89.5))) == pytest.approx(2 / 3, abs=0.06)


def test_curves_are_compared_over_the_seeds_both_have() -> None:
    def curve(method: str, seed: int, score: float) -> list[dict[str, Any]]:
        shared = {"task": "sst2", "method": method, "seed": seed}
        return [{**shared, "flops_speedup": speed, "score": score / speed} for speed in (1.0, 2.0)]

    lucky = [*curve("adapler", 0, 0.8), *curve("adapler", 1, 0.95), *curve("power", 0, 0.9)]
    assert contest_table(lucky).rows == [["sst2", "0%", ""]]
    # Of two seeds each counts by itself: the front of both would be that of the luckier one.
    assert contest_table([*lucky, *curve("power", 1, 0.8)]).rows == [["sst2", "50%", ""]]
    fewer = [{**row, "n": 5} for row in curve("power", 0, 0.9)]
    assert contest_table([*curve("adapler", 0, 0.8), *fewer]).rows == [["sst2", "", ""]]


def test_the_clock_runs_every_method_and_estimates_energy(done: tuple[Path, Path]) -> None:
    _, out = done
    asked = ["study", "clock", str(out), "--texts", "40", "--seconds", "1", "--watts", "20"]
    answer = CliRunner().invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    assert all(
        f"| data | {name} |" in answer.stdout for name in ("full length", "distilled", "PoWER-BERT", "TR-BERT", "AdapLeR")
    )
    assert "an estimate from time alone, at 20 W a core" in answer.stdout
    assert answer.stdout.index("| full length |") < answer.stdout.index("| distilled |") < answer.stdout.index("| AdapLeR |")
    records = read_clock(out)
    assert {row["method"] for row in records} == set(METHODS[1:]) and {row["n"] for row in records} == {40}
    for row in records:
        joules = 20 * row["threads"] * 1e6 / row["value"]
        assert row["config"]["kwh_a_million_estimated"] == pytest.approx(joules / 3.6e6)
        assert row["score"] == record(out, row["method"])["score"] and row["repeats"] >= 3
    assert next(row["wall_speedup"] for row in records if row["method"] == "full") == 1.0
    refused = CliRunner().invoke(app, ["study", "clock", str(out.parent)])
    assert refused.exit_code == BadInput.exit_code and "adapler study run" in refused.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["adapler", "magic"]}, "methods"),
        ({"metods": ["full"]}, "known: tasks"),
        ({"distilled": None}, "half-depth"),
        ({"knobs": {"power": {"power.penalti": [1]}}}, "penalty"),
        ({"by_task": {"sst3": {}}}, "sst3"),
        ({"settings": {"reduce": {"gama": 1}}}, "gamma"),
        ({"methods": ["adapler"], "by_method": {}, "knobs": {}}, "needs the method `full`"),
        ({"methods": ["full", "adapler_paper"], "by_method": {}, "knobs": {}}, "the paper has no settings for 'data'"),
        ({"by_method": {"power": {"data": {"train_limit": 9}}}}, "by_method.power sets `data`"),
        ({"knobs": {"power": {"finetune.epochs": [1, 2]}}}, "knobs.power turns `finetune.epochs`"),
        ({"knobs": {"power": {"power.penalty": []}}}, "no values"),
        ({"knobs": {"power": {"power.penalty": [1e-3, 0.001]}}}, "data-power-penalty-0.001-0"),
        ({"tasks": ["data", "other/data"]}, "data-full-0"),
    ],
)
def test_a_wrong_plan_is_told(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump({**planted_plan(tmp_path), **change}))
    with pytest.raises(BadConfig, match=words):
        read_plan(file)
    answer = CliRunner().invoke(app, ["study", "run", str(file), "--out", str(tmp_path / "out")])
    assert answer.exit_code == BadConfig.exit_code and not (tmp_path / "out").exists()


def test_knobs_may_be_words_and_tasks_may_be_paths(tmp_path: Path) -> None:
    turned = {"adapler": {"reduce.divergence": ["inclusive", "exclusive"]}}
    plan = {**planted_plan(tmp_path), "data": None, "tasks": [str(tmp_path / "far" / "data")], "knobs": turned}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    names = [cell.name for cell in cells(read_plan(tmp_path / "plan.yaml"))]
    assert "data-full-0" in names and "data-adapler-divergence-exclusive-0" in names
    assert {cell.config.data.source for cell in cells(read_plan(tmp_path / "plan.yaml"))} == set(plan["tasks"])


def test_texts_that_were_learnt_are_no_test(tmp_path: Path) -> None:
    plan = planted_plan(tmp_path)
    file = next((tmp_path / "data").glob("train.*"))
    (tmp_path / "bare").mkdir()
    shutil.copy(file, tmp_path / "bare")
    for task in (f"data/{file.name}", "bare"):
        with pytest.raises(BadInput, match="test file"):
            run_study(Plan.model_validate({**plan, "tasks": [task]}), tmp_path / "out", Silent, lambda line: None)
    assert not (tmp_path / "out").exists()


def test_a_full_model_trained_as_phase_1_is_phase_1_of_the_others(tmp_path: Path) -> None:
    planted = planted_plan(tmp_path)
    finetune = planted["settings"]["finetune"]
    only = {"methods": ["full", "power"], "knobs": {}, "by_method": {"power": planted["by_method"]["power"]}}
    rates = {"full_epochs": finetune["epochs"], "full_rates": [finetune["lr"]]}
    plan, out = Plan.model_validate(planted | only | rates), tmp_path / "out"
    said: list[str] = []

    class Told(Silent):
        def say(self, line: str) -> None:
            said.append(line)

    for cell in cells(plan):
        run_cell(plan, cell, out, Told())
    full, power = (out / "cells" / cell.name / "run" for cell in cells(plan))
    assert f"phase 1 is that of {full}" in said
    # What it would have learnt by itself is the same to the last bit.
    train(cells(plan)[1].config, tmp_path / "alone", Silent())
    for name in ("finetuned.json", "data.json", *(f"finetuned/{file.name}" for file in (full / "work/finetuned").iterdir())):
        assert (full / "work" / name).read_bytes() == (tmp_path / "alone/work" / name).read_bytes()
    assert (power / "report.json").exists()
    # At another rate it is a model of its own.
    other = plan.model_copy(update={"full_rates": (finetune["lr"] / 2,)})
    run_cell(other, cells(other)[0], tmp_path / "other", Silent())
    assert not (tmp_path / "other" / "cells" / "data-full-0" / "run").exists()


def test_the_papers_settings_are_a_method_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(
        tasks=("mrpc",),
        methods=("full", "adapler", "adapler_paper"),
        settings={
            "finetune": {"epochs": 2},
            "reduce": {"epochs": 3, "settle_epochs": 3},
            "steer": {"target_speedup": 3.0, "settle_from": 1.5},
        },
    )
    _, ours, papers = (cell for cell in cells(plan))
    assert ours.config.steer.target_speedup == 3 and papers.config.steer.target_speedup is None
    assert papers.config.method == "adapler" and papers.config.finetune == ours.config.finetune
    reduce = papers.config.reduce
    assert (reduce.epochs, reduce.settle_epochs, reduce.phi, reduce.start) == (10, 0, 0.05, "pretrained")
    # Its point is the one its thresholds were trained at, wherever dev would rather have it.
    curve = [{"scale": scale, "score": 0.8, "flops_speedup": 1 + scale} for scale in (0.0, 1.0, 1.25)]
    report = {"curve": curve, "kept_scale": 0.8, "metric": "f1", "n_train": 9}
    monkeypatch.setattr("adapler.study.run.train", lambda *_, **__: report)
    for cell, scales in ((ours, [1.0, 1.25]), (papers, [1.25])):
        (tmp_path / "cells" / cell.name).mkdir(parents=True)
        run_cell(plan, cell, tmp_path, Silent())
        points = json.loads((tmp_path / "cells" / cell.name / "cell.json").read_text())["points"]
        assert [point["scale"] for point in points] == scales


def test_latex_escapes_what_it_would_read() -> None:
    assert latex(Table("a_b & c", ["#"], [["$5 {x} ^~\\ 3%"]])).splitlines()[6] == (
        r"\$5 \{x\} \textasciicircum{}\textasciitilde{}\textbackslash{} 3\% \\"
    )


def test_a_study_without_the_full_model_is_refused(tmp_path: Path) -> None:
    plan = Plan.model_validate({**planted_plan(tmp_path), "methods": ["adapler"], "knobs": {}, "by_method": {}})
    with pytest.raises(BadConfig, match="full"):
        run_study(plan, tmp_path / "out", Silent, lambda line: None)
