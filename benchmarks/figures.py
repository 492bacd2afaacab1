"""Figures of the docs: soft removal (the paper's Figure 2), the study's curves (Figure 3), texts through the layers (Figure 4).

    python -m benchmarks.figures soft-removal
    python -m benchmarks.figures curves
    python -m benchmarks.figures layers runs/ag_news --data PATH/TO/ag_news --count 3

All write below docs/figures; the same input gives the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from adapler.report.plot import check_figure, new_figure, save_figure

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
STEEPNESS = (3.0, 9.0, 27.0, 81.0)
DELTA = 0.25
COLOURS = ("#56B4E9", "#0072B2", "#D55E00", "#000000")
"""Of Okabe and Ito's, which the colour-blind tell apart; every line has its own stroke as well."""
STROKES = ("-", "--", "-.", ":")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command("soft-removal")
def soft_removal_figure(
    out: Annotated[Path, typer.Option(help="Figure to write: .svg, .png or .pdf.")] = FIGURES / "soft-removal.svg",
) -> None:
    """How much of a token is left by its score, for growing lambda: ever more like a step at the threshold."""
    check_figure(out)
    figure = new_figure(7.2, 2.9, layout="constrained")
    score, curves = soft_removal_curves()
    weights = {steepness: np.exp(curve) for steepness, curve in curves.items()}
    _panel(figure.add_subplot(1, 2, 1), score, curves, "added to attention scores")
    _panel(figure.add_subplot(1, 2, 2), score, weights, "weight left")
    figure.axes[0].set_ylim(-10, 0.5)
    save_figure(figure, out)
    typer.echo(str(out))


def soft_removal_curves() -> tuple[Any, dict[float, Any]]:
    """Scores from 0 to 1, and the log-weight that training gives each at DELTA, by lambda. Computed by the method itself."""
    import torch

    from adapler.methods.adapler import soft_removal
    from adapler.methods.settings import AdapLeRSettings

    score = torch.linspace(0, 1, 801, dtype=torch.float64)
    threshold, beta = torch.tensor(DELTA, dtype=torch.float64), AdapLeRSettings().beta
    return score.numpy(), {each: soft_removal(score, threshold, each, beta).numpy() for each in STEEPNESS}


def _panel(axes: Any, score: Any, curves: dict[float, Any], ylabel: str) -> None:
    for (steepness, values), colour, stroke in zip(curves.items(), COLOURS, STROKES, strict=True):
        axes.plot(score, values, color=colour, linestyle=stroke, linewidth=1.4, label=f"λ = {steepness:g}")
    axes.axvline(DELTA, color="#999999", linewidth=0.8)
    axes.annotate(
        f"δ = {DELTA:g}", (DELTA, 0.04), xycoords=("data", "axes fraction"), xytext=(4, 0), textcoords="offset points"
    )
    axes.set_xlabel("contribution score")
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8, loc="lower right")


@app.command()
def curves(
    out: Annotated[Path, typer.Option(help="Figure to write: .svg, .png or .pdf.")] = FIGURES / "study-curves.svg",
) -> None:
    """Score against speed in the study, from the records in benchmarks/results."""
    from adapler.study.curves import draw
    from benchmarks.measured import read, study_curves
    from benchmarks.study_tables import backbone_of

    records, found = read("study-*.json"), study_curves()
    if not found:
        raise typer.BadParameter(
            "no curve is in benchmarks/results yet: adapler study curves, then copy its curve-*.json there"
        )
    draw(found, [record for record in records if backbone_of(records, record) == "minilm"], out)
    typer.echo(str(out))


@app.command()
def agreement(
    out: Annotated[Path, typer.Option(help="Folder.")] = FIGURES,
) -> None:
    """Agreement with human rationales by layer, a figure a task, from the records in benchmarks/results: as trained, the
    first seed's."""
    from adapler.report.agreement import draw
    from benchmarks.measured import read

    records = read("agreement-*.json")
    for task in dict.fromkeys(record["task"] for record in records):
        own = [record for record in records if record["task"] == task and "scale" not in record["config"]]
        path = out / f"agreement-{task}.svg"
        draw([record for record in own if record.get("seed") == own[0].get("seed")], path)
        typer.echo(str(path))


@app.command()
def layers(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A reduced model's folder.")],
    data: Annotated[str, typer.Option(help="Named task, folder of splits, or labelled file.")],
    split: Annotated[str, typer.Option(help="Split of a folder or task.")] = "dev",
    first: Annotated[int, typer.Option(min=0, help="Row of the first text, from 0.")] = 0,
    count: Annotated[int, typer.Option(min=1, help="How many texts.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Folder.  [default: docs/figures]")] = None,
    ending: Annotated[str, typer.Option(help="svg, png or pdf.")] = "svg",
) -> None:
    """Texts through every layer, an image each: layers-TASK-ROW."""
    from adapler.classifier import Classifier
    from adapler.config import build_config
    from adapler.data.load import read_split

    classifier = Classifier.from_pretrained(model, point="trained")
    examples, _ = read_split(build_config({"data": {"source": data}}).data, split, classifier.labels)
    name = Path(data).name.split(".")[0]
    for row, explanation in enumerate(classifier.explain(examples.texts[first : first + count]), start=first):
        path = (out or FIGURES) / f"layers-{name}-{row}.{ending}"
        explanation.save(path)
        typer.echo(f"{path} gold {classifier.labels[examples.numbers[row]]}")


if __name__ == "__main__":
    app()
