"""The programs of README and docs run as they stand there, each in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ray.raycluster import RayCluster

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


def program_of(page: str) -> str:
    return "".join(blocks(page))


# tests/process/test_worlds_docs.py runs programs for two terminals, tests/serve/test_docs.py those
# for Serve.
README = program_of("README.md")
STORE = program_of("docs/how-to/use-the-store-without-ray.md")
BROADCAST = program_of("docs/get-started/first-broadcast.md")
*REDUCES, PARAMETER_SERVER = blocks("docs/get-started/first-reduce.md")
REDUCE = "".join(REDUCES)
(WORLD,) = [block for block in blocks("docs/get-started/first-world.md") if "ray.init" in block]
DIRECT = "docs/how-to/use-from-ray-direct-transport.md"
COLLECTIVE = "docs/how-to/use-from-ray-collective.md"
WEIGHTS = "docs/how-to/sync-weights-to-rollout-workers.md"
ARRIVING = "docs/how-to/load-a-model-as-it-arrives.md"
LEARNING = "docs/how-to/train-with-reinforcement-learning.md"
PARTS = "docs/how-to/read-a-part-of-a-value.md"
TABLE = program_of("docs/how-to/keep-versions-in-a-table.md")
ASYNC = program_of("docs/how-to/write-async-code.md")
_OF_A_NODE = ("(raylet)", "\033[33m(raylet)\033[0m")
_EXPECTED = re.compile(r"^Expected output:\n\n```text\n(.*?)^```", re.S | re.M)


def said_to_print(program: str) -> str:
    """A pattern of what the comments behind its prints say."""
    lines = re.findall(r"^ *print\(.*\) +# (.*)$", program, re.M)
    return "".join(re.escape(line) + "\n" for line in lines)


def expected_output(page: str) -> str:
    """A pattern of the only block that the page gives as expected output."""
    (lines,) = _EXPECTED.findall((ROOT / page).read_text())
    return re.escape(lines)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a Ray for the programs that ask for an arena of one size."""
    started = RayCluster.start(1, num_cpus=4)
    yield started.cluster.address
    started.stop()


@pytest.mark.timeout(90)  # a Ray of its own starts and ends
@pytest.mark.parametrize(
    ("program", "printed"),
    [
        # Four of eight arrays, each of one number from 0 to 7; and four references.
        (README, r"\[ *(\d+)\. +\1\. .*\] \[(ObjectRef\(\w+\)(, )?){4}\]\n"),
        (
            STORE,
            re.escape(
                "[{'w': array([1., 1., 1.]), 'b': array([1, 2])}, array([7., 7., 7.])]\n"
                "{'w': array([2., 2., 2.]), 'b': array([2, 4])}\n"
            ),
        ),
        (program_of(DIRECT), expected_output(DIRECT)),
        (BROADCAST, said_to_print(BROADCAST)),
        (REDUCE, said_to_print(REDUCE)),
        (PARAMETER_SERVER, said_to_print(PARAMETER_SERVER)),
        (WORLD, said_to_print(WORLD)),
        (program_of(WEIGHTS), expected_output(WEIGHTS)),
        (program_of(ARRIVING), expected_output(ARRIVING)),
        (program_of(LEARNING), expected_output(LEARNING)),
        (program_of(PARTS), expected_output(PARTS)),
        (ASYNC, said_to_print(ASYNC)),
        (TABLE, said_to_print(TABLE)),
    ],
    ids=[
        "with Ray",
        "without Ray",
        "Ray Direct Transport",
        "first broadcast",
        "first reduce",
        "parameter server",
        "a world's actors",
        "weights",
        "a model as it arrives",
        "reinforcement learning",
        "parts",
        "async",
        "table",
    ],
)
def test_program_of_a_page_runs(program: str, printed: str, address: str, tmp_path: Path) -> None:
    run(program, printed, address, tmp_path)


@pytest.mark.slow  # what it does: test_collective.py
@pytest.mark.timeout(90)  # a Ray of its own starts and ends
def test_program_of_the_page_of_collectives_runs(tmp_path: Path) -> None:
    run(program_of(COLLECTIVE), expected_output(COLLECTIVE), "local", tmp_path)


def run(program: str, printed: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    environment = os.environ | {"RAY_ADDRESS": address}
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines(keepends=True)
    # Ray prints there what its nodes say, such as that a call is repeated after a kill.
    own = "".join(line for line in lines if not line.startswith(_OF_A_NODE))
    assert re.fullmatch(printed, own), done.stdout
