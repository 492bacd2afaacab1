"""The model card of a reduced classifier, and its way to the hub. Every number in it was measured on the user's own data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from adapler import __version__
from adapler.errors import BadModel
from adapler.folder import report_beside
from adapler.safefile import reason

if TYPE_CHECKING:
    from adapler.classifier import Classifier

CARD = "README.md"

_TEMPLATE = """\
---
library_name: transformers
pipeline_tag: text-classification
tags: [text-classification, token-pruning, adapler]
{% if base %}base_model: {{ base | tojson }}
{% endif %}---

# {{ title }}

A text classifier ({{ labels | join(", ") }}) that leaves out tokens that do not matter, layer by layer, differently for
every text; made with [adapler](https://pypi.org/project/adapler/) {{ version }}.
{% if account %}
{{ account }}
{% endif %}{% if splits %}
| split | texts | {{ metric }}, full length | {{ metric }}, reduced | points lost | times fewer FLOPs |
|---|---|---|---|---|---|
{% for name, split in splits.items() -%}
| {{ name }} | {{ split.n }} | {{ "%.2f" | format(100 * split.score_full) }} | {{ "%.2f" | format(100 * split.score) }} | \
{{ "%.2f" | format(split.loss_points) }} | {{ "%.2f" | format(split.flops_speedup) }} |
{% endfor %}
Full length is the fine-tuned model it was made from. FLOPs are those of matrix products, without padding, the work of
choosing tokens included.
{% endif %}{% if points %}
## Operating points

Measured on {{ dial.n }} texts ({{ dial.data }}), losses against {{ dial.reference }}. Choose without retraining:
`Classifier.from_pretrained(path, point="...")`, `max_loss=` or `speedup=`.

| point | {{ dial.metric }} | points lost | times fewer FLOPs |{% if speeds %} texts a second |{% endif %}

|---|---|---|---|{% if speeds %}---|{% endif %}

{% for point in points -%}
| {{ point.name }} | {{ "%.2f" | format(100 * point.score) }} | {{ "%.2f" | format(point.loss_points) }} | \
{{ "%.2f" | format(point.flops_speedup) }} |{% if speeds %} {{ speeds[point.name] }} |{% endif %}

{% endfor -%}
{% if speeds %}
Speeds: {{ runtime }}, {{ threads }} threads, {{ machine }}.
{% endif %}{% endif %}
## Use

```python
{{ use }}
```
"""

_PLAIN = """\
from adapler import Classifier

classifier = Classifier.from_pretrained("{name}")     # reduced
classifier("a text")

# At full length, without adapler: transformers.AutoModelForSequenceClassification.from_pretrained("{name}")"""

_REDUCED = """\
import adapler.auto                                    # lets transformers know the model type
from transformers import pipeline

pipeline("text-classification", model="{name}", truncation=True)("a text")"""


def model_card(classifier: Classifier, name: str, *, reduced: bool = False) -> str:
    """A card in Markdown; `reduced` says in which format the folder is written."""
    report: dict[str, Any] = (None if classifier.folder is None else report_beside(classifier.folder)) or {}
    dial, diagnosis = classifier.dial, classifier.diagnosis
    speeds = {}
    if dial is not None and diagnosis is not None:
        speeds = {name: f"{cost.texts_per_second:.0f}" for name, cost in diagnosis.points.items()}
    base = report.get("config", {}).get("model")
    environment = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)
    return environment.from_string(_TEMPLATE).render(
        title=name.rsplit("/", 1)[-1],
        labels=classifier.labels,
        version=__version__,
        base=base if base and not Path(base).exists() else None,
        account=report.get("account"),
        metric=report.get("metric"),
        splits=report.get("splits"),
        dial=dial,
        points=[] if dial is None else dial.points,
        speeds=speeds if dial is not None and all(point.name in speeds for point in dial.points) else {},
        runtime=classifier.runtime.name,
        threads=None if diagnosis is None else diagnosis.threads,
        machine=None if diagnosis is None else diagnosis.machine,
        use=(_REDUCED if reduced else _PLAIN).format(name=name),
    )


def push(
    classifier: Classifier,
    repo_id: str,
    *,
    format: str,  # noqa: A002 (what users write)
    private: bool,
    message: str,
) -> str:
    """Write the model and its card into a folder of their own and upload that; returns the address."""
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        classifier.save_pretrained(folder, format=format)
        card = model_card(classifier, repo_id, reduced=format == "reduced")
        (folder / CARD).write_text(card, encoding="utf-8")
        try:
            api = HfApi()
            api.create_repo(repo_id, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message))
        except Exception as error:  # no network, no token, no right: each layer below has classes of its own
            raise BadModel(
                f"the hub did not take the model as {repo_id!r} ({reason(error)[:200]}). Log in with `hf auth login`, and "
                f"check the name; save_pretrained writes the same folder here"
            ) from error
