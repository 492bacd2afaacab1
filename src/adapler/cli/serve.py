"""`adapler serve`: a model behind HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adapler.cli.shared import open_folder
from adapler.errors import BadConfig
from adapler.serve.limits import Limits

_DEFAULT = Limits()


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", envvar="MODEL_ID", help="A model folder, or a hub id.")],
    host: Annotated[str, typer.Option(envvar="ADAPLER_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="PORT", min=0, max=65535, help="0 takes a free one and says which.")] = 8080,
    api_key_file: Annotated[
        Path | None, typer.Option(envvar="API_KEY_FILE", help="File with the key clients must bring.  [default: $API_KEY]")
    ] = None,
    max_concurrent_requests: Annotated[
        int, typer.Option(envvar="MAX_CONCURRENT_REQUESTS", min=1, help="Requests at once; one more gets 429.")
    ] = _DEFAULT.max_concurrent_requests,
    max_batch_tokens: Annotated[
        int, typer.Option(envvar="MAX_BATCH_TOKENS", min=1, help="Tokens gathered before the model runs.")
    ] = _DEFAULT.max_batch_tokens,
    max_client_batch_size: Annotated[
        int, typer.Option(envvar="MAX_CLIENT_BATCH_SIZE", min=1, help="Texts of a request that run together.")
    ] = _DEFAULT.max_client_batch_size,
    no_split: Annotated[bool, typer.Option("--no-split", help="Refuse larger requests (422) instead of splitting.")] = False,
    max_request_items: Annotated[
        int, typer.Option(envvar="MAX_REQUEST_ITEMS", min=1, help="Texts a request may hold; more are refused (422).")
    ] = _DEFAULT.max_request_items,
    payload_limit: Annotated[
        int, typer.Option(envvar="PAYLOAD_LIMIT", min=1, help="Bytes of a body.")
    ] = _DEFAULT.payload_limit,
    request_timeout: Annotated[
        float, typer.Option(envvar="REQUEST_TIMEOUT", min=0.001, help="Seconds until a request gets 504.")
    ] = _DEFAULT.request_timeout,
    client_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a client to send its head, its body, or to read.")
    ] = _DEFAULT.client_timeout,
    gather_ms: Annotated[float, typer.Option(min=0, help="How long a busy server waits to fill a batch.")] = _DEFAULT.gather_ms,
    auto_truncate: Annotated[
        bool, typer.Option(envvar="AUTO_TRUNCATE", help="Cut long texts where a request does not say.")
    ] = _DEFAULT.auto_truncate,
    tokenization_workers: Annotated[
        int | None, typer.Option(envvar="TOKENIZATION_WORKERS", min=1, help="Threads.  [default: as --threads, 8 at most]")
    ] = None,
    grace: Annotated[float, typer.Option(min=0, help="Seconds to finish what is under way after SIGTERM.")] = 30.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Of the model.  [default: its cores or quota]")] = None,
    served_model_name: Annotated[
        str | None, typer.Option(envvar="SERVED_MODEL_NAME", help="As /info shows it.  [default: the folder's]")
    ] = None,
    max_length: Annotated[int | None, typer.Option(min=3, help="Tokens to read of a text.  [default: the model's]")] = None,
    point: Annotated[str | None, typer.Option(help="Operating point by name, as `adapler info` lists them.")] = None,
    max_loss: Annotated[float | None, typer.Option(help="The fastest point that loses at most so many points.")] = None,
    speedup: Annotated[float | None, typer.Option(help="The best point with at least so many times fewer FLOPs.")] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Also log what clients send.")] = False,
) -> None:
    """Answer HTTP requests, as text-embeddings-inference's /predict does, until SIGTERM or Ctrl-C.

    \b
    adapler serve runs/sst2
    adapler serve runs/sst2-onnx --host 0.0.0.0 --api-key-file key.txt --max-loss 1.0
    curl -s localhost:8080/predict -H 'content-type: application/json' -d '{"inputs": "a fine film"}'

    A browser finds a page at /ui.

    Environment variables of text-embeddings-inference (MAX_BATCH_TOKENS ...) are read where no option is given.
    """
    from adapler.serve.run import apart, check_extra, fit_threads, listen, read_key

    check_extra()
    key = read_key(api_key_file)
    count = fit_threads(threads)
    folder = open_folder(model)
    limits = Limits(
        max_concurrent_requests=max_concurrent_requests,
        max_batch_tokens=max_batch_tokens,
        max_client_batch_size=max_client_batch_size,
        split=not no_split,
        max_request_items=max_request_items,
        payload_limit=payload_limit,
        request_timeout=request_timeout,
        client_timeout=client_timeout,
        gather_ms=gather_ms,
        auto_truncate=auto_truncate,
        tokenization_workers=tokenization_workers or min(count, 8),
    )
    if grace > 3600:
        raise BadConfig(f"--grace is in seconds, at most 3600, got {grace:g}")
    with listen(host, port) as bound:
        from adapler.classifier import Classifier
        from adapler.serve.run import serve as run

        classifier = apart(
            lambda: Classifier.from_pretrained(folder, max_length=max_length, point=point, max_loss=max_loss, speedup=speedup)
        )
        name = served_model_name or folder.path.resolve().name  # "." has no name of its own
        run(classifier, limits, bound, name=name, key=key, grace=grace, log_texts=log_texts)
