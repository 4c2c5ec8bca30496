"""OpenMPI over TCP: one rank per node, started by mpirun with an orted in every namespace.

Twice: as it is after `apt-get install`, and tuned, with the algorithm of coll/tuned for each
collective and size that was fastest of all on 8 nodes x 500 Mbit/s. Ranks poll, as OpenMPI does;
between two scenes they sleep in a read.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from meters import Links
from network import Network, rail_device, tool
from ranks import Rank, command, serve_at
from scenes import Contender

from peers.ensemble import Array, Ensemble, Member

_START_S = 60.0
# mpirun's way to a node: AGENT ADDRESS COMMAND... Each has a host name of its own, or OpenMPI
# would believe that all ranks share one machine.
_AGENT = """#!/bin/sh
rank=$((${{1##*.}} - 1))
shift
exec {ip} netns exec {prefix}$rank unshare --uts sh -c 'hostname node$0; eval "$@"' $rank "$@"
"""
_ALLREDUCE, _BCAST, _REDUCE = 2, 7, 11  # coll/tuned's numbers of collectives
_PIPELINE, _RING, _DEFAULT = 3, 4, 0
# By collective: (least size, algorithm, segment size). A segment is at most 64 KiB, OpenMPI's eager
# limit; pipelines with larger segments are slower.
_TUNED = {
    _ALLREDUCE: [(0, _DEFAULT, 0), (8 << 20, _RING, 0)],
    _BCAST: [(0, _DEFAULT, 0), (512 << 10, _PIPELINE, 32 << 10)],
    _REDUCE: [(0, _DEFAULT, 0), (512 << 10, _PIPELINE, 32 << 10)],
}


LEVEL = "store"


def why_absent() -> str | None:
    """Say why it can't play on this machine; None if it can."""
    if shutil.which("mpirun") is None:
        return "not installed: apt-get install openmpi-bin libopenmpi3"
    if importlib.util.find_spec("mpi4py") is None:
        return "not installed: pip install --group peers"
    return None


def start(network: Network, links: Links, stack: ExitStack, *, store_bytes: int) -> list[Contender]:
    """Start the ranks of both; they end with the stack.

    Raises:  OSError with mpirun's last words if it does not start.
    """
    names = ("openmpi", "openmpi tuned")
    return [_start(network, links, stack, name) for name in names]


def _start(network: Network, links: Links, stack: ExitStack, name: str) -> Contender:
    folder = network.folder / name.replace(" ", "-")
    folder.mkdir()
    address = str(folder / "ranks.sock")
    listener = stack.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(address)
    listener.listen(network.count)
    listener.settimeout(_START_S)
    is_tuned = name.endswith("tuned")
    parameters = _rules(folder / "rules", network.count) if is_tuned else {}
    log = folder / "mpirun.log"
    with open(log, "wb") as words:
        mpirun = subprocess.Popen(
            [*network.within(0), *_mpirun(network, folder, parameters), *_rank_command(address)],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
        )
    stack.callback(_end, mpirun)
    by_rank: dict[int, Rank] = {}
    while len(by_rank) < network.count:
        try:
            connection = stack.enter_context(listener.accept()[0])
        except TimeoutError:
            last = " ".join(log.read_text().split()[-60:])
            raise OSError(f"{len(by_rank)} of OpenMPI's ranks have started: {last}") from None
        connection.setblocking(True)
        rank = Rank(0, connection.makefile("w"), connection.makefile("rb"))
        stack.callback(rank.close)
        rank.pid = rank.answer()
        by_rank[rank.do("number")] = rank
    ranks = [by_rank[rank] for rank in range(network.count)]
    return Ensemble(name, network, ranks, links)


def _mpirun(network: Network, folder: Path, parameters: dict[str, str]) -> list[str]:
    agent = folder / "agent"
    prefix = network.within(0)[-1][:-1]
    agent.write_text(_AGENT.format(ip=tool("ip"), prefix=prefix))
    agent.chmod(0o700)
    hosts = ",".join(f"{network.address(rank)}:1" for rank in range(network.count))
    words = ["unshare", "--uts", "sh", "-c", 'hostname node0; exec "$@"', "sh"]
    words += ["mpirun", "--allow-run-as-root", "-np", str(network.count), "--host", hosts]
    words += ["--bind-to", "none"]
    of_all = {
        "plm_rsh_agent": str(agent),
        "plm_rsh_no_tree_spawn": "1",
        "pml": "ob1",
        "btl": "tcp,self",
        # OpenMPI sets this itself if ranks share cores. Here it sees one rank per host.
        "mpi_yield_when_idle": "1",
        "btl_tcp_if_include": rail_device(0),
        "oob_tcp_if_include": rail_device(0),
    }
    for name, value in (of_all | parameters).items():
        words += ["--mca", name, value]
    return words


def _rules(file: Path, nodes: int) -> dict[str, str]:
    """Write the file that chooses algorithms, and return what makes coll/tuned read it."""
    lines = [str(len(_TUNED))]
    for collective, sizes in sorted(_TUNED.items()):
        lines += [str(collective), "1", str(nodes), str(len(sizes))]
        lines += [f"{size} {algorithm} 0 {segment}" for size, algorithm, segment in sizes]
    file.write_text("\n".join(lines) + "\n")
    return {"coll_tuned_use_dynamic_rules": "1", "coll_tuned_dynamic_rules_filename": str(file)}


def _rank_command(address: str) -> list[str]:
    return command("peers.openmpi.play", address)


def _end(mpirun: subprocess.Popen[bytes]) -> None:
    """Wait for mpirun, whose ranks have been told to end; on timeout, end it by a signal."""
    for end in (lambda: None, mpirun.terminate, mpirun.kill):
        end()
        try:
            mpirun.wait(5.0)
            return
        except subprocess.TimeoutExpired:
            continue


def play(address: str) -> None:
    """Be one of its ranks."""
    serve_at(_MpiMember(), address)


class _MpiMember(Member):
    """Calls MPI with numpy's buffers."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self._world: Any = MPI.COMM_WORLD
        super().__init__(self._world.rank, self._world.size)

    def number(self) -> int:
        """Its rank."""
        return self.rank

    def deed(self, collective: str, own: Array, result: Array | None) -> Callable[[], object]:
        match collective:
            case "broadcast":
                buffer = own if result is None else result
                return lambda: self._world.Bcast(buffer, 0)
            case "reduce":
                return lambda: self._world.Reduce(own, result)
            case "allreduce":
                return lambda: self._world.Allreduce(own, result)
            case "gather":
                return lambda: self._world.Gather(own, result)
            case "allgather":
                return lambda: self._world.Allgather(own, result)
            case "round_trip":
                return lambda: self._round_trip(own, result)
        raise ValueError(f"no such collective: {collective}")

    def _round_trip(self, own: Array, result: Array | None) -> None:
        if self.rank == 0:
            self._world.Send(own, 1)
            self._world.Recv(result, 1)
        elif self.rank == 1:
            self._world.Recv(result, 0)
            self._world.Send(result, 0)
