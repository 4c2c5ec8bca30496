"""The programs of the pages about worlds run as they stand there.

tests/ray/test_readme.py runs the program that needs Ray.

One that names two terminals is run once for each. What a program says behind its prints is printed:
by one of its processes or by several, and nothing else is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.world_crew import free_address

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "127.0.0.1:29500"  # in the pages
LIMIT_S = 100.0
PAGES = (
    "docs/get-started/first-world.md",
    "docs/how-to/migrate-from-multiworld.md",
    "docs/how-to/migrate-from-torch-distributed.md",
    "docs/how-to/replace-a-dead-member.md",
    "docs/how-to/send-without-copies.md",
)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.S | re.M)
_TERMINALS = re.compile(r"\bpython \w+\.py (\d+)")
_PRINTS = re.compile(r"^ *print\(.*\) +# (.*)$", re.M)


def programs() -> list[str]:
    found = [block for page in PAGES for block in _BLOCK.findall((ROOT / page).read_text())]
    return [program for program in found if "ray.init" not in program]


def ranks(program: str) -> list[list[str]]:
    """The arguments of each process."""
    return [[rank] for rank in _TERMINALS.findall(program.partition("\n")[0])] or [[]]


def said_to_print(program: str) -> set[str]:
    return {line for said in _PRINTS.findall(program) for line in said.split(", then ")}


def test_the_pages_have_programs() -> None:
    assert len(programs()) > 5
    assert all(said_to_print(program) for program in programs())


@pytest.mark.parametrize("program", programs(), ids=range(len(programs())))
def test_program_of_a_page_prints_what_it_says(program: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(with_another_address(program, free_address().removeprefix("tcp://")))
    started = [
        subprocess.Popen(
            [sys.executable, str(file), *rank],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks(program)
    ]
    try:
        answers = [process.communicate(timeout=LIMIT_S) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    errors = "".join(error for _, error in answers)
    assert [process.returncode for process in started] == [0] * len(started), errors
    assert {line for out, _ in answers for line in out.splitlines()} == said_to_print(program)


def with_another_address(program: str, address: str) -> str:
    """Use an address without a listener, because the page's port may be taken."""
    host, port = address.split(":")
    return program.replace(ADDRESS, address).replace(
        f'"{host}", port={ADDRESS.split(":")[1]}', f'"{host}", port={port}'
    )
