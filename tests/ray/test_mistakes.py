"""docs/mistakes.md, what is wrong before a cluster is there: each row is answered as it says."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.mistakes import section

PROGRAM = """
import json, sys
from tests.mistakes import answer_of, section

begun = section("Before there is a cluster")
names = {}
exec(begun.given, names)
print(json.dumps([answer_of(mistake, names) for mistake in begun.mistakes]))
"""


def test_what_is_wrong_before_a_cluster_is_there_is_said_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True
    )
    answers = json.loads(done.stdout.splitlines()[-1])
    mistakes = section("Before there is a cluster").mistakes
    wrong = [
        f"{mistake}: {answer}"
        for mistake, answer in zip(mistakes, answers, strict=True)
        if not mistake.accepts(answer)
    ]
    assert not wrong, "\n".join(wrong)
