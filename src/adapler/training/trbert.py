"""TR-BERT's recipe: a guide from gradients, the policy alone by rewards, then policy and network together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from adapler.config import TrainConfig
from adapler.data.text import EncodedText
from adapler.engine import encode, pack
from adapler.methods.losses import answer_distances, label_losses
from adapler.methods.trbert import TrBert
from adapler.tokens import Step, Tokens, Trace
from adapler.training import optim
from adapler.training.finetune import Finetune
from adapler.training.guide import Guide, guide_scores
from adapler.training.precision import autocast
from adapler.training.recipes import Recipe, updates
from adapler.training.reducing import Given, Reducing
from adapler.training.settle import Settle
from adapler.training.snapshot import Snapshot
from adapler.training.steering import EVERY, reached_speedup, steered
from adapler.training.teacher import Teacher, teach

_NOTHING_STAYS = 1e9
"""A scale at which no token is likely enough."""
_OF_REACHABLE = 0.75


class TrBertRecipe(Recipe):
    """Phases 1 to 4 of the paper, without the initialisation of the policy by ranks, which it calls optional."""

    phases = ("policy", "joint", Settle.name)

    def steps(self, config: TrainConfig, examples: int, unlabelled: int) -> int:
        settings = config.trbert
        own = updates(config, examples, settings.policy_epochs + settings.joint_epochs, settings.batch_size)
        return own + updates(config, examples + unlabelled, settings.settle_epochs, settings.batch_size)

    def run(self, given: Given, finetune: Finetune, snapshot: Snapshot | None) -> Reducing:
        prepared, session = given.prepared, given.session
        backbone = prepared.backbone
        finetune.load_epoch(finetune.best()[-1])
        with prepared.computing():
            teacher = teach(backbone, prepared.train, prepared.unlabelled, lambda texts: session.stop_if_asked())
        torch.manual_seed(given.config.run.seed)
        reducer = TrBert.for_backbone(backbone).to(backbone.model.device)
        session.processes.part_ways()
        if not self.passed("policy", snapshot):
            guide = guide_scores(backbone, reducer.sites, prepared.train, prepared.dataset.train.labels)
            session.run(Policy(given, reducer, max(finetune.scores), guide), snapshot)
        joint = Joint(given, reducer, max(finetune.scores), teacher)
        settings = given.config.trbert
        if not self.passed(joint.name, snapshot):
            session.run(joint, snapshot)
            if settings.settle_epochs:
                joint.load_best()
        if not settings.settle_epochs:
            return joint
        target = reachable(given, reducer)
        best, others = max(finetune.scores), prepared.unlabelled
        settle = Settle(given, reducer, best, teacher, settings, target=target, unlabelled=others)
        session.run(settle, snapshot)
        return settle


def reachable(given: Given, reducer: TrBert) -> float | None:
    """The speedup that was asked for or, if that is less, most of what the method can be: two sites leave the layers in front
    of them as they are."""
    asked = given.config.steer.target_speedup
    if asked is None:
        return None
    return min(asked, _OF_REACHABLE * reached_speedup(given.prepared, reducer, _NOTHING_STAYS))


class _Rewarded(Reducing):
    """REINFORCE: every text is run several times with drawn actions; what beats the mean of its draws becomes likelier."""

    reducer: TrBert

    def __init__(self, given: Given, reducer: TrBert, best_finetuned: float, epochs: int) -> None:
        self.settings = given.config.trbert
        super().__init__(given, reducer, best_finetuned, self.settings, epochs=epochs)
        rate = self.settings.policy_lr or policy_rate(self.total, self.settings.lr)
        self.steer, self.alpha = given.config.steer, self.settings.alpha
        policy = dict(reducer.named_parameters())
        self.policy_parameters = list(policy.values())
        self.optimizers = {"policy": optim.weight_optimizer(policy, rate, weight_decay=0.0, eps=1e-8)}
        self.sums = [0.0, 0.0, 0.0]

    def draw(self, batch: Sequence[int]) -> tuple[Tensor, Trace, Tensor]:
        """Logits of every copy (copies * texts, labels), copy by copy; what happened; how many tokens each text has."""
        texts: list[EncodedText] = [self.prepared.train[index] for index in batch] * self.settings.copies
        tokens, counts = pack(self.prepared.backbone, texts, self.model.device)
        with self.reducer.acting(lambda *seen: self.act(batch, *seen)):
            logits, trace = encode(self.prepared.backbone, tokens, self.reducer)
        return logits.float(), trace, counts

    def act(self, batch: Sequence[int], tokens: Tokens, probability: Tensor, layer: int) -> Tensor:
        """Which tokens stay: drawn."""
        return torch.rand_like(probability) < probability

    def policy_loss(self, losses: Tensor, trace: Trace, counts: Tensor) -> Tensor:
        """What the policy follows, from the label loss of every copy (copies * texts,)."""
        copies, texts = self.settings.copies, len(losses) // self.settings.copies
        kept = torch.stack([step.layout.total(step.decision.keep * step.weight) for step in trace.steps]).mean(dim=0)
        reward = (-losses.detach() - self.alpha * kept / counts).view(copies, texts)
        advantage = (reward - reward.mean(dim=0)).flatten()
        self.sums[1] += float((kept / counts).mean())
        return (advantage * sum(map(_unlikelihood, trace.steps))).mean()

    def observe(self, loss: float) -> None:
        """For the history."""
        self.sums[0] += loss
        self.sums[2] += 1

    def figures(self, epoch: int) -> dict[str, Any]:
        loss, kept, steps = self.sums
        self.sums = [0.0, 0.0, 0.0]
        return {"label_loss": loss / max(steps, 1), "kept_share": kept / max(steps, 1), "alpha": self.alpha}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "alpha": self.alpha}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        self.alpha = state["alpha"]

    def look(self) -> None:
        """Every few updates, set alpha by how far the run is from the speedup that is wanted."""
        target = None if self.updates % EVERY else reachable(self.given, self.reducer)
        if target is None:
            return
        self.alpha = steered(self.settings.alpha, target, reached_speedup(self.prepared, self.reducer))


class Policy(_Rewarded):
    """The policy alone; in the first part of the phase one copy of each text takes the guide's choice, of as many tokens as
    the policy would keep."""

    name = "policy"
    keeps = False

    def __init__(self, given: Given, reducer: TrBert, best_finetuned: float, guide: Guide) -> None:
        super().__init__(given, reducer, best_finetuned, given.config.trbert.policy_epochs)
        self.guide = guide

    def step(self, batches: list[list[int]], epoch: int) -> float:
        self.look()
        self.model.eval()
        count, loss = sum(map(len, batches)), 0.0
        wanted = [(p, p.requires_grad) for p in self.model.parameters()]
        for parameter, _ in wanted:
            parameter.requires_grad_(False)  # nothing to remember for a network that does not learn
        for batch in filter(None, map(self.session.processes.own, batches)):
            with autocast(self.model.device, self.run_settings.precision):
                logits, trace, counts = self.draw(batch)
            labels = torch.cat([self.labels[batch]] * self.settings.copies)
            losses = label_losses(logits, labels)
            (self.policy_loss(losses, trace, counts) * (len(batch) / count)).backward()
            loss += float(losses.mean()) * len(batch) / count
        for parameter, before in wanted:
            parameter.requires_grad_(before)
        loss = self.session.exchange(self.policy_parameters, loss)
        self.update(self.policy_parameters)
        self.observe(loss)
        return loss

    def act(self, batch: Sequence[int], tokens: Tokens, probability: Tensor, layer: int) -> Tensor:
        drawn = super().act(batch, tokens, probability, layer)
        if self.updates >= self.settings.guide_rate * self.total:
            return drawn
        layout = tokens.layout
        text, _ = layout.kept(tokens)
        importance = self.guide.of(batch, layer, text % len(batch), tokens.position)
        by_guide = layout.rank(importance) < layout.spread(layout.total(probability).round())
        return torch.where(text < len(batch), by_guide, drawn)  # the first copy is the guide's


class Joint(_Rewarded):
    """Policy and network; the teacher's probabilities are the labels, in the loss and in the reward."""

    name = "joint"

    def __init__(self, given: Given, reducer: TrBert, best_finetuned: float, teacher: Teacher) -> None:
        super().__init__(given, reducer, best_finetuned, given.config.trbert.joint_epochs)
        self.teacher = teacher
        self.parameters = dict(self.model.named_parameters())
        self.optimizers["optimizer"] = optim.weight_optimizer(self.parameters, self.settings.lr, weight_decay=0.0, eps=1e-8)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        self.look()
        self.model.train()
        count, loss = sum(map(len, batches)), 0.0
        for batch in filter(None, map(self.session.processes.own, batches)):
            with autocast(self.model.device, self.run_settings.precision):
                logits, trace, counts = self.draw(batch)
            wanted = self.teacher.logits[batch].to(logits.device).repeat(self.settings.copies, 1)
            losses = answer_distances(logits, wanted, self.teacher.problem)
            whole = losses.mean() + self.policy_loss(losses, trace, counts)
            if self.steer.hint:
                assert trace.pooled is not None
                drawn = list(batch) * self.settings.copies
                whole = whole + self.steer.hint * self.teacher.vector_distance(drawn, trace.pooled.float())
            (whole * (len(batch) / count)).backward()
            loss += float(losses.detach().mean()) * len(batch) / count
        loss = self.session.exchange([*self.parameters.values(), *self.policy_parameters], loss)
        self.update(self.parameters.values(), self.policy_parameters)
        self.observe(loss)
        return loss


def _unlikelihood(step: Step) -> Tensor:
    """Negative log-likelihood of what was done at a site, the mean over each text's tokens; what is protected had no choice."""
    decision, layout = step.decision, step.layout
    assert decision.logit is not None
    loss = F.binary_cross_entropy_with_logits(decision.logit, decision.keep.to(decision.logit.dtype), reduction="none")
    return layout.total(loss.masked_fill(step.protected, 0.0) * step.weight) / layout.total(step.weight)


def policy_rate(updates: int, lr: float) -> float:
    """Rate of the policy: larger the fewer the updates, never below the network's own. At the rates predictors bear, all tokens
    of a text become likelier or less likely together before the policy has learnt to tell them apart."""
    return min(max(0.1 / updates, lr), 1e-3)
