"""Classifier: text in; label, score, kept tokens and cost out. What users hold. Imports torch only for what needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from adapler import doctor
from adapler.answering import Answering, answered
from adapler.data.keep import AlwaysKeep, keeper
from adapler.data.text import EncodedText, Text, TextEncoder, cleaned
from adapler.doctor import Diagnosis
from adapler.errors import BadConfig, BadModel
from adapler.explain import Explanation
from adapler.folder import REDUCED_TYPE, Folder
from adapler.hub import locate
from adapler.points import Dial, Operating, opening, operating
from adapler.prediction import Prediction
from adapler.problems import SINGLE, THRESHOLDS, problem_of, thresholds_of
from adapler.runtimes import RUNTIMES
from adapler.runtimes.base import Runtime
from adapler.runtimes.exported import Exported, check_exported, is_exported

if TYPE_CHECKING:
    import torch

    from adapler.backbones.base import Backbone
    from adapler.methods.base import Reducer
    from adapler.runtimes.torch_packed import TorchPacked


class Classifier:
    """A sequence classifier that runs packed, without padding, and reduced where it has a reducer.

    May be shared between threads. Runs on any torch `device`; only the CPU has been tested.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        reducer: Reducer | None = None,
        *,
        max_length: int | None = None,
        token_budget: int | None = None,
        device: str | torch.device = "cpu",
        dial: Dial | None = None,
        always_keep: AlwaysKeep | None = None,
        stride: int | None = None,
    ) -> None:
        """`model` is a transformers sequence classifier (or a view of one), `tokenizer` its fast tokenizer.

        Or `model` is a `Runtime`, which has its reducer and device already. No layer drops a token of what `always_keep`
        names: words or phrases, found whole and in any case, or a compiled pattern, or a list of both. With `stride` a text
        (not a pair) past `max_length` is read in windows that share so many tokens, and their mean is the answer.
        """
        self.runtime: Runtime = model if isinstance(model, Runtime) else _in_torch(model, reducer, device)
        longest = self.runtime.longest
        limit = min(longest, int(getattr(tokenizer, "model_max_length", longest)))
        self.max_length = limit if max_length is None else max_length
        if not 2 < self.max_length <= longest:
            raise BadConfig(f"max_length must lie in 3 to {longest}, got {max_length}")
        if token_budget is not None and token_budget < 1:
            raise BadConfig(f"token_budget must be at least 1, got {token_budget}")
        self.tokenizer = tokenizer
        self.dial = dial
        self.digest: str | None = None
        """Of the folder it was opened from."""
        self.folder: Path | None = None
        """The folder itself; a run's own holds a report of how the model was trained."""
        self.diagnosis: Diagnosis | None = None
        """What the points cost here, where that has been measured."""
        self.operating = Operating()
        """How calls run that wish for nothing else."""
        self.labels = self.runtime.labels
        self.cost = self.runtime.cost
        keep = keeper(always_keep)
        if keep is not None:
            self.runtime.check_keeps()
        self._encoder = TextEncoder(tokenizer, self.max_length, keep=keep, stride=stride)
        self._answering = Answering(self.runtime, token_budget)

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | Folder | Exported,
        *,
        max_length: int | None = None,
        token_budget: int | None = None,
        device: str | torch.device = "cpu",
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
        always_keep: AlwaysKeep | None = None,
        stride: int | None = None,
    ) -> Classifier:
        """Open a model folder (checked already or not) or hub id: reduced where it holds a reduction, else at full length.

        A folder that `adapler export` wrote opens too, without torch. `point` (by name), `max_loss` (points of dev score),
        `speedup` (at least so many times fewer FLOPs), `max_latency_ms` and `escalate` choose among the operating points
        that were measured; see `operate`. `always_keep` and `stride` are as for the constructor.
        """
        if not isinstance(path, Folder | Exported):
            path = locate(path)
        opened = cls._open(path, max_length, token_budget, device, always_keep, stride)
        folder = path if isinstance(path, Path) else path.path
        opened.digest, opened.folder = doctor.digest_of(folder), folder
        if opened.digest is not None and opened.dial is not None:
            opened.diagnosis = doctor.recall(opened.digest, opened.runtime.name, opened.runtime.threads)
        opened.operate(point=point, max_loss=max_loss, speedup=speedup, max_latency_ms=max_latency_ms, escalate=escalate)
        return opened

    @classmethod
    def _open(
        cls,
        path: Path | Folder | Exported,
        max_length: int | None,
        token_budget: int | None,
        device: str | torch.device,
        always_keep: AlwaysKeep | None,
        stride: int | None,
    ) -> Classifier:
        if isinstance(path, Exported) or (isinstance(path, Path) and is_exported(path)):
            exported = path if isinstance(path, Exported) else check_exported(path)
            if str(device) != "cpu":
                raise BadConfig(f"an exported model runs on cpu, got device {str(device)!r}; open the checkpoint instead")
            runtime = RUNTIMES[exported.runtime](exported)
            read = exported.max_length if max_length is None else max_length
            return cls(
                runtime,
                exported.tokenizer,
                max_length=read,
                token_budget=token_budget,
                dial=exported.dial,
                always_keep=always_keep,
                stride=stride,
            )
        from adapler import checkpoint
        from adapler.runtimes.torch_packed import usable_device

        opened = checkpoint.load(path, device=str(usable_device(device)))
        return cls(
            opened.backbone,
            opened.tokenizer,
            opened.reducer,
            max_length=opened.max_length if max_length is None else max_length,
            token_budget=token_budget,
            device=device,
            dial=opened.dial,
            always_keep=always_keep,
            stride=stride,
        )

    def operate(
        self,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> None:
        """From now on run at the operating point these wishes mean; without any, as trained, or, where a probe of this machine
        found that to be slower than another measured point that scores no worse, at that one. A machine nobody probed runs at
        full length what takes fewer FLOPs and scores no worse there.

        With `escalate`, answers whose probability is below it are given again at the careful point. `point="trained"`
        insists on the model as it left training.
        """
        if any(wish is not None for wish in (point, max_loss, speedup, max_latency_ms, escalate)):
            self.operating = self.wished(
                point=point, max_loss=max_loss, speedup=speedup, max_latency_ms=max_latency_ms, escalate=escalate
            )
            return
        rates = None if self.diagnosis is None else self.diagnosis.rates
        better = None if self.dial is None else opening(self.dial, rates)
        self.operating = Operating() if better is None else Operating(better.scale)

    def examine(self, texts: Sequence[Text] | None = None, *, seconds: float = doctor.SECONDS) -> Diagnosis:
        """Time the operating points on this machine, on these texts or on made-up ones, and remember it for the next opening.

        Such a probe takes a few seconds; the machine should be quiet.
        """
        if self.dial is None:
            raise BadConfig("the model has no operating points to time; measure them: adapler dial MODEL --data DEV")
        self.diagnosis = doctor.examine(
            self.runtime,
            self.dial.named,
            budget=self.token_budget,
            vocabulary=self._encoder.vocabulary,
            texts=None if texts is None else self._encoder(texts),
            seconds=seconds,
        )
        if self.digest is not None:
            doctor.remember(self.digest, self.diagnosis)
        return self.diagnosis

    @property
    def token_budget(self) -> int | None:
        """Tokens a batch; None leaves it to the runtime."""
        return self._answering.token_budget

    @property
    def backbone(self) -> Backbone:
        """The view of the torch model."""
        return self._torch.backbone

    @property
    def model(self) -> Any:
        """A transformers model that answers as this classifier does now: reduced, at its operating point, where it has a
        reducer. For pipelines and whatever else takes one; `backbone.model` is the plain encoder classifier.

        Raises `BadConfig` where the classifier does more than one run over the token ids it is given, which is all that a
        transformers model does: its answers would be others.
        """
        more = {
            "an escalating operating point": self.operating.escalate is not None,
            "always_keep": self._encoder.keep is not None and self.reducer is not None,
            "stride": self._encoder.stride is not None,
        }
        cannot = " and ".join(name for name, there in more.items() if there)
        if cannot:
            raise BadConfig(
                f"a transformers model cannot express {cannot} and would give other answers than this classifier; "
                "open the classifier without, or call the classifier itself"
            )
        if self.reducer is None:
            return self.backbone.model
        from adapler.auto import joined

        return joined(self.backbone, self.reducer, self.max_length, self.dial, self.operating.scale)

    @property
    def reducer(self) -> Reducer | None:
        """What removes tokens, or None."""
        return self._torch.reducer

    @property
    def device(self) -> torch.device:
        """Where the torch model is."""
        return self._torch.device

    @property
    def _torch(self) -> TorchPacked:
        if self.runtime.name != "torch":
            raise BadModel("this classifier was exported and holds no torch model; open the folder it was exported from")
        return cast("TorchPacked", self.runtime)

    @property
    def thresholds(self) -> dict[str, float] | None:
        """Of a model that gives any number of labels: from which probability on it gives each."""
        return thresholds_of(self.labels, self.runtime.problem_type, self.runtime.thresholds)

    def set_thresholds(self, thresholds: Mapping[str, float]) -> None:
        """Of a model that gives any number of labels: from which probability on it gives these. `save_pretrained` keeps it."""
        before = self.thresholds
        if before is None:
            raise BadConfig("thresholds are for a model that gives any number of labels, and this one does not")
        unknown = sorted(set(thresholds) - set(self.labels))
        if unknown:
            raise BadConfig(f"no label {unknown[0]!r}; the model has {', '.join(self.labels)}")
        if not all(0 <= value <= 1 for value in thresholds.values()):
            raise BadConfig(f"thresholds are probabilities, got {dict(thresholds)}")
        self.runtime.thresholds = [float({**before, **thresholds}[label]) for label in self.labels]
        if self.runtime.name == "torch":
            setattr(self.backbone.model.config, THRESHOLDS, list(self.runtime.thresholds))

    def save_pretrained(
        self,
        path: str | Path,
        *,
        format: str = "plain",  # noqa: A002 (what users write)
        overwrite: bool = False,
    ) -> None:
        """Write a folder that both transformers (at full length) and adapler (reduced) open. Whole or not at all.

        With `format="reduced"` it has a `model_type` of its own, and transformers opens it reduced after `import adapler.auto`.
        """
        from adapler import checkpoint

        parts = (self.backbone, self.tokenizer, self.reducer, self.max_length)
        checkpoint.save(path, *parts, dial=self.dial, overwrite=overwrite, format=format)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        format: str = "plain",  # noqa: A002 (what users write)
        private: bool = False,
        commit_message: str = "Upload of a reduced classifier",
    ) -> str:
        """Upload what `save_pretrained` writes, with a model card of what was measured; returns the address."""
        from adapler.card import push

        return push(self, repo_id, format=format, private=private, message=commit_message)

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: Text,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Prediction: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self,
        texts: Sequence[Text],
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> list[Prediction]: ...
    @overload
    def __call__(
        self,
        texts: Iterable[Text],
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Iterator[Prediction]: ...
    def __call__(
        self,
        texts: Any,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Any:
        """One text or one pair (a tuple) gives a `Prediction`, a list gives a list in order, an iterator an iterator.

        An iterator is read in windows of a few thousand texts, so memory does not grow with its length. The other arguments
        choose an operating point for this call alone.
        """
        how = self.wished(point=point, max_loss=max_loss, speedup=speedup, max_latency_ms=max_latency_ms, escalate=escalate)
        return answered(texts, lambda window: self._predict_window(window, how))

    @overload
    def explain(  # type: ignore[overload-overlap]
        self,
        texts: Text,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Explanation: ...
    @overload
    def explain(  # type: ignore[overload-overlap]
        self,
        texts: Sequence[Text],
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> list[Explanation]: ...
    @overload
    def explain(
        self,
        texts: Iterable[Text],
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Iterator[Explanation]: ...
    def explain(
        self,
        texts: Any,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Any:
        """As a call, but with the account of every token: its contribution in front of every layer, and where it left.

        It comes from the same run as the prediction. A model that removes nothing has none to give.
        """
        if not self.cost.predictors:
            raise BadModel(
                "the model removes nothing, so it has no account of which tokens mattered; explain a reduced model "
                "(make one: adapler train)"
            )
        how = self.wished(point=point, max_loss=max_loss, speedup=speedup, max_latency_ms=max_latency_ms, escalate=escalate)
        return answered(texts, lambda window: self._explain_window(window, how))

    @property
    def encoder(self) -> TextEncoder:
        """What makes token ids of texts here."""
        return self._encoder

    def wished(
        self,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        speedup: float | None = None,
        max_latency_ms: float | None = None,
        escalate: float | None = None,
    ) -> Operating:
        """How a call with these wishes runs; without any, as `operate` said last."""
        if all(wish is None for wish in (point, max_loss, speedup, max_latency_ms, escalate)):
            return self.operating
        self._check_escalate(escalate)
        return operating(
            self.dial,
            point=point,
            max_loss=max_loss,
            speedup=speedup,
            max_latency_ms=max_latency_ms,
            escalate=escalate,
            latencies=None if self.diagnosis is None else self.diagnosis.latencies,
        )

    def answers(self, parts: Sequence[Sequence[EncodedText]], how: Sequence[Operating]) -> list[Prediction]:
        """One a text, as `encoder.parts` gives texts, each run in its own way, in batches with all others."""
        return self._answering(parts, how)

    def at_scale(self, parts: Sequence[Sequence[EncodedText]], scale: float | None) -> list[Prediction]:
        """The same with all thresholds multiplied by `scale`; 0 removes nothing."""
        return self._answering.at(parts, [scale] * len(parts))

    def _check_escalate(self, escalate: float | None) -> None:
        if escalate is not None and problem_of(self.runtime.problem_type, len(self.labels)) != SINGLE:
            raise BadConfig("only an answer of one label can be unsure, and this model gives several or a quantity")

    def _predict_window(self, window: Sequence[Text], how: Operating) -> list[Prediction]:
        return self.answers(self._encoder.parts(window), [how] * len(window))

    def _explain_window(self, window: Sequence[Text], how: Operating) -> list[Explanation]:
        answers = self.answers(self._encoder.parts(window, places=True), [how] * len(window))
        return [Explanation(cleaned(text), answer) for text, answer in zip(window, answers, strict=True)]


def _in_torch(model: Any, reducer: Reducer | None, device: str | torch.device) -> TorchPacked:
    from adapler.runtimes.torch_packed import TorchPacked

    if getattr(getattr(model, "config", None), "model_type", None) == REDUCED_TYPE:  # brings its own reducer
        return TorchPacked(model.view, reducer or model.reducer, device)
    return TorchPacked(model, reducer, device)
