"""What earlier gates on this machine cost, and which tests needed a second try in them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RUNS = 10  # in two of so many runs a test may not need a second try


def path() -> Path:
    """Outside of the repository, since a gate runs in a fresh clone."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hoplite_ray" / "gates.jsonl"


def read() -> list[dict[str, Any]]:
    """The recorded gates, the oldest first."""
    if not path().exists():
        return []
    return [json.loads(line) for line in path().read_text().splitlines()]


def append(record: dict[str, Any]) -> None:
    path().parent.mkdir(parents=True, exist_ok=True)
    with path().open("a") as file:
        file.write(json.dumps(record) + "\n")


def flaky(second_tries: Iterable[str], earlier: list[dict[str, Any]]) -> list[str]:
    """Of the tests that need a second try now, those that needed one in the last runs as well."""
    last = earlier[-(RUNS - 1) :]
    counts = Counter(test for record in last for test in record["second_tries"])
    return [test for test in second_tries if counts[test]]
