"""Phase 1: the ordinary classifier, scored on dev each epoch, its best checkpoints kept for saliency."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from adapler.config import FinetuneSettings, RunSettings
from adapler.data.batches import epoch_batches
from adapler.engine import encode, pack
from adapler.evaluation.metrics import score
from adapler.evaluation.outcome import run
from adapler.methods.losses import label_loss
from adapler.training import optim
from adapler.training.optimizer_state import load_optimizer_tensors, optimizer_tensors, set_rates
from adapler.training.precision import autocast
from adapler.training.schedule import learning_rate_factor
from adapler.training.selection import best_epochs
from adapler.training.session import Phase, Session
from adapler.training.setup import Prepared
from adapler.training.snapshot import write_tensors

MODEL = "model."


class Finetune(Phase):
    """Cross-entropy on every token. Gradients are clipped, which the authors do not."""

    name = "finetune"

    def __init__(
        self,
        prepared: Prepared,
        settings: FinetuneSettings,
        run_settings: RunSettings,
        session: Session,
        folder: Path,
        class_weights: Tensor | None,
    ) -> None:
        self.prepared, self.settings, self.session, self.folder = prepared, settings, session, folder
        self.seed, self.accumulate = run_settings.seed, run_settings.accumulate
        self.precision = run_settings.precision
        self.class_weights = class_weights
        self.epochs = 0 if prepared.trained else settings.epochs
        self.model = prepared.backbone.model
        if run_settings.attention_dropout is not None:  # of this phase and those after it
            for block in prepared.backbone.blocks:
                block.attention_dropout = run_settings.attention_dropout
        self.labels = torch.tensor(prepared.dataset.train.labels, device=self.model.device)
        self.lengths = [len(text.ids) for text in prepared.train]
        self.parameters = dict(self.model.named_parameters())
        self.optimizer = optim.weight_optimizer(self.parameters, settings.lr, weight_decay=settings.weight_decay, eps=1e-8)
        self.total = self.epochs * len(self.steps(0)) if self.epochs else 0
        self.updates = 0
        self.scores: list[float] = []
        self.losses: list[float] = []

    def steps(self, epoch: int) -> list[list[list[int]]]:
        return grouped(epoch_batches(self.lengths, self.settings.batch_size, self.seed, epoch), self.accumulate)

    def step(self, batches: list[list[int]], epoch: int) -> float:
        self.model.train()
        backbone, device = self.prepared.backbone, self.model.device
        count, loss = sum(map(len, batches)), 0.0
        for batch in filter(None, map(self.session.processes.own, batches)):
            with autocast(device, self.precision):
                tokens, _ = pack(backbone, [self.prepared.train[index] for index in batch], device)
                logits, _ = encode(backbone, tokens)
                part = label_loss(logits.float(), self.labels[batch], self.class_weights) * (len(batch) / count)
            part.backward()
            loss += float(part.detach())
        loss = self.session.exchange(list(self.parameters.values()), loss)
        optim.clip_gradients(self.parameters.values())
        set_rates(self.optimizer, learning_rate_factor(self.updates, self.total, self.settings.warmup * self.total))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.updates += 1
        self.losses.append(loss)
        return loss

    def take_as_it_is(self) -> None:
        """The model came fine-tuned: what it is now stands for the only epoch."""
        self.session.progress.phase(self.name)
        self.finish_epoch(0)

    def finish_epoch(self, epoch: int) -> None:
        dataset = self.prepared.dataset
        outcome = run(self.prepared.backbone, None, self.prepared.dev)
        self.scores.append(score(dataset.metric, dataset.dev.labels, outcome.predictions))
        mean = sum(self.losses) / max(len(self.losses), 1)
        self.losses = []
        self.session.history.append({"phase": self.name, "epoch": epoch, "score": self.scores[-1], "label_loss": mean})
        self.session.progress.note(f"dev {dataset.metric} {100 * self.scores[-1]:.1f}")
        if not self.session.processes.leads:
            return
        write_tensors(self._file(epoch), self.model.state_dict())
        for other in set(range(epoch + 1)) - set(self.best()):
            self._file(other).unlink(missing_ok=True)

    def best(self) -> list[int]:
        """The epochs saliency is averaged over, best last."""
        return best_epochs(self.scores, self.settings.checkpoints)

    def load_epoch(self, epoch: int) -> None:
        """Put the weights of a kept epoch into the model."""
        self.model.load_state_dict(load_file(self._file(epoch)))

    def tensors(self) -> dict[str, Tensor]:
        weights = {MODEL + name: tensor for name, tensor in self.model.state_dict().items()}
        return weights | optimizer_tensors("optimizer", self.optimizer)

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_state_dict({name[len(MODEL) :]: t for name, t in tensors.items() if name.startswith(MODEL)})
        load_optimizer_tensors("optimizer", self.optimizer, tensors)

    def state(self) -> dict[str, object]:
        return {"updates": self.updates, "scores": self.scores, "losses": self.losses}

    def load_state(self, state: dict[str, object]) -> None:
        self.updates, self.scores, self.losses = state["updates"], list(state["scores"]), list(state["losses"])  # type: ignore[assignment, call-overload]

    def _file(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:04d}.safetensors"


def grouped(batches: list[list[int]], size: int) -> list[list[list[int]]]:
    """Batches in groups of one update each."""
    return [batches[first : first + size] for first in range(0, len(batches), size)]
