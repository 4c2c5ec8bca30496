"""The time limit for a call's request to arrive, before the caller has proven anything.

gRPC counts a call from its headers on and waits for the request without limit: some thousand calls
that never send theirs would take every place there is for calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

REQUEST_S = 5.0  # a request of the largest kind is some hundred KiB and comes with its headers


class RequestTimeout(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Ends a call if its one request does not arrive in time."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Return the handler that reads the request itself, in time."""
        handler = await continuation(handler_call_details)
        if handler is None:  # no such method
            return None

        async def answer(requests: AsyncIterator[Any], context: Any) -> Any:
            return await handler.unary_unary(await _read_request(requests, context), context)

        async def stream_answers(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for reply in handler.unary_stream(
                await _read_request(requests, context), context
            ):
                yield reply

        codecs = (handler.request_deserializer, handler.response_serializer)
        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(stream_answers, *codecs)
        return grpc.stream_unary_rpc_method_handler(answer, *codecs)


async def _read_request(requests: AsyncIterator[Any], context: Any) -> Any:
    try:
        async with asyncio.timeout(REQUEST_S):
            return await anext(requests)
    except (TimeoutError, StopAsyncIteration):
        await context.abort(
            grpc.StatusCode.INVALID_ARGUMENT, f"no request came within {REQUEST_S:g} s"
        )
