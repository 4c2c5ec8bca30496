"""Queries of several callers at once, and how they were answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import numpy as np

LIMIT_S = 180.0  # for an answer; a query that has none by then is lost


@dataclass(frozen=True)
class Load:
    """The outcome of each query, an answer or an exception, in order, and the time it took."""

    answers: list[Any]
    seconds: list[float]
    all_s: float

    @property
    def lost(self) -> list[Exception]:
        """The queries without an answer, as what they raised."""
        return [each for each in self.answers if isinstance(each, Exception)]

    def differ(self, other: Load) -> int:
        """Return how many answers, of arrays, are not those of another load of the same queries."""
        both = zip(self.answers, other.answers, strict=True)
        return sum(not np.array_equal(*answers) for answers in both)

    def __str__(self) -> str:
        middle_ms, late_ms = np.percentile(self.seconds, (50, 99)) * 1e3
        answers = len(self.answers) - len(self.lost)
        rate = answers / self.all_s
        return f"{answers} answers, {rate:.1f}/s, p50 {middle_ms:.0f} ms, p99 {late_ms:.0f} ms"


def load(
    handle: Any,
    queries: Sequence[Any],
    *,
    callers: int,
    midway: Callable[[], None] = lambda: None,
) -> Load:
    """Ask all queries, each caller one at a time; `midway` is called when a third have theirs."""

    def ask(query: Any) -> tuple[Any, float]:
        began_s = time.perf_counter()
        try:
            answer = handle.remote(query).result(timeout_s=LIMIT_S)
        except Exception as error:  # whatever it is, the query is lost
            answer = error
        return answer, time.perf_counter() - began_s

    began_s = time.perf_counter()
    with ThreadPoolExecutor(callers) as pool:
        asked = [pool.submit(ask, query) for query in queries]
        for count, _ in enumerate(as_completed(asked), 1):
            if count == -(-len(asked) // 3):
                midway()
    answers, seconds = zip(*(each.result() for each in asked), strict=True)
    return Load(list(answers), list(seconds), time.perf_counter() - began_s)
