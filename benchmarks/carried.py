"""Whether the machine can carry an emulated network's rates: every node sends to the next one.

Where it can't, a benchmark on that network measures the machine's cores and nothing else.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import bounds
from network import Network

SHARE_MIN = 0.9  # of all links' rates; below it the cores are the limit
_SECONDS = 0.6  # the first third is not counted, because TCP has to find the rate
_LEAD_S = 0.05  # from telling the nodes to the start, so that all have read it
_PORT = 7000
_WRITE_BYTES = 256 << 10


class OverloadError(Exception):
    """The machine can't carry the network's rates now."""


def check_carried(network: Network) -> float:
    """Return `carried_share`, if it is enough.

    Raises:  OverloadError if the cores would be the limit.
    """
    share = carried_share(network)
    if share < SHARE_MIN:
        raise OverloadError(
            f"This machine carries {share:.0%} of {network}: its cores would be measured, not the "
            "network. Take lower rates or fewer nodes, or wait until nothing else runs; nothing "
            "was measured."
        )
    return share


def carried_share(network: Network) -> float:
    """Return the arriving share of all links' rates when every node sends to the next one."""
    with ExitStack() as stack:
        processes = []
        for rank in range(network.count):
            process = subprocess.Popen(
                [*network.within(rank), sys.executable, "-c", "import carried; carried.play()"],
                cwd=Path(__file__).parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            processes.append(process)
        for rank, process in enumerate(processes):
            here = [network.address(rank, rail) for rail in network.rails]
            there = [network.address((rank + 1) % network.count, rail) for rail in network.rails]
            _tell(process, [here, there])
        for process in processes:
            _answer(process)
        begin_s = time.monotonic() + _LEAD_S
        for process in processes:
            _tell(process, begin_s)
        arrived = sum(_answer(process) for process in processes)
    rates = sum(
        min(of_all[rank], of_all[(rank + 1) % network.count])
        for of_all in network.rates_mbit
        for rank in range(network.count)
    )
    return arrived / (_SECONDS * 2 / 3) / bounds.payload_bytes_per_s(rates)


def play() -> None:
    """Play one node's part: listen, report it, and from the given time on send and count."""
    here, there = json.loads(sys.stdin.readline())
    counted: list[int] = []
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((each, _PORT))) for each in here]
        print(0, flush=True)  # it listens
        begin_s = json.loads(sys.stdin.readline())
        threads = [threading.Thread(target=_send, args=(each, begin_s)) for each in there]
        threads += [
            threading.Thread(target=_receive, args=(each, begin_s, counted)) for each in listeners
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(sum(counted), flush=True)


def _send(there: str, begin_s: float) -> None:
    payload = bytes(_WRITE_BYTES)
    with socket.create_connection((there, _PORT)) as out:
        time.sleep(max(0.0, begin_s - time.monotonic()))
        while time.monotonic() < begin_s + _SECONDS:
            out.sendall(payload)


def _receive(listener: socket.socket, begin_s: float, counted: list[int]) -> None:
    buffer = bytearray(_WRITE_BYTES)
    into, _ = listener.accept()
    arrived = 0
    with into:
        while received := into.recv_into(buffer):
            if begin_s + _SECONDS / 3 <= time.monotonic() < begin_s + _SECONDS:
                arrived += received
    counted.append(arrived)


def _tell(process: subprocess.Popen[str], value: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(value) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise OSError("a process of the ring has ended: its last words are above")
    return int(line)
