"""What the verbs share: errors as one line and an exit code, model folders found without torch, output whole or not at all,
the table of operating points."""

from __future__ import annotations

import functools
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, ParamSpec, TextIO

import typer

from adapler.errors import AdaplerError, BadConfig

if TYPE_CHECKING:
    from rich.table import Table

    from adapler.doctor import Diagnosis
    from adapler.folder import Folder
    from adapler.points import Dial, Point
    from adapler.runtimes.exported import Exported

P = ParamSpec("P")
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def guarded(verb: Callable[P, None]) -> Callable[P, None]:
    """The verb with its errors shown as users should see them. A verb's `--json` flag is its parameter `as_json`."""

    @functools.wraps(verb)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            verb(*args, **kwargs)
            sys.stdout.flush()  # a closed pipe shows here, not when the interpreter leaves
        except AdaplerError as error:
            _report(error, as_json=bool(kwargs.get("as_json")))
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError as error:
            _silence_stdout()
            raise typer.Exit(_PIPE_CLOSED) from error
        except KeyboardInterrupt as error:
            note("interrupted")
            raise typer.Exit(_INTERRUPTED) from error

    return run


def note(message: str) -> None:
    """One line to the person at the terminal, never among the results."""
    with suppress(OSError):
        sys.stderr.write(f"adapler: {_one_line(message)}\n")


def open_folder(model: str) -> Folder | Exported:
    """Find and check a model folder before torch is imported, so that what is wrong with it is told at once."""
    from adapler.hub import locate
    from adapler.runtimes.exported import check_exported, is_exported

    path = locate(model)
    return check_exported(path) if is_exported(path) else open_checkpoint(path)


def open_checkpoint(model: str | Path) -> Folder:
    """The same where only a checkpoint will do; an exported folder is refused."""
    from adapler.folder import check_folder
    from adapler.hub import locate

    return check_folder(locate(model))


class Output:
    """Where results go; what the system refuses to write is a typed error."""

    def __init__(self, name: str, stream: TextIO) -> None:
        self.name = name
        self._stream = stream

    def write(self, text: str) -> None:
        """Append; line breaks are written as they are."""
        with self._typed():
            self._stream.write(text)

    def finish(self, *, to_disk: bool = False) -> None:
        """Hand everything written so far to the system, or wait until it is on the disk."""
        with self._typed():
            self._stream.flush()
            if to_disk:
                os.fsync(self._stream.fileno())

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._stream is sys.stdout:
                _silence_stdout()
            raise AdaplerError(f"cannot write {self.name} ({error.strerror}); make room or write elsewhere") from error


@contextmanager
def open_output(out: Path | None) -> Iterator[Output]:
    """Standard output for None. A file appears under its name when the block ends well, and not at all when it does not."""
    if out is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
        output = Output("standard output", sys.stdout)
        yield output
        output.finish()
        return
    with _config_errors(out):
        target = out.resolve()  # a link stays a link
        plain = target.is_file() or not target.exists()
    if not plain:  # a device or a named pipe is written to; a rename would put a file in its place
        with _created(out, target, "w") as output:
            yield output
            output.finish()
        return
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    with _created(out, staging, "x") as output:
        try:
            yield output
            output.finish(to_disk=True)
            with _config_errors(out):
                if target.exists():
                    staging.chmod(target.stat().st_mode & 0o777)
                staging.replace(target)
        finally:
            staging.unlink(missing_ok=True)


@contextmanager
def _created(out: Path, path: Path, mode: Literal["w", "x"]) -> Iterator[Output]:
    with _config_errors(out):
        # In JSON, the escape of half a character (a lone surrogate) is valid; in UTF-8 it is not.
        stream = path.open(mode, encoding="utf-8", errors="backslashreplace", newline="")
    try:
        yield Output(str(out), stream)
    finally:
        with suppress(OSError):  # what could not be written has been reported by then
            stream.close()


@contextmanager
def _config_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        reason = error.strerror if isinstance(error, OSError) else error
        raise BadConfig(f"cannot write --out {out} ({reason}); choose another file") from error


def _report(error: AdaplerError, *, as_json: bool) -> None:
    note(f"error: {error}")
    if as_json:
        with suppress(OSError):
            sys.stdout.write(json.dumps({"error": str(error), "error_type": type(error).__name__}) + "\n")
            sys.stdout.flush()


def _one_line(message: str) -> str:
    """Without line breaks and control characters, which a file's name or content may have brought in."""
    return "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in message)


def _silence_stdout() -> None:
    """What is still buffered goes nowhere: the interpreter would try to write it again and complain."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def points_table(dial: Dial, points: Sequence[Point], times: Diagnosis | None) -> Table:
    """Operating points, slowest first: what each scores and saves, and what it takes on this machine where that is known."""
    from rich.table import Table

    table = Table("point", "scale", dial.metric, "loss", "FLOPs", *(() if times is None else ("texts/s", "ms a text")), "kept")
    for point in sorted(points, key=lambda point: point.flops_speedup):
        cost = None if times is None else times.points.get(point.name)
        known = ("", "") if cost is None else (f"{cost.texts_per_second:.0f}", f"{cost.latency_ms:.2f}")
        table.add_row(
            ", ".join([point.name, *dial.also(point)]),
            f"{point.scale:.3g}",
            f"{100 * point.score:.2f}",
            f"{point.loss_points:+.2f}",
            f"{point.flops_speedup:.2f}x",
            *(() if times is None else known),
            "yes" if point in dial.points else "",
        )
    return table
