"""A server as a process: threads fitted to the machine, signals, the model warmed up before anybody may ask."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from adapler.errors import BadConfig, MissingExtra
from adapler.memory import keep_few_kernels
from adapler.serve.limits import Limits, usable_cores

if TYPE_CHECKING:
    from adapler.classifier import Classifier
    from adapler.serve.guard import Guard

T = TypeVar("T")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""What torch, ONNX Runtime and the tokenizers take their number of threads from."""
_SWITCH = 0.0002
"""Seconds after which the model's thread lets the loop have the interpreter. By default it is 25 times as long, and the loop,
which must ask for it anew after every read and write, could refuse a flood no faster than the model answers it."""
_FILES_APART = 64
"""Of those the system lets a process open, so many are for other things than connections."""


def check_extra() -> None:
    """Raise where what a server needs is not installed."""
    needed = ("fastapi", "uvicorn", "httptools", "prometheus_client")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtra(f"a server needs {', '.join(missing)}, not installed here; pip install 'adapler[serve]'")


def fit_threads(asked: int | None) -> int:
    """Set how many threads the model uses, before anything that computes is imported: as asked, else as many as this process
    has cores, by its quota too. What else libraries read before they start is set here as well."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    most = usable_cores()
    count = asked or (min(int(given), most) if given.isdecimal() and int(given) else most)
    for name in _THREADS:
        os.environ[name] = str(count)
    # One text's token ids are made where they are asked for: to hand them to another thread takes longer under load.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    keep_few_kernels()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)
    return count


def apart(work: Callable[[], T]) -> T:
    """Do it on a thread that ends with it. OpenMP's threads, once a thread has had them work, stay with it for good; and where
    there are more than cores, all of them go to sleep at every turn, which doubles the time of a short text. So the one thread
    that runs the model must be the only one that ever did."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def read_key(file: Path | None) -> str | None:
    """The API key out of a file, else of API_KEY; None where there is neither."""
    if file is None:
        given = os.environ.get("API_KEY", "")
        return _key(given, "API_KEY") if given else None
    try:
        return _key(file.read_text(encoding="utf-8"), f"--api-key-file {file}")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise BadConfig(f"cannot read --api-key-file {file} ({reason}); give a file with the key alone in it") from error


def listen(host: str, port: int) -> socket.socket:
    """A socket bound to the address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise BadConfig(f"cannot listen on {host}:{port} ({error}); choose another --host or --port") from error
    return bound


def serve(
    classifier: Classifier,
    limits: Limits,
    bound: socket.socket,
    *,
    name: str,
    key: str | None = None,
    grace: float = 30.0,
    log_texts: bool = False,
) -> None:
    """Answer requests until SIGTERM or SIGINT, then finish what is under way within `grace` seconds."""
    from adapler.serve.app import create_app
    from adapler.serve.logs import requests, to_standard_error, told
    from adapler.serve.service import Service

    to_standard_error(texts=log_texts)
    sys.setswitchinterval(_SWITCH)
    apart(lambda: classifier("warm up"))
    service = Service(classifier, limits)
    app = create_app(service, name=name, key=key, log_texts=log_texts)
    server = make_server(app, limits, grace)
    gc.collect()
    gc.freeze()  # what is there now stays; to look through all of it at every collection would hold everybody up
    host, port = bound.getsockname()[:2]
    threads = classifier.runtime.threads
    told("serving", {"model": name, "host": host, "port": port, "threads": threads, "runtime": classifier.runtime.name})
    if key is None and not _is_local(host):
        told("anybody who reaches this address may ask: there is no API key", {"host": host})
    server.run(sockets=[bound])
    requests.flush()
    ended = service.close(1.0)
    told("stopped", {"drained": ended})
    if not ended:  # a thread inside native code must not be there when the interpreter is taken down
        sys.stderr.flush()
        os._exit(0)


def make_server(app: Guard, limits: Limits, grace: float) -> Any:
    """Uvicorn's server for an app, with connections that keep to the limits."""
    import uvicorn

    from adapler.serve.connection import KEEP_ALIVE, connection_class

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Uvicorn's own would end the process by the signal; here an orderly end is a success."""
            if threading.current_thread() is not threading.main_thread():  # others hear no signals
                yield
                return
            signals = (signal.SIGTERM, signal.SIGINT)
            before = {each: signal.signal(each, self.handle_exit) for each in signals}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

    return Server(
        uvicorn.Config(
            app,
            http=connection_class(limits, _most_connections(), app.turned_away),
            ws="none",
            loop="auto",  # uvloop where there is one
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=int(KEEP_ALIVE),
            timeout_graceful_shutdown=max(1, round(grace)),
            backlog=2048,
        )
    )


def _most_connections() -> int:
    """As many as the system lets this process have."""
    try:
        import resource
    except ImportError:  # not on this system
        return 1024
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, 65536)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    except (OSError, ValueError):  # it stays as it is
        pass
    return max(16, min(soft, 65536) - _FILES_APART)


def _key(given: str, where: str) -> str:
    """One word. What clients send comes without the ends of lines that files and secrets have, so these are no part of it."""
    key = given.strip()
    if not key or any(character.isspace() for character in key):
        raise BadConfig(f"{where} holds no key, or more than one word; put the key alone in it")
    return key


def _is_local(host: str) -> bool:
    return host in ("::1", "localhost") or host.startswith("127.")
