"""The routes. What they mean is in `service.py`, what goes over the wire in `schema.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from adapler import __version__
from adapler.serve.guard import INTERNAL, Answer, Bodies, Guard, refused, while_connected
from adapler.serve.info import about
from adapler.serve.logs import requests
from adapler.serve.metrics import CONTENT_TYPE
from adapler.serve.reference import page
from adapler.serve.schema import ErrorBody, ErrorType, Info, PredictRequest, Refusal, Score
from adapler.serve.service import EXPLAIN, PREDICT, Service
from adapler.serve.ui import document

_TITLE = "adapler"


def create_app(service: Service, *, name: str, key: str | None = None, log_texts: bool = False) -> Guard:
    """The whole application around a service. `name` is what the model is called; `key` what clients must bring."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.draining = True
        requests.flush()

    app = FastAPI(
        title=_TITLE,
        version=__version__,
        description="Text classification, wire-compatible with text-embeddings-inference's /predict.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        responses={code: {"model": ErrorBody} for code in (401, 404, 405, 500)},
        redirect_slashes=False,
    )
    _refusals(app, service)
    model_routes = _model_routes(app, service, log_texts)
    _other_routes(app, service, name)
    paths = frozenset(route.path for route in app.routes if hasattr(route, "path"))
    return Guard(
        app,
        metrics=service.metrics,
        key=None if key is None else key.encode(),
        paths=paths,
        model_routes=model_routes,
        check_room=service.check_room,
    )


def _refusals(app: FastAPI, service: Service) -> None:
    """Every error in one form."""

    @app.exception_handler(Refusal)
    async def refusal(request: Request, error: Refusal) -> Response:
        service.metrics.failures.labels(error.kind.value.lower()).inc()
        request.scope.setdefault("adapler", {})["error_type"] = error.kind.value
        return refused(error)

    @app.exception_handler(Exception)
    async def failure(request: Request, error: Exception) -> Response:
        service.metrics.failures.labels("internal").inc()
        return refused(INTERNAL)  # the guard hears of it too, and logs it

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        said = {404: "no such route; /docs lists them", 405: "this route does not take this method; /docs lists them"}
        return refused(
            Refusal(error.status_code, ErrorType.validation, said.get(error.status_code, str(error.detail)), error.headers)
        )


def _model_routes(app: FastAPI, service: Service, log_texts: bool) -> dict[str, Answer]:
    """What answers each path, and its place in the app, which describes it."""
    bodies = Bodies(service.limits)
    errors: dict[int | str, dict[str, Any]] = {code: {"model": ErrorBody} for code in (400, 408, 413, 415, 422, 424, 504)}
    errors[429] = {"model": ErrorBody, "headers": {"retry-after": {"schema": {"type": "string"}}}}
    schema = {"application/json": {"schema": PredictRequest.model_json_schema()}}
    asked = {"requestBody": {"required": True, "content": schema}}

    routes: dict[str, Answer] = {}

    def route(path: str, kind: str, summary: str, model: Any) -> None:
        @app.post(
            path,
            summary=summary,
            operation_id=kind + {"/": "_root", "/invocations": "_sagemaker"}.get(path, ""),
            openapi_extra=asked,
            responses={200: {"model": model, "headers": _HEADERS}, **errors},
            response_class=JSONResponse,
        )
        async def answer(request: Request) -> Response:
            body = await bodies.read(request)
            reply = await while_connected(request, service(body, kind))
            headers = reply.headers()
            request.scope["adapler"] = {
                "texts": reply.texts,
                "tokens": int(headers["x-adapler-tokens-in"]),
                "truncated": headers["x-truncated"] == "1",
                **({"body": body.decode("utf-8", "replace")} if log_texts else {}),
            }
            return Response(reply.content, headers=headers, media_type="application/json")

        routes[path] = answer

    single_or_batch = list[Score] | list[list[Score] | ErrorBody]
    for path in ("/predict", "/", "/invocations"):
        route(path, PREDICT, "Scores of every label, best first", single_or_batch)
    route("/explain", EXPLAIN, "What became of every token, layer by layer", dict[str, Any] | list[dict[str, Any]])
    return routes


_HEADERS = {
    name: {"description": what, "schema": {"type": "string"}}
    for name, what in {
        "x-adapler-tokens-in": "Tokens of all texts.",
        "x-adapler-tokens-kept": "Tokens that entered the last layer.",
        "x-adapler-flops-ratio": "FLOPs spent, as a share of full length.",
        "x-truncated": "1 where not all of a text was read.",
    }.items()
}


def _other_routes(app: FastAPI, service: Service, name: str) -> None:
    def health() -> Response:
        if service.healthy:
            return Response(status_code=200)
        return refused(Refusal(503, ErrorType.unhealthy, "unhealthy"))

    async def ready() -> Response:
        return health()

    for path in ("/health", "/ping", "/"):
        operation = "health" + path.replace("/", "_").rstrip("_")
        documented: dict[int | str, dict[str, Any]] = {
            200: {"description": "Requests will be answered."},
            503: {"model": ErrorBody},
        }
        app.get(path, summary="Readiness", operation_id=operation, responses=documented, response_class=Response)(ready)
        app.head(path, include_in_schema=False)(ready)  # some probes want no body

    @app.get("/info", summary="The model and the limits", response_model=Info)
    async def info() -> Info:
        return about(service, name)

    @app.get("/metrics", summary="For Prometheus", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page(app.openapi()))

    @app.get("/ui", include_in_schema=False)
    async def ui() -> Response:
        made, headers = document()
        return HTMLResponse(made, headers=headers)
