"""Everything adapler raises on purpose: what came, what was expected, what to do. Knows nothing of the rest."""

from __future__ import annotations


class AdaplerError(Exception):
    """Base of every error a user can cause; the command line prints its message alone and leaves with `exit_code`."""

    exit_code = 1


class UnknownName(AdaplerError):
    """A name that is in no table (a method, a backbone, a task ...)."""

    exit_code = 2


class BadConfig(AdaplerError):
    """A setting out of its range, or one that does not exist."""

    exit_code = 2


class BadModel(AdaplerError):
    """A model folder that is missing, damaged, too new, or not a classifier adapler can run."""

    exit_code = 3


class BadInput(AdaplerError):
    """Texts or data files that cannot be read as such."""

    exit_code = 4


class OtherLabels(BadInput):
    """Data whose labels are not those a model was trained for."""


class GateMissed(AdaplerError):
    """A result that is sound but not as good as was asked for; the message holds the numbers."""

    exit_code = 5


class MissingExtra(AdaplerError):
    """An optional dependency that is not installed; the message holds the pip command."""

    exit_code = 1


class ServerRefused(AdaplerError):
    """A server's answer that is an error, or a server that does not answer; `status` is 0 where there was no answer."""

    def __init__(self, message: str, status: int = 0, error_type: str = "") -> None:
        super().__init__(message)
        self.status, self.error_type = status, error_type


class Diverged(AdaplerError):
    """A loss that is no longer a number."""


class Interrupted(AdaplerError):
    """A run stopped by a signal after saving its state."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number
