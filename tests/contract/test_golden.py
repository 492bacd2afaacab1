"""The referee: numbers that the authors' own TensorFlow code produced. `--golden DIR` checks another set of the same format.

Each check is a function of the golden set; a set remembers which of its keys were read, and the last test fails on any
that no check used. Tolerances are those of the table in the set's README.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification

from adapler import cost
from adapler.backbones import view
from adapler.backbones.base import Backbone
from adapler.data.rationales import RationaleOnly, RationaleWindow, SpecialIds, chunk_windows, rationale_only
from adapler.engine import Want, encode
from adapler.evaluation.rollout import rollout
from adapler.layout import packed, padded
from adapler.methods.adapler import AdapLeR, ContributionPredictor, soft_removal
from adapler.methods.adapler_losses import (
    Losses,
    clipped_kl,
    contribution_loss_per_text,
    contribution_losses,
    contribution_target,
    length_loss,
    objective,
    threshold_gradients,
    weighted_contribution_loss,
)
from adapler.methods.losses import label_loss
from adapler.methods.settings import AdapLeRSettings
from adapler.tokens import Tokens, Trace
from adapler.training import optim
from adapler.training.saliency import gradient_times_input, saliency
from adapler.training.schedule import authors_lambda, learning_rate_factor
from adapler.training.selection import Selection, best_epochs

INFORMATIONAL = {"provenance", "config", "key_index", "float_noise", "graph_vs_eager_abs_diff_lambda100"}
"""Top-level JSON keys that describe the set instead of stating a result."""
NO_GRADIENT = ("dense_out.bias", "key.bias")
"""True gradient 0; excluded by the set's README because Adam turns their rounding noise into full-size steps."""


