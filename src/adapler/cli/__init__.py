"""The command line: one file a verb, one line here. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import signal
import sys
from typing import Annotated, Any

import typer

from adapler import __version__
from adapler.cli.shared import guarded
from adapler.registry import Registry

VERBS = Registry(
    "verb",
    {
        "train": "adapler.cli.train:train",
        "evaluate": "adapler.cli.evaluate:evaluate",
        "dial": "adapler.cli.dial:dial",
        "doctor": "adapler.cli.doctor:doctor",
        "bench": "adapler.cli.bench:bench",
        "predict": "adapler.cli.predict:predict",
        "explain": "adapler.cli.explain:explain",
        "diff": "adapler.cli.diff:diff",
        "serve": "adapler.cli.serve:serve",
        "export": "adapler.cli.export:export",
        "info": "adapler.cli.info:info",
        "rationale": "adapler.cli.rationale:rationale",
        "study": "adapler.cli.study:study",
    },
)

_EPILOG = """\b
Exit codes:
  0    ok
  1    failure
  2    usage or config
  3    bad model folder
  4    bad input data
  5    a quality gate not met
  130  interrupted (Ctrl-C); 143 by SIGTERM; 141 by a reader that closed the pipe
"""

app = typer.Typer(
    name="adapler",
    help="Transformer text classifiers that drop the tokens that do not matter, layer by layer, and show which did.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: rich would take longer to import than the rest
    pretty_exceptions_enable=False,
)
for _name in VERBS:
    _verb = VERBS[_name]
    if isinstance(_verb, typer.Typer):  # a verb with verbs of its own
        app.add_typer(_verb, name=_name)
    else:
        app.command(_name)(guarded(_verb))


def main() -> None:
    """Run the command line and leave the process with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="adapler")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adapler {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _terminate(number: int, frame: Any) -> None:
    sys.exit(128 + number)  # an exception, so that a half-written output is removed on the way out
