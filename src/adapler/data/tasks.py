"""Tasks as data: where a dataset lives, its fields, labels and metric, and the settings the paper used for it. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Task:
    """One dataset. `hub` is its id (and configuration) on the Hugging Face hub, where it is there as labelled texts; a local
    folder of splits works as well."""

    name: str
    hub: tuple[str, str | None] | None
    text: str
    pair: str | None = None
    label: str = "label"
    labels: tuple[str, ...] = ()
    metric: str = "accuracy"
    max_length: int = 128
    paper: dict[str, Any] = field(default_factory=dict)
    """The paper's settings as `TrainConfig` names them: appendix tables of hyper-parameters."""


def _paper(
    gamma: float,
    phi: float,
    growth: float,
    *,
    epochs: int = 5,
    lr: float = 2e-5,
    batch: int = 32,
    reduce_epochs: int | None = None,
) -> dict[str, Any]:
    """Phase 3 uses a rate of 3e-5 and, unless said otherwise, as many epochs as fine-tuning; lambda starts at its growth."""
    return {
        "finetune": {"epochs": epochs, "lr": lr, "batch_size": batch, "weight_decay": 0.01, "warmup": 0.06},
        "reduce": {
            "epochs": reduce_epochs or epochs,
            "lr": 3e-5,
            "predictor_lr": 3e-5,
            "threshold_lr": 5e-4,
            "threshold_memory": 0.999,
            "batch_size": batch,
            "gamma": gamma,
            "phi": phi,
            "lambda_base": 10.0 if growth == 3.0 else growth,
            "lambda_growth": growth,
            "start": "pretrained",
            "site": "layer_input",
        },
        "steer": {
            "target_speedup": None,
            "max_loss": 1.0,
            "distill": 0.0,
            "hint": 0.0,
            "scale_low": 1.0,
            "scale_high": 1.0,
        },
    }


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("sst2", ("stanfordnlp/sst2", None), "sentence", labels=("negative", "positive"), max_length=64,
             paper=_paper(5e-3, 5e-4, 10)),
        Task("imdb", ("stanfordnlp/imdb", None), "text", labels=("neg", "pos"), max_length=512,
             paper=_paper(5e-3, 5e-4, 10, batch=16)),
        Task("hatexplain", None, "text", labels=("hatespeech", "normal", "offensive"),
             max_length=72, paper=_paper(5e-2, 2e-2, 50, lr=3e-5)),
        Task("mrpc", ("nyu-mll/glue", "mrpc"), "sentence1", "sentence2", labels=("not_equivalent", "equivalent"), metric="f1",
             paper=_paper(3e-2, 5e-2, 3, reduce_epochs=10)),
        Task("mnli", ("nyu-mll/glue", "mnli"), "premise", "hypothesis", labels=("entailment", "neutral", "contradiction"),
             paper=_paper(5e-3, 5e-4, 50, epochs=3)),
        Task("qnli", ("nyu-mll/glue", "qnli"), "question", "sentence", labels=("entailment", "not_entailment"),
             paper=_paper(5e-3, 1e-4, 10)),
        Task("ag_news", ("fancyzhx/ag_news", None), "text", labels=("World", "Sports", "Business", "Sci/Tech"),
             paper=_paper(1e-1, 1e-1, 10)),
        Task("dbpedia14", ("fancyzhx/dbpedia_14", None), "content",
             labels=("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation",
                     "Building", "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork"),
             paper=_paper(1e-1, 1e-1, 50, epochs=3)),
    )
}  # fmt: skip