class Golden:
    """A golden set that remembers what was read from it."""

    def __init__(self, folder: Path) -> None:
        self.arrays = np.load(folder / "golden.npz")
        self.json: dict[str, Any] = json.loads((folder / "golden.json").read_text())
        self.used: set[str] = set()
        self.checked: set[str] = set()
        self.config = self.json["config"]
        self.layers = self.config["num_layers"]
        self.tags = list(self.json["per_lambda"])

    def __getitem__(self, key: str) -> Tensor:
        self.used.add(key)
        return torch.from_numpy(np.array(self.arrays[key]))

    def section(self, name: str) -> Any:
        self.used.add(name)
        return self.json[name]

    def under(self, prefix: str) -> Iterator[str]:
        return (key[len(prefix) :] for key in self.json["key_index"] if key.startswith(prefix))

    def lam(self, tag: str) -> float:
        return float(self.json["per_lambda"][tag]["lambda"])

    def model(self) -> tuple[Backbone, AdapLeR]:
        """The set's classifier and reducer, rebuilt from its arrays."""
        state = {name: self["w/" + name] for name in self.under("w/")}
        config = BertConfig(
            vocab_size=self.config["vocab"],
            hidden_size=self.config["hidden"],
            num_hidden_layers=self.layers,
            num_attention_heads=self.config["heads"],
            intermediate_size=self.config["inter"],
            max_position_embeddings=self.config["maxpos"],
            type_vocab_size=state["bert.embeddings.token_type_embeddings.weight"].shape[0],
            layer_norm_eps=self.config["layer_norm_eps"],
            num_labels=self.config["labels"],
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model = BertForSequenceClassification(config)
        model.load_state_dict(state, strict=True)
        backbone = view(model.eval())
        width = self["cp/0.dense_in.weight"].shape[0]
        reducer = AdapLeR(AdapLeRSettings(width=width), backbone.hidden_size, self.layers, backbone.activation)
        predictors = {name: self["cp/" + name] for name in self.under("cp/")}
        reducer.predictors.load_state_dict(predictors, strict=True)
        with torch.no_grad():
            reducer.eta.copy_(self["in/eta"])
            reducer.theta.copy_(self["in/theta"])
        return backbone, reducer

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """ids, types, mask, labels as int64."""
        names = ("input_ids", "token_type_ids", "attention_mask", "labels")
        return tuple(self["in/" + name].long() for name in names)  # type: ignore[return-value]

    def rows(self, backbone: Backbone, chosen: list[int] | None = None) -> tuple[Tokens, Tensor, Tensor]:
        """Embedded tokens in rows, labels, saliencies; of all texts or of the chosen."""
        ids, types, mask, labels = self.inputs()
        index = torch.arange(len(labels)) if chosen is None else torch.tensor(chosen)
        position = torch.arange(ids.shape[1]).expand_as(ids)[index]
        tokens = padded(position, mask[index], backbone.embed(ids[index], types[index], position))
        return tokens, labels[index], self["in/saliencies"][index]


def close(actual: Tensor | float, expected: Tensor | float, *, atol: float = 0.0, rtol: float = 0.0, what: str = "") -> None:
    torch.testing.assert_close(
        torch.as_tensor(actual, dtype=torch.float64).detach(),
        torch.as_tensor(expected, dtype=torch.float64),
        atol=atol,
        rtol=rtol,
        msg=lambda message: f"{what}: {message}",
    )


def close_to_largest(actual: Tensor, expected: Tensor, share: float, what: str, floor: float = 1e-9) -> None:
    """Largest error at most `share` of the largest value."""
    close(actual, expected, atol=share * float(expected.abs().max()) + floor, what=what)


def check_soft_forward(golden: Golden) -> None:
    backbone, reducer = golden.model()
    for tag in golden.tags:
        prefix = f"soft/lam{tag}/"
        tokens, _, _ = golden.rows(backbone)
        logits, trace = encode(backbone, tokens, reducer, soft=golden.lam(tag), want=Want(hidden=True))
        steps = trace.steps
        got = {
            "cp_scores": torch.stack([step.decision.score for step in steps]),
            "survival_in": _without_first(torch.stack([step.weight for step in steps])),
            "survival_out_last": _without_first(steps[-1].weight_after),
            "delta": torch.stack([step.decision.threshold.squeeze(-1) for step in steps]),
            "lengths": torch.stack(trace.lengths),
            "logits": logits,
            "cls_hidden": torch.stack(trace.hidden)[:, :, 0],
            "hidden": torch.stack(trace.hidden),
            "soft_removal_raw": torch.stack([_log_weight(step.decision.log_weight) for step in steps]),
            "attn_mask": torch.stack([step.log_weight_after for step in steps]),
        }
        real = golden["in/attention_mask"].bool()
        for name in golden.under(prefix):
            expected = golden[prefix + name]
            if name == "hidden":  # padding's own vectors are read by nobody
                close(got[name][:, real], expected[:, real], atol=5e-4, what=prefix + name)
            elif name in ("soft_removal_raw", "attn_mask"):
                shallow = expected > -30
                close(got[name][shallow], expected[shallow], rtol=1e-3, atol=1e-6, what=prefix + name)
                assert (got[name][~shallow] <= -20).all(), prefix + name
            else:
                close(got[name], expected, atol=1e-3 if name == "lengths" else 5e-4, what=prefix + name)


def check_losses(golden: Golden) -> None:
    backbone, reducer = golden.model()
    for tag in golden.tags:
        tokens, labels, stored = golden.rows(backbone)
        logits, trace = encode(backbone, tokens, reducer, soft=golden.lam(tag))
        prefix, scalars = f"loss/lam{tag}/", golden.section("per_lambda")[tag]
        for layer, step in enumerate(trace.steps):
            theta = reducer.theta[layer - 1] if layer else None
            kl, left = contribution_loss_per_text(reducer, step, stored)
            close(contribution_target(step, stored, theta), golden[prefix + "kl_target"][layer], atol=5e-4)
            close(kl, golden[prefix + "kl_per_example"][layer], rtol=1e-3, atol=1e-3)
            close(left, golden[prefix + "kl_example_weight"][layer], atol=5e-4)
        close(contribution_losses(reducer, trace, stored), golden[prefix + "kl_per_layer"], rtol=1e-4, atol=5e-5)
        for weights, expected in ((None, scalars), (scalars["class_weighted"]["class_weights"], scalars["class_weighted"])):
            losses = _losses(golden, reducer, logits, trace, labels, stored, weights)
            names = {"ce": losses.label, "kl_weighted_sum": losses.contribution, "total_loss": losses.total}
            names |= {"length_loss": losses.length, "combined_loss": losses.combined}
            for name in names.keys() & expected.keys():
                close(names[name], expected[name], rtol=1e-4, atol=1e-5, what=f"{tag} {name}")
        margins = [
            ((step.decision.score - step.decision.threshold).abs() / step.decision.threshold)[
                (step.weight > 1e-6) & ~step.protected
            ].min()
            for step in trace.steps
        ]
        close(min(margins), scalars["min_relative_margin_score_vs_delta"], rtol=0.05, atol=1e-3, what=f"{tag} margin")


def check_gradients(golden: Golden) -> None:
    for tag in golden.tags:
        backbone, reducer = golden.model()
        named = optim.weight_parameters(backbone.model, reducer)
        tokens, labels, stored = golden.rows(backbone)
        logits, trace = encode(backbone, tokens, reducer, soft=golden.lam(tag))
        losses = _losses(golden, reducer, logits, trace, labels, stored)
        prefix, scalars = f"grad/lam{tag}/", golden.section("per_lambda")[tag]

        for part, loss in (("ce_only/", losses.label), ("length_only/", losses.length), ("", losses.combined)):
            eta, theta = threshold_gradients(reducer, trace, loss)
            dummy = theta * (reducer.theta.detach() + 1e-7)
            close_to_largest(eta, golden[prefix + part + "eta"], 1e-2, prefix + part + "eta")
            name = "theta_dummy" if part else "theta_dummy_before_division"
            close_to_largest(dummy, golden[prefix + part + name], 1e-2, prefix + part + name)
        close_to_largest(theta, golden[prefix + "theta_after_division"], 1e-2, prefix + "theta_after_division")
        close(torch.cat([eta, theta]).norm(), scalars["zeta_grad_global_norm"], rtol=1e-2, atol=1e-9)

        for losses_of, expected in (
            (losses.label, scalars["norm_dCE_d_cp_dense_in_weight_per_layer"]),
            (losses.contribution, scalars["norm_dKLweighted_d_cp_dense_in_weight_per_layer"]),
        ):
            dense = [_predictor(reducer, layer).dense_in.weight for layer in range(golden.layers)]
            norms = torch.stack([g.norm() for g in torch.autograd.grad(losses_of, dense, retain_graph=True)])
            close_to_largest(norms, torch.tensor(expected), 1e-2, f"{tag} predictor gradient norms")

        optim.backward(reducer, trace, losses, named.values())
        close_to_largest(_grad(reducer.eta), golden[prefix + "eta"], 1e-2, prefix + "eta by backward")
        for name in golden.under(prefix):
            if "/" in name or name.startswith(("eta", "theta")):
                continue
            got, expected = _grad(named[_ours(name)]), golden[prefix + name]
            if name.endswith(NO_GRADIENT):
                assert float(got.abs().max()) < 1e-3, name
            else:
                close_to_largest(got, expected, 1e-2, prefix + name)
        for name, norm in scalars["grad_norms"].items():
            if not name.endswith(NO_GRADIENT):
                close(_grad(named[_ours(name)]).norm(), norm, rtol=2e-2, atol=1e-6, what=f"{tag} norm of {name}")
        total = math.sqrt(sum(float(_grad(p).norm()) ** 2 for p in named.values()))
        close(total, scalars["grad_global_norm_dense"], rtol=1e-2)
        close(total, scalars["grad_global_norm_tf_sparse_quirk"], rtol=2e-2)


def check_hard_forward(golden: Golden) -> None:
    """One text at a time, and all texts packed together."""
    backbone, reducer = golden.model()
    ids, types, mask, _ = golden.inputs()
    batches = [[b] for b in range(len(ids))] + [list(range(len(ids)))]
    for chosen in batches:
        counts = mask[chosen].sum(1)
        real = mask[chosen].bool()
        position = torch.arange(ids.shape[1]).expand_as(real)[real]
        tokens = packed(position, counts, backbone.embed(ids[chosen][real], types[chosen][real], position))
        with torch.no_grad():
            logits, trace = encode(backbone, tokens, reducer)
        close(logits, golden["hard/logits"][chosen], atol=5e-5)
        lengths = torch.stack(trace.lengths, dim=1)
        assert torch.equal(lengths.int(), golden["hard/n_tokens"][chosen])
        assert lengths.int().tolist() == [golden.section("hard")["n_tokens"][b] for b in chosen]
        close(lengths, torch.tensor([golden.section("hard")["lengths_soft_1e20"][b] for b in chosen]), atol=1e-3)
        margins = []
        for layer, (text, place) in enumerate(trace.kept):
            step = trace.at(layer)
            for row, b in enumerate(chosen):
                expected = golden["hard/kept_positions"][b, layer]
                assert place[text == row].tolist() == expected[expected >= 0].tolist()
                scores = torch.zeros(ids.shape[1])
                of_text = step.layout.kept(_as_tokens(step))[0] == row
                scores[step.position[of_text]] = step.decision.score[of_text]
                close(scores, golden["hard/cp_scores"][b, layer], atol=5e-5)
            margins.append(
                ((step.decision.score - step.decision.threshold).abs() / step.decision.threshold)[~step.protected].min()
            )
        if len(chosen) == len(ids):
            close(min(margins), golden.section("hard")["min_relative_margin_score_vs_delta"], rtol=0.05, atol=1e-4)
    rows, _, _ = golden.rows(backbone)
    with torch.no_grad():
        steep, _ = encode(backbone, rows, reducer, soft=1e20)
    assert float((steep - golden["hard/logits"]).abs().max()) < 5e-5


def check_flops(golden: Golden) -> None:
    backbone, reducer = golden.model()
    tokens, labels, _ = golden.rows(backbone)
    with torch.no_grad():
        logits, trace = encode(backbone, tokens, reducer)
    scores = [[step.decision.score[b].tolist() for step in trace.steps] for b in range(len(labels))]
    lengths = [cost.authors_lengths(per_layer, float(reducer.eta[-1].detach())) for per_layer in scores]
    assert lengths == golden["eval/lengths13"].tolist()
    evaluated = golden.section("eval")
    predictions = logits.argmax(-1).tolist()
    used = max(predictions) + 1
    assert used == evaluated["num_labels_used"] and len(labels) == evaluated["count"]
    close(
        sum(p == y for p, y in zip(predictions, labels.tolist(), strict=True)) / len(labels), evaluated["accuracy"], atol=1e-9
    )
    assert [cost.authors_full_flops(row[0], used) for row in lengths] == evaluated["flops_bert"]
    assert [cost.authors_reduced_flops(row[1:], used) for row in lengths] == evaluated["flops_adapler"]
    close(cost.authors_speedup(lengths, predictions), evaluated["speedup_total"], rtol=1e-12)
    assert [row[-1] for row in lengths] == evaluated["last_layer_length_as_coded"]
    true_last = trace.lengths[-1].int().tolist()
    assert true_last == evaluated["last_layer_length_true"]
    corrected = [[*row[:-1], last] for row, last in zip(lengths, true_last, strict=True)]
    assert [cost.authors_reduced_flops(r[1:], used) for r in corrected] == evaluated["flops_adapler_with_true_last_layer"]
    close(cost.authors_speedup(corrected, predictions), evaluated["speedup_total_with_true_last_layer_length"], rtol=1e-12)
    tables = golden.section("flops")
    for row in tables["bert"]:
        assert cost.authors_full_flops(row["n"], row["labels"]) == row["flops"]
    for row in tables["adapler"]:
        flops = cost.authors_reduced_flops(row["layers_n"], row["labels"])
        assert flops == row["flops"]
        ratio = cost.authors_full_flops(row["layers_n"][0], row["labels"]) / flops
        close(ratio, row["speedup_vs_bert_at_n_equal_first"], rtol=1e-9)


def check_saliency_and_rollout(golden: Golden) -> None:
    backbone, _ = golden.model()
    tokens, labels, _ = golden.rows(backbone)
    product, logits = gradient_times_input(backbone, tokens, labels)
    real = golden["in/attention_mask"].bool()
    close(logits, golden["saliency/logits"], atol=5e-5)
    close(logits, golden["plain/logits"], atol=5e-5)
    assert golden.section("saliency")["max_abs_logit_diff_adapler_disabled_vs_stock_bert"] < 5e-5
    found = saliency(backbone, tokens, labels)
    close_to_largest(found, golden["saliency/L2"], 1e-4, "saliency")
    close_to_largest(product.sum(-1) * real, golden["saliency/mean"], 1e-4, "signed saliency")
    spread = torch.stack([(row - row[on].mean()) / row[on].std(correction=0) for row, on in zip(found, real, strict=True)])
    close_to_largest(spread, golden["saliency/L2_znorm"], 1e-3, "standardised over real tokens")
    low, high = found.min(1, keepdim=True).values, found.max(1, keepdim=True).values
    close_to_largest((found - low) / (high - low), golden["saliency/L2_minmax"], 1e-4, "scaled over the whole row")

    with torch.no_grad():
        _, trace = encode(backbone, tokens, want=Want(attentions=True))
    for name in golden.under("rollout/"):
        b, kind = name.split("/")
        n = int(real[int(b)].sum())
        mean = torch.stack([layer[int(b)].mean(0)[:n, :n] for layer in trace.attentions])
        got = mean if kind == "raw_mean_attention" else rollout(mean)
        close(got, golden["rollout/" + name], atol=5e-5, what=name)


def check_unit_tables(golden: Golden) -> None:
    x, delta, value = (golden[f"unit/soft_removal/{name}"] for name in ("x", "delta", "value"))
    for i, lam in enumerate(golden["unit/soft_removal/lambda"].tolist()):
        got = soft_removal(x[None, :], delta[:, None], lam, beta=0.1)
        shallow = value[i] > -30
        close(got[shallow], value[i][shallow], rtol=1e-3, atol=1e-6, what=f"soft removal at lambda {lam}")
        assert (got[~shallow] <= -20).all()
    target, pred = (golden[f"unit/kl/{name}"].clone().requires_grad_() for name in ("target", "pred"))
    kl = clipped_kl(target, pred).sum(-1)
    close(kl, golden["unit/kl/value"], rtol=1e-4, atol=1e-6)
    kl.sum().backward()
    for tensor, name in ((target, "target"), (pred, "pred")):
        inside = tensor.detach() != 1.0  # the README: on the bound itself frameworks differ, with no practical effect
        close(_grad(tensor)[inside], golden[f"unit/kl/grad_{name}"][inside], rtol=1e-4, atol=1e-5, what=f"kl gradient {name}")


def check_one_step(golden: Golden) -> None:
    settings = {"nowarmup": (5e-4, 0.0), "warmup": (5e-4, 3.0), "lr0.5": (0.5, 0.0), "main_lr0.05": (5e-4, 0.0)}
    for name, (lr, warmup) in settings.items():
        run = Loop(golden, main_lr=0.05 if name == "main_lr0.05" else 3e-5, threshold_lr=lr, total=50, warmup=warmup)
        before = {key: value.detach().clone() for key, value in run.named.items()}
        run.step(100.0, list(range(len(golden["in/labels"]))))
        prefix = f"optim/one_step_{name}/"
        if name != "main_lr0.05":
            close(run.reducer.eta, golden[prefix + "eta"], atol=1e-5, what=prefix + "eta")
            close(run.reducer.theta, golden[prefix + "theta"], atol=1e-5, what=prefix + "theta")
            if name == "warmup":
                change = max(float((value.detach() - before[key]).abs().max()) for key, value in run.named.items())
                assert change == golden.section("optim")["one_step_warmup_max_weight_change"]
            continue
        compared = 0
        for key in golden.under(prefix):
            parameter, expected = run.named[_ours(key)].detach(), golden[prefix + key]
            # The first Adam step is a sign: where there is no gradient it is the sign of rounding.
            sure = run.raw[_ours(key)].abs() > 1e-4
            unseen = run.raw[_ours(key)] == 0
            chosen = sure | unseen if "word_embeddings" in key else sure
            if "word_embeddings" in key:
                chosen[0] = False  # PAD
            close(parameter[chosen], expected[chosen], atol=5e-6, what=prefix + key)
            compared += int(chosen.sum())
        assert compared > 1000
    decays, plain = (golden.section("optim")[f"{kind}_parameters"] for kind in ("decayed", "not_decayed"))
    assert all(optim.decayed(_ours(name)) for name in decays) and not any(optim.decayed(_ours(name)) for name in plain)
    assert {_ours(name) for name in [*decays, *plain]} == set(run.named)


def check_trajectories(golden: Golden) -> None:
    for name, described in golden.section("optim").items():
        if not name.startswith("traj"):
            continue
        run = Loop(
            golden,
            main_lr=described["lr"],
            threshold_lr=described["zeta_lr"],
            total=described["T"],
            warmup=described["warmup"],
            accumulate=described["accum_steps"],
        )
        start = {key: value.detach().clone() for key, value in run.named.items()}
        for row in described["rows"]:
            lam = authors_lambda(row["step"], described["steps_per_epoch"], described["epochs"])
            assert lam == pytest.approx(row["lambda_used"])
            losses = run.step(lam, described["batch_rows"][row["batch"]])
            where = f"{name} step {row['step']}"
            for key, value in zip(
                ("ce", "total_loss", "combined_loss"), (losses.label, losses.total, losses.combined), strict=True
            ):
                close(value, row[key], atol=1e-3, what=f"{where} {key}")
            # The sums of dozens of terms these two are: the table's tolerance, relative to their size.
            close(losses.contribution, row["kl_weighted_sum"], rtol=1e-3, what=f"{where} contribution")
            close(losses.length, row["length_loss"], rtol=1e-3, what=f"{where} length")
            close(run.reducer.eta, golden[f"optim/{name}/eta"][row["step"]], atol=1e-5, what=f"{where} eta")
            close(run.reducer.theta, golden[f"optim/{name}/theta"][row["step"]], atol=1e-5, what=f"{where} theta")
        for key in golden.under(f"optim/{name}/final/"):
            got, expected = run.named[_ours(key)].detach(), golden[f"optim/{name}/final/{key}"]
            if "word_embeddings" in key:
                got, expected = got[1:], expected[1:]
            if not key.endswith(NO_GRADIENT):
                close(got, expected, atol=5e-6, what=f"{name} final {key}")
        for key, norm in described["final_delta_norm"].items():
            if not key.endswith(NO_GRADIENT) and "word_embeddings" not in key:
                close((run.named[_ours(key)].detach() - start[_ours(key)]).norm(), norm, rtol=5e-2, atol=2e-5, what=key)


def check_schedules(golden: Golden) -> None:
    for described in golden.section("optim")["schedule"].values():
        for peak, name in ((3e-5, "main"), (5e-4, "zeta")):
            for step, rate in enumerate(described[name]):
                factor = learning_rate_factor(step, described["num_train_steps"], described["num_warmup_steps"])
                close(peak * factor, rate, rtol=1e-5, atol=1e-12, what=f"{name} step {step}")
    for name, values in golden.section("lambda_schedule_as_coded").items():
        epochs, per_epoch = (int("".join(filter(str.isdigit, part))) for part in name.split("_steps_per_"))
        assert [authors_lambda(step, per_epoch, epochs) for step in range(len(values))] == pytest.approx(values)
    classes = golden.section("optim")["classes"]
    assert classes["main_weight_decay"] == 0.01 and tuple(classes["exclude"]) == optim.NOT_DECAYED


def check_selection(golden: Golden) -> None:
    for case in golden.section("selection"):
        selection = Selection(case["best_finetune_score"])
        assert selection.threshold == pytest.approx(case["threshold"])
        assert [selection.offer(*pair) for pair in case["sequence_score_speedup"]] == case["saved"]
    for case in golden.section("best_epochs"):
        assert [epoch + 1 for epoch in best_epochs(case["scores"])] == case["saliency_epochs_1based"]
        assert best_epochs(case["scores"], len(case["scores"])) == case["order_worst_to_best_0based"]
        assert max(case["scores"]) == case["best_score"]


def check_ties(golden: Golden) -> None:
    """Uniform scores at eta 1: score and threshold are equal to the last bit. Ties stay, hard and soft, whatever n."""
    backbone, reducer = golden.model()
    with torch.no_grad():
        reducer.eta.fill_(1.0)
        for layer in range(golden.layers):
            _predictor(reducer, layer).dense_out.weight.zero_()
    for case in golden.section("edge_uniform_eta1"):
        n = case["n"]
        ids = torch.arange(3, 3 + n) % golden.config["vocab"]
        position = torch.arange(n)
        x = backbone.embed(ids, torch.zeros_like(ids), position)
        with torch.no_grad():
            _, hard = encode(backbone, packed(position, torch.tensor([n]), x), reducer)
            _, soft = encode(backbone, padded(position[None], torch.ones(1, n), x[None]), reducer, soft=1e20)
        for trace in (hard, soft):
            assert [float(length) for length in trace.lengths] == [n] * golden.layers
        assert case["soft_1e20_lengths"] == [n] * golden.layers
        if case["power_of_two"]:
            assert case["hard_lengths"] == [n] * golden.layers


def check_rationale_windows(golden: Golden) -> None:
    described = golden.section("rationale_windows")
    special = SpecialIds(cls=101, sep=102, pad=0)

    def tokenize(word: str) -> list[int]:
        return [200 + sum(map(ord, word[i : i + 3])) % 97 for i in range(0, len(word), 3)]

    windows: list[RationaleWindow] = []
    only: list[RationaleOnly] = []
    for number, example in enumerate(described["examples"]):
        parts = (example["text"], example["rationale"], example["label"])
        windows += chunk_windows(*parts, number, tokenize, special, described["max_length"])
        cut = rationale_only(*parts, tokenize, special, described["max_length"])
        only += [cut] if cut else []
    assert [vars(window) for window in windows] == described["movies_to_features"]
    assert [vars(cut) for cut in only] == described["only_rationales_to_features"]


def check_set_describes_itself(golden: Golden) -> None:
    """The descriptive parts: shapes as indexed, and the noise the authors' own numbers carry inside our tolerances."""
    for key, entry in golden.section("key_index").items():
        assert list(golden.arrays[key].shape) == entry["shape"], key
    assert max(golden.section("graph_vs_eager_abs_diff_lambda100").values()) < 1e-3
    noise = golden.section("float_noise").get("hard logits", {})
    assert noise.get("max_abs_dev_of_float32_crosscheck", 0) < 5e-5
    assert golden.section("provenance") and golden.section("config")["num_layers"] == golden.layers


class Loop:
    """The authors' training loop, made of the package's own parts."""

    def __init__(
        self, golden: Golden, main_lr: float, threshold_lr: float, total: int, warmup: float, accumulate: int = 1
    ) -> None:
        self.golden, self.total, self.warmup, self.accumulate = golden, total, warmup, accumulate
        self.backbone, self.reducer = golden.model()
        self.named = optim.weight_parameters(self.backbone.model, self.reducer)
        self.optimizers = {
            optim.weight_optimizer(self.named, main_lr): main_lr,
            optim.threshold_optimizer(self.reducer, threshold_lr): threshold_lr,
        }
        self.seen = self.updates = 0

    def step(self, lam: float, rows: list[int]) -> Losses:
        tokens, labels, stored = self.golden.rows(self.backbone, rows)
        logits, trace = encode(self.backbone, tokens, self.reducer, soft=lam)
        losses = _losses(self.golden, self.reducer, logits, trace, labels, stored)
        optim.backward(self.reducer, trace, losses, self.named.values(), share=1 / self.accumulate)
        self.seen += 1
        if self.seen % self.accumulate == 0:
            self.raw = {name: _grad(p).clone() for name, p in self.named.items()}
            optim.clip_gradients(self.named.values())
            optim.clip_gradients([self.reducer.eta, self.reducer.theta])
            factor = learning_rate_factor(self.updates, self.total, self.warmup)
            for optimizer, peak in self.optimizers.items():
                for group in optimizer.param_groups:
                    group["lr"] = peak * factor
                optimizer.step()
                optimizer.zero_grad()
            self.updates += 1
        optim.keep_eta_in_range(self.reducer)
        return losses


def _losses(
    golden: Golden, reducer: AdapLeR, logits: Tensor, trace: Trace, labels: Tensor, stored: Tensor, weights: Any = None
) -> Losses:
    tensor = None if weights is None else torch.tensor(weights)
    losses = objective(
        reducer, logits, trace, labels, stored, gamma=golden.config["GAMMA"], phi=golden.config["PHI"], class_weights=tensor
    )
    assert torch.equal(losses.label, label_loss(logits, labels, tensor)) and torch.equal(losses.length, length_loss(trace))
    assert torch.equal(losses.contribution, weighted_contribution_loss(contribution_losses(reducer, trace, stored)))
    return losses


def _as_tokens(step: Any) -> Tokens:
    return Tokens(step.weight, step.position, step.weight, step.weight, step.protected, step.layout)


def _predictor(reducer: AdapLeR, layer: int) -> ContributionPredictor:
    predictor = reducer.predictors[layer]
    assert isinstance(predictor, ContributionPredictor)
    return predictor


def _without_first(weights: Tensor) -> Tensor:
    """The authors hold 0 in the first token's column and add 1 to every sum."""
    weights = weights.clone()
    weights[..., 0] = 0
    return weights


def _log_weight(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def _grad(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


def _ours(name: str) -> str:
    return "predictors." + name[len("cp.") :] if name.startswith("cp.") else name


CHECKS: dict[str, Callable[[Golden], None]] = {
    name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")
}


@pytest.fixture(scope="module")
def golden(pytestconfig: pytest.Config) -> Golden:
    return Golden(Path(pytestconfig.getoption("--golden")))


def run_check(golden: Golden, name: str) -> None:
    CHECKS[name](golden)
    golden.checked.add(name)


@pytest.mark.parametrize("name", CHECKS)
def test_matches_the_authors_code(golden: Golden, name: str) -> None:
    run_check(golden, name)


def test_no_golden_value_is_left_unused(golden: Golden) -> None:
    for name in CHECKS.keys() - golden.checked:
        run_check(golden, name)
    expected = set(golden.json["key_index"]) | set(golden.json)
    assert expected - golden.used == set()
