"""The page of mistakes, where no cluster is, or another: each row is answered so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.mistakes import section

PROGRAM = """
import functools, json, sys
import ray
from tests.mistakes import answer_of, section

ray.init = functools.partial(ray.init, include_dashboard=False)
begun = section(sys.argv[1])
names = {}
exec(begun.given, names)
print(json.dumps([answer_of(mistake, names) for mistake in begun.mistakes]), flush=True)
"""


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
@pytest.mark.parametrize(
    "heading",
    [
        "Before there is a cluster",
        "In a cluster without the flag",
        # In a process that goes on after Ray: test_sessions.py.
        pytest.param("After ray.shutdown", marks=pytest.mark.slow),
        "In another session",
        # In a child of a worker: the row of test_lifetime_table.py for one that forks.
        pytest.param("In a child made by os.fork", marks=pytest.mark.slow),
    ],
)
def test_what_is_wrong_there_is_said_at_once(heading: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, heading], stdout=subprocess.PIPE, text=True, check=True
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    wrong = [
        f"{mistake}: {answer}"
        for mistake, answer in zip(section(heading).mistakes, answers, strict=True)
        if not mistake.accepts(answer)
    ]
    assert not wrong, "\n".join(wrong)
