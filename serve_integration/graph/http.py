"""Queries and answers over HTTP: both are JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from hoplite_ray.serve.edge.failures import describe_error
from hoplite_ray.serve.errors import BusyError, QuorumError

_serve_logger = logging.getLogger("ray.serve")  # which goes into the replica's log
_STATUS: dict[type[Exception], int] = {TimeoutError: 504, BusyError: 503}

_JSON = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS


def is_json(request: Any) -> bool:
    """Return True if a request came over HTTP."""
    return isinstance(request, Request)


async def answer_http(request: Request, ask: Callable[[Any], Awaitable[Any]]) -> Response:
    """Answer an HTTP request. Its JSON is the query, and the answer is JSON.

    An error is `{"error": ...}`, with a status:

        400  the query is no JSON, or nested too deep
        503  a stage has too many queries, or a quorum is not reached
        504  a deadline
        500  any other error, which is logged
    """
    try:
        query = await request.json()
    except (ValueError, RecursionError) as error:
        return respond_error(f"the query is no JSON ({error}); POST the query as JSON", 400)
    try:
        answer = await ask(query)
        try:
            return Response(await _encode(answer), media_type="application/json")
        except Exception as error:
            raise TypeError(
                f"the answer can't go over HTTP ({describe_error(error)}); have the last stage "
                "return what JSON has"
            ) from None
    except QuorumError as error:
        return await _quorum_response(error)
    except Exception as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        if status == 500:
            _serve_logger.exception("a query over HTTP has failed")
        return respond_error(f"{describe_error(error)}{_failed_stage(error)}", status)


def respond_error(text: str, status: int, **more: Any) -> Response:
    """Return an error as JSON, `{"error": text}` and `more`, with its status."""
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate is no UTF-8
    body = orjson.dumps({"error": text, **more})
    return Response(body, status, media_type="application/json")


async def _quorum_response(error: QuorumError) -> Response:
    """Answer with the votes that are JSON, and name those that are not."""
    text, partial = str(error), dict[str, Any]()
    for member, vote in error.partial.items():
        try:
            partial[member] = orjson.Fragment(await _encode(vote))
        except Exception as why:
            text += f"; the vote of {member} can't go over HTTP ({describe_error(why)})"
    return respond_error(text, 503, partial=partial)


def _failed_stage(error: Exception) -> str:
    """Return which stage has raised an error, by its note; "" if it has no such note."""
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    line = next((note.partition("\n")[0] for note in notes if note.startswith("in stage ")), "")
    return f" ({line.rstrip(':')})" if line else ""


async def _encode(value: Any) -> bytes:
    """Return a value as JSON. A thread makes it, because edges are served in this event loop."""
    return await asyncio.to_thread(as_json, value)


def as_json(value: Any) -> bytes:
    """Return a value as JSON: arrays as lists, numpy's numbers as numbers, NaN as null.

    Raises:  TypeError, RecursionError or UnicodeEncodeError for a value that is no JSON.
    """
    try:
        return orjson.dumps(value, _as_list, _JSON)
    except orjson.JSONEncodeError:  # keys that are no text, whole numbers above 64 bits
        plain = _plain(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()


def _as_list(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value)} is no JSON")


def _plain(value: Any) -> Any:
    """Return a value of types that the standard library's JSON takes."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
