"""Clients of a server: texts in, labels out, over HTTP. The standard library alone; talks to text-embeddings-inference too."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, overload
from urllib.parse import urlsplit

from adapler.errors import BadConfig, BadInput, ServerRefused

Text = str | tuple[str, str]
"""One text, or one pair."""
T = TypeVar("T")
_LOST = (http.client.HTTPException, OSError)
"""Whatever comes instead of an answer."""
_CLOSED = (ConnectionError, ssl.SSLEOFError)
"""How a connection shows that the other side has closed it."""


@dataclass(frozen=True)
class Scored:
    """What a server says of one text."""

    label: str
    score: float
    scores: dict[str, float]
    """Of every label, best first."""


@dataclass(frozen=True)
class Answer:
    """A body and its headers, whose names are in lower case."""

    status: int
    content: Any
    headers: dict[str, str]


class Client:
    """A server by its address. May be shared between threads; keeps connections open, so close it, or use it in `with`."""

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0, retries: int = 3, batch: int = 32) -> None:
        """`key` is sent as a bearer token. A server that is overloaded is asked again up to `retries` times, after as long as
        it says. Lists go in requests of `batch` texts."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadConfig(f"expected an address such as http://127.0.0.1:8080, got {url!r}")
        if batch < 1 or retries < 0 or timeout <= 0:
            raise BadConfig(f"batch must be at least 1, retries 0, timeout more than 0; got {batch}, {retries}, {timeout}")
        self.url, self.batch = url, batch
        self._host, self._port = parts.hostname, parts.port
        self._secure = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._headers = {"content-type": "application/json"} | ({} if key is None else {"authorization": f"Bearer {key}"})
        self._timeout, self._retries = timeout, retries
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    @overload
    def predict(  # type: ignore[overload-overlap]
        self, texts: Text, *, point: str | None = None, max_loss: float | None = None, truncate: bool | None = None,
        raw_scores: bool = False,
    ) -> Scored: ...  # fmt: skip
    @overload
    def predict(
        self, texts: Sequence[Text], *, point: str | None = None, max_loss: float | None = None, truncate: bool | None = None,
        raw_scores: bool = False,
    ) -> list[Scored]: ...  # fmt: skip
    def predict(
        self,
        texts: Any,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        truncate: bool | None = None,
        raw_scores: bool = False,
    ) -> Any:
        """One text or one pair (a tuple) gives one answer, a list gives a list in order. `point` and `max_loss` choose an
        operating point; with `truncate=False` a text past the model's limit is refused."""
        wishes = _wishes(point, max_loss, truncate) | ({"raw_scores": True} if raw_scores else {})
        return _joined(texts, [_scored(self.post("/predict", body).content) for body in _bodies(texts, wishes, self.batch)])

    def explain(
        self, texts: Any, *, point: str | None = None, max_loss: float | None = None, truncate: bool | None = None
    ) -> Any:
        """The same with the account of every token, as the server's /explain writes it: a dictionary a text."""
        wishes = _wishes(point, max_loss, truncate)
        return _joined(texts, [self.post("/explain", body).content for body in _bodies(texts, wishes, self.batch)])

    def info(self) -> dict[str, Any]:
        """What /info says."""
        found: dict[str, Any] = self._asked("GET", "/info", None).content
        return found

    def healthy(self) -> bool:
        """Whether the server is there and answers."""
        try:
            return self._once("GET", "/health", None).status == 200
        except ServerRefused:
            return False

    def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """A request as it stands, with its headers; what the server refuses is raised."""
        return self._asked("POST", path, json.dumps(body).encode())

    def close(self) -> None:
        """Give back the connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _asked(self, method: str, path: str, body: bytes | None) -> Answer:
        for left in range(self._retries, -1, -1):
            answer = self._once(method, path, body)
            if answer.status == 429 and left:
                time.sleep(_seconds(answer.headers.get("retry-after")))
                continue
            break
        if answer.status == 200:
            return answer
        told = answer.content if isinstance(answer.content, dict) else {}
        said = told.get("error", "no reason given")
        raise ServerRefused(f"{self.url}{path} answered {answer.status}: {said}", answer.status, told.get("error_type", ""))

    def _once(self, method: str, path: str, body: bytes | None) -> Answer:
        with self._connection() as (connection, used):
            begin = partial(_begun, connection, method, self._prefix + path, body, self._headers)
            try:
                try:
                    response = begin()
                except _CLOSED:
                    # The server may have closed a kept connection before it saw this request: only then it is sent again. Where
                    # time ran out, or an answer broke off, the server has the request, and would have it twice.
                    if not used:
                        raise
                    connection.close()
                    response = begin()
                return _read(response)
            except _LOST as error:
                raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> ServerRefused:
        return ServerRefused(f"{self.url} does not answer ({type(error).__name__}: {error}); is the server up?")

    @contextmanager
    def _connection(self) -> Iterator[tuple[http.client.HTTPConnection, bool]]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        used = connection is not None
        if connection is None:
            connection = (
                http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
                if self._secure is None
                else http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._secure)
            )
        try:
            yield connection, used
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.append(connection)


class AsyncClient:
    """The same for asyncio: as many requests at once as `connections`, on threads of its own."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        batch: int = 32,
        connections: int = 16,
    ) -> None:
        self._client = Client(url, key=key, timeout=timeout, retries=retries, batch=batch)
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="adapler-client")

    async def predict(
        self,
        texts: Any,
        *,
        point: str | None = None,
        max_loss: float | None = None,
        truncate: bool | None = None,
        raw_scores: bool = False,
    ) -> Any:
        """As `Client.predict`; the requests of a list go out side by side."""
        wishes = _wishes(point, max_loss, truncate) | ({"raw_scores": True} if raw_scores else {})
        return _joined(texts, [_scored(content) for content in await self._posted("/predict", texts, wishes)])

    async def explain(
        self, texts: Any, *, point: str | None = None, max_loss: float | None = None, truncate: bool | None = None
    ) -> Any:
        """As `Client.explain`."""
        return _joined(texts, await self._posted("/explain", texts, _wishes(point, max_loss, truncate)))

    async def info(self) -> dict[str, Any]:
        """What /info says."""
        return await self._run(self._client.info)

    async def healthy(self) -> bool:
        """Whether the server is there and answers."""
        return await self._run(self._client.healthy)

    async def close(self) -> None:
        """Give back threads and connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _posted(self, path: str, texts: Any, wishes: Mapping[str, Any]) -> list[Any]:
        bodies = _bodies(texts, wishes, self._client.batch)
        answers = await asyncio.gather(*(self._run(partial(self._client.post, path, body)) for body in bodies))
        return [answer.content for answer in answers]

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def _begun(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
) -> http.client.HTTPResponse:
    """A request sent, and its answer as far as its headers."""
    connection.request(method, path, body, dict(headers))
    return connection.getresponse()


def _read(response: http.client.HTTPResponse) -> Answer:
    raw = response.read()
    try:
        content = json.loads(raw) if raw else None
    except ValueError:
        content = None
    return Answer(response.status, content, {name.lower(): value for name, value in response.getheaders()})


def _wishes(point: str | None, max_loss: float | None, truncate: bool | None) -> dict[str, Any]:
    given = {"point": point, "max_loss": max_loss, "truncate": truncate}
    return {name: value for name, value in given.items() if value is not None}


def _bodies(texts: Any, wishes: Mapping[str, Any], batch: int) -> list[dict[str, Any]]:
    if _is_text(texts):
        return [{"inputs": texts, **wishes}]
    if not isinstance(texts, Sequence) or not all(_is_text(text) for text in texts):
        raise BadInput("expected a text, a pair (a tuple of two texts), or a list of either")
    items = [[text] if isinstance(text, str) else list(text) for text in texts]
    return [{"inputs": items[first : first + batch], **wishes} for first in range(0, len(items), batch)]


def _is_text(texts: object) -> bool:
    return isinstance(texts, str) or (isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(t, str) for t in texts))


def _joined(texts: Any, contents: list[Any]) -> Any:
    """The answers of several requests as one."""
    return contents[0] if _is_text(texts) else [row for content in contents for row in content]


def _scored(content: Any) -> Any:
    """Labels with scores, best first, as `Scored`; of a batch, one each."""
    if content and isinstance(content[0], list):
        return [_scored(row) for row in content]
    return Scored(content[0]["label"], content[0]["score"], {row["label"]: row["score"] for row in content})


def _seconds(retry_after: str | None) -> float:
    """How long a server asks to wait; at most a minute."""
    try:
        return min(60.0, max(0.1, float(retry_after or 1)))
    except ValueError:  # a date
        return 1.0
