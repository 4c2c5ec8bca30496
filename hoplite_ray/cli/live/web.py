"""`hoplite-ray web`: what `top` shows, as a page for a browser on this machine.

It listens on loopback only. A browser needs the token in the address that the command prints. The
cluster's secret stays in this process, and the page can change nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import secrets
import sys
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hoplite_ray.cli.cluster.places import Cluster, find_cluster
from hoplite_ray.cli.live.channels import channels_of
from hoplite_ray.cli.live.flows import (
    Snapshot,
    follow_view,
    nodes_of,
    take_snapshot,
    transfers_of,
    trees_of,
)
from hoplite_ray.errors import HopliteError

if TYPE_CHECKING:
    from aiohttp import web as http
    from aiohttp.typedefs import Handler

_PAGE = Path(__file__).with_name("web.html")
_GONE_MAX = 100  # nodes that stay on the page after they have left; it has no room for more
_END_S = 0.5  # for a request that is under way at Ctrl-C; then the server ends without it
_STALE_LOOKS = 10  # intervals after which an earlier snapshot gives no rates any more
# Against DNS rebinding: another site may let a name of its own point to 127.0.0.1.
_OUR_NAMES = ("127.0.0.1", "localhost")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class NoAiohttpError(HopliteError):
    """The page needs a package that is not installed."""


class NoPortError(HopliteError):
    """The port is another program's."""


def web(arguments: argparse.Namespace) -> int:
    """Show what is under way in a browser, until Ctrl-C."""
    try:
        import aiohttp.web  # noqa: F401
    except ImportError:
        raise NoAiohttpError(
            "the page needs the package aiohttp: pip install 'hoplite_ray[web]'; "
            "hoplite-ray top does without it"
        ) from None
    cluster = find_cluster(arguments, timeout_s=arguments.timeout_s / 2)
    watch = Watch(cluster, interval_s=arguments.interval_s, timeout_s=arguments.timeout_s / 2)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(watch, arguments.port))
    return 0


class Watch:
    """The state of the page: one snapshot for all requests of an interval.

    It remembers the nodes that have left and the last feeding edges of each node. So the page
    draws a dead relay in its place until its tree has ended.
    """

    def __init__(self, cluster: Cluster, *, interval_s: float, timeout_s: float) -> None:
        self.interval_s = interval_s
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._lock = asyncio.Lock()
        self._before: Snapshot | None = None
        self._document: dict[str, Any] = {}
        self._document_s = 0.0
        self._gone: dict[str, dict[str, Any]] = {}
        self._fed_by: dict[str, list[dict[str, Any]]] = {}

    async def document(self) -> dict[str, Any]:
        """Return the newest snapshot as one document; take another one after each interval."""
        async with self._lock:
            age_s = time.monotonic() - self._document_s
            if not self._document or age_s >= self.interval_s:
                await self._refresh(is_fresh=age_s < _STALE_LOOKS * self.interval_s)
            return self._document

    async def _refresh(self, *, is_fresh: bool) -> None:
        now = await take_snapshot(self._cluster, timeout_s=self._timeout_s)
        self._cluster = follow_view(self._cluster, now)
        if self._before is not None:
            self._record_gone(self._before, now)
        before = self._before if self._before is not None and is_fresh else now
        transfers = transfers_of(before, now)
        last_edges = self._last_edges(now, transfers)
        self._before, self._document_s = now, time.monotonic()
        self._document = {
            "cluster": self._cluster.name,
            "interval_s": self.interval_s,
            "view_epoch": now.seen.view.epoch,
            "nodes": [*nodes_of(before, now), *self._gone.values()],
            "transfers": transfers,
            "channels": channels_of(now),
            "trees": trees_of([*transfers, *last_edges]),
        }

    def _record_gone(self, before: Snapshot, now: Snapshot) -> None:
        here = {node.node_id for node in now.seen.nodes}
        for node, row in zip(before.seen.nodes, nodes_of(before, before), strict=True):
            if node.node_id not in here:
                why = f"not in view {now.seen.view.epoch} any more: it left, or was taken for dead"
                self._gone[row["node_id"]] = {**row, "state": "gone", "why": row["why"] or why}
        for node_id in here:
            self._gone.pop(f"{node_id:x}", None)
        while len(self._gone) > _GONE_MAX:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._fed_by.pop(oldest, None)

    def _last_edges(self, now: Snapshot, transfers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the last feeding edges of nodes that no longer answer, in trees that still run."""
        edges: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in transfers:
            edges[row["receiver"]].append(row)
        answering = {f"{node.node_id:x}" for node in now.seen.nodes if node.answers}
        self._fed_by |= {node: edges[node] for node in answering}
        under_way = {(row["target_id"], row["stripe"]) for row in transfers}
        return [
            {**row, "bytes_per_s": None, "last_heard": True}
            for node, rows in self._fed_by.items()
            if node not in answering
            for row in rows
            if (row["target_id"], row["stripe"]) in under_way
        ]


async def _serve(watch: Watch, port: int) -> None:
    """Answer the browser until this is cancelled."""
    from aiohttp import web as http

    token = secrets.token_urlsafe(32)

    @http.middleware
    async def guard(request: http.Request, handler: Handler) -> http.StreamResponse:
        why = _refusal(request, token)
        if why is not None:
            response: http.StreamResponse = http.Response(status=403, text=why)
        else:
            response = await handler(request)
        response.headers.update(_HEADERS)
        return response

    async def page(_: http.Request) -> http.Response:
        return http.Response(text=_PAGE.read_text(), content_type="text/html")

    async def look(_: http.Request) -> http.Response:
        return http.json_response(await watch.document())

    application = http.Application(middlewares=[guard])
    application.add_routes([http.get("/", page), http.get("/look", look)])
    runner = http.AppRunner(application, access_log=None, shutdown_timeout=_END_S)
    await runner.setup()
    try:
        site = http.TCPSite(runner, "127.0.0.1", port)
        try:
            await site.start()
        except OSError as error:
            raise NoPortError(
                f"port {port} of 127.0.0.1 can't be had ({error.strerror}); "
                "give another --port, or none for a free one"
            ) from None
        sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}/?token={token}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _refusal(request: http.Request, token: str) -> str | None:
    if request.host.rpartition(":")[0] not in _OUR_NAMES and request.host not in _OUR_NAMES:
        return "refused: this page is at 127.0.0.1 or localhost, whatever name led here\n"
    if not hmac.compare_digest(request.query.get("token", "").encode(), token.encode()):
        return (
            "refused: the token is missing or wrong; "
            "open the address that hoplite-ray web has printed\n"
        )
    return None
