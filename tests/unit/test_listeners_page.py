"""The page of ports has a row for every place in the sources that listens."""

from __future__ import annotations

import re
from pathlib import Path

from hoplite_ray.cli.command_line import parser
from hoplite_ray.node.options import parse_arguments

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/operate/network-and-ports.md"
LISTENS = re.compile(
    r"::listen\(|\.listen\(\w*[A-Z]|create_server\(|start_server\(|TCPSite\(|UnixSite\(|"
    r"add_(?:in)?secure_port\(|ncclGetUniqueId"
)
# The files that listen, by name, and the rows of the page about their sockets.
ROWS = {
    "control_service.py": ["node: control service"],
    "tcp_socket.cc": ["node: rails, one each"],
    "local_port.cc": ["node: its machine's clients"],
    "doors.py": ["process in worlds", "process in worlds"],
    "rendezvous.py": ["rank 0 of a `tcp://` rendezvous"],
    "nccl_library.cc": [
        "process in worlds with NCCL: NCCL's own sockets, several for each communicator"
    ],
    "door.py": ["replica of a Serve stage: door and edges"],
    "web.py": ["`hoplite-ray web`"],
}


def table() -> list[list[str]]:
    text = PAGE.read_text().partition("\n## Listeners\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines][1:]


def test_every_file_that_listens_is_known_to_the_page() -> None:
    files = [
        path
        for room in ("hoplite_ray", "serve_integration", "native")
        for ending in ("py", "cc", "h")
        for path in (ROOT / room).rglob(f"*.{ending}")
        if not re.search(r"_(bench|test|fuzz)\.", path.name)
    ]
    found = {path.name for path in files if LISTENS.search(path.read_text())}
    assert found == ROWS.keys()


def test_the_page_has_the_rows_of_those_files_and_no_others() -> None:
    wanted = [row for rows in ROWS.values() for row in rows]
    assert sorted(row[0] for row in table()) == sorted(wanted)


def test_options_that_fix_a_port_are_there() -> None:
    fixed = {row[0]: row[3] for row in table()}
    assert "`--control`" in fixed["node: control service"]
    assert "`--listen`" in fixed["node: rails, one each"]
    node = parse_arguments(
        ["--directory", "d", "--listen", "192.0.2.1:7000", "--control", "192.0.2.1:7001"]
    )
    assert (node.listen, node.control) == (["192.0.2.1:7000"], "192.0.2.1:7001")
    assert "`--port`" in fixed["`hoplite-ray web`"]
    assert parser().parse_args(["web", "--port", "8700"]).port == 8700
