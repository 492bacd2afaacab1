"""What records call the things they are of."""

from __future__ import annotations

import pytest

from adapler.records import model_name


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("minilm", "minilm"),
        ("../shared/weights/gte-small", "gte-small"),
        ("org/encoder", "encoder"),
        ("runs/study/cells/qnli-full-0/model", "qnli-full-0"),
        ("runs/first/model/", "first"),
        ("model", "model"),
    ],
)
def test_a_model_is_called_by_what_it_is_of(model: str, name: str) -> None:
    assert model_name(model) == name
