"""The Ray engine: Ray Data gives parts to a pool of actors, each with a model of its own. Needs the extra `ray`.

Only numbers of parts and what became of them travel through Ray. Actors read and write the files themselves, so these and the
model must be where every machine sees them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from adapler.errors import AdaplerError, BadConfig, MissingExtra
from adapler.scale.job import Job
from adapler.scale.parts import Part
from adapler.scale.plan import Done

_OBJECT_STORE = 128 * 2**20  # nothing large goes through it
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Cluster:
    """Where Ray runs."""

    address: str | None = None
    """Of a running cluster; None starts one on this machine, for this run."""
    workers: int | None = None
    """Actors; by default one a core here, or one a logical CPU of the cluster but one."""
    threads: int | None = None
    """Of each actor; 1 by default."""

    @property
    def each(self) -> int:
        """Threads of an actor."""
        return self.threads or 1


class PartScorer:
    """An actor: loads the model once, then does part after part."""

    def __init__(self, job: Job, threads: int) -> None:
        self._job = job
        self._classifier = job.classifier(threads)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """One part in, its note out; an error that doing it again would not mend comes back as words, so that Ray does not."""
        part = Part.model_validate_json(str(batch["part"][0]))
        begun = time.perf_counter()
        try:
            answers = self._job.answer(self._classifier, part, self._job.read(part))
            done = self._job.write(part, answers, self._classifier.labels)
        except AdaplerError as error:
            return {"done": [""], "error": [json.dumps([type(error).__name__, str(error)])], "seconds": [0.0]}
        return {"done": [done.model_dump_json()], "error": [""], "seconds": [time.perf_counter() - begun]}


def score_on_ray(job: Job, parts: Sequence[Part], cluster: Cluster) -> Iterator[tuple[Done, float]]:
    """Do these parts in any order; each is yielded, with the seconds it took, when it is on the disk.

    A worker that dies is replaced, and its part done anew.
    """
    ray = _import_ray()
    # Ray tells of dead workers on standard output, which is for results.
    with redirect_stdout(sys.stderr), _running(ray, cluster) as total:
        workers, share = pool(total, cluster, len(parts))
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        items = [{"part": part.model_dump_json()} for part in parts]
        answered = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            PartScorer,
            fn_constructor_args=(job, cluster.each),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            num_cpus=share,
        )
        try:
            for row in answered.iter_rows():
                if row["error"]:
                    raise _error(*json.loads(row["error"]))
                yield Done.model_validate_json(row["done"]), float(row["seconds"])
        except ray.exceptions.RayError as error:
            said = str(error).strip().splitlines()[-1][:300] if str(error).strip() else type(error).__name__
            raise AdaplerError(f"Ray gave up ({said}); run the same command again: finished parts stay") from error


def pool(total: float, cluster: Cluster, parts: int) -> tuple[int, float]:
    """How many actors, and how many of the cluster's logical CPUs each asks for.

    Ray Data's own tasks need one as well: where actors hold all of them nothing ever begins, and nothing says so. So one stays
    free, and where more actors are wanted than that allows each asks for less than it uses.
    """
    free = max(total - 1, 0.5)
    workers = cluster.workers or max(1, int(free / cluster.each))
    workers = min(workers, parts)
    share = min(float(cluster.each), round(int(free / workers / _LEAST_SHARE) * _LEAST_SHARE, 2))
    if share < _LEAST_SHARE:
        raise BadConfig(f"--workers {workers} is too many for {total:g} CPUs; give at most {int(free / _LEAST_SHARE)}")
    return workers, int(share) if share >= 1 else share


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _running(ray: Any, cluster: Cluster) -> Iterator[float]:
    """Inside, Ray runs; gives its logical CPUs."""
    wanted = (cluster.workers or max(1, cores() // cluster.each)) * cluster.each
    begun = not ray.is_initialized()
    try:
        with _unheard():
            if begun and cluster.address is None:
                ray.init(
                    address="local",
                    num_cpus=wanted + 1,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_OBJECT_STORE,
                )
            elif begun:
                ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = "here" if cluster.address is None else f"at {cluster.address!r}"
        raise BadConfig(f"Ray does not run {where} ({str(error).strip().splitlines()[0][:200]}); check --address") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield float(ray.cluster_resources().get("CPU", 1))
    finally:
        if begun:
            ray.shutdown()


@contextmanager
def _unheard() -> Iterator[None]:
    """Inside, what Ray's own library writes to standard error goes nowhere; what matters it raises."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its warnings would stand among ours
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it warns it will do by default
    try:
        import ray
        import ray.data
        import ray.exceptions
    except ImportError as error:
        raise MissingExtra("--engine ray needs Ray: pip install 'adapler[ray]'") from error
    return ray


def _error(kind: str, message: str) -> AdaplerError:
    """An error of another process, under its own type."""
    from adapler import errors

    found = getattr(errors, kind, AdaplerError)
    plain = isinstance(found, type) and issubclass(found, AdaplerError) and found is not errors.Interrupted
    return found(message) if plain else AdaplerError(message)
