"""Logs as JSON lines on standard error. No text that anybody sent is ever among them, unless that was asked for."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("adapler.serve")
_LATER = 0.1
"""Seconds that lines about requests may wait."""


class JsonLines(logging.Formatter):
    """One object a line. Of an exception its kind and where it arose: its message may quote what was sent."""

    def __init__(self, *, messages: bool) -> None:
        """With `messages` those of exceptions too."""
        super().__init__()
        self._messages = messages

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told["exception"] = type(error).__name__
            told["at"] = [f"{each.filename}:{each.lineno} {each.name}" for each in traceback.extract_tb(error.__traceback__)]
            if self._messages:
                told["exception_message"] = str(error)
        return json.dumps(told)


def to_standard_error(*, texts: bool) -> None:
    """Send what this package and uvicorn log there. `texts` says whether what clients sent may be among it."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(messages=texts))
    for name in ("adapler.serve", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers = [] if name == "uvicorn.error" else [handler]  # it hands on to uvicorn
        logger.setLevel(logging.INFO)
        logger.propagate = name == "uvicorn.error"
    logging.getLogger("uvicorn.access").disabled = True  # it would show the query


class RequestLines:
    """A line a request, written a moment later with others: each write would wait for the model's thread to let go of the
    interpreter, which costs a busy server more than all else about a line."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, fields: Mapping[str, Any]) -> None:
        """On the event loop's thread."""
        if not LOGGER.isEnabledFor(logging.INFO):
            return
        if not self._lines:
            asyncio.get_running_loop().call_later(_LATER, self.flush)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lines.append(json.dumps({"time": now, "level": "info", "message": "request", **fields}))

    def flush(self) -> None:
        """Write what is there."""
        lines, self._lines = self._lines, []
        if lines:
            sys.stderr.write("\n".join(lines) + "\n")
            sys.stderr.flush()


requests = RequestLines()


def told(message: str, fields: Mapping[str, Any]) -> None:
    """One line for operators."""
    LOGGER.info(message, extra={"fields": dict(fields)})
