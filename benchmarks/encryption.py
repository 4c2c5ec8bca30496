"""What TLS in the process would cost data connections: what a core moves with it and without.

    python benchmarks/encryption.py

Two processes, one TCP connection over loopback, blocks of 1 MiB from and into memory that is used
again: plain, and with OpenSSL's AES-128-GCM, taking turns. It bounds what an option for TLS would
cost a rail (design decision 15), for which `sendmsg` out of the arena becomes one more pass over
every byte on either side.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
from typing import NamedTuple

from meters import machine

MIB = 1 << 20
CERTIFY = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=node"
TEN_GIGABIT = 10e9 / 8


class Cost(NamedTuple):
    """Seconds of one run: of the clock, and of either side's core."""

    wall_s: float
    sender_s: float
    receiver_s: float


def context(side: int, folder: str) -> ssl.SSLContext:
    made = ssl.SSLContext(side)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    made.minimum_version = made.maximum_version = ssl.TLSVersion.TLSv1_2
    made.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    if side == ssl.PROTOCOL_TLS_SERVER:
        made.load_cert_chain(f"{folder}/certificate", f"{folder}/key")
    return made


def wrapped(connection: socket.socket, side: int, folder: str | None) -> socket.socket:
    if folder is None:
        return connection
    is_server = side == ssl.PROTOCOL_TLS_SERVER
    return context(side, folder).wrap_socket(connection, server_side=is_server)


def receive(listener: socket.socket, folder: str | None, size_bytes: int, tell: int) -> None:
    """In a process of its own: take everything, and tell what it took of a core."""
    connection, _ = listener.accept()
    stream = wrapped(connection, ssl.PROTOCOL_TLS_SERVER, folder)
    block, left, began_s = memoryview(bytearray(MIB)), size_bytes, time.process_time()
    while left:
        left -= stream.recv_into(block, min(left, MIB))
    stream.sendall(b".")
    os.write(tell, repr(time.process_time() - began_s).encode())


def run(folder: str | None, size_bytes: int) -> Cost:
    told, tell = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = os.fork()
        if receiver == 0:
            receive(listener, folder, size_bytes, tell)
            os._exit(0)
        connection = socket.create_connection(listener.getsockname())
    with wrapped(connection, ssl.PROTOCOL_TLS_CLIENT, folder) as stream:
        block, began_s, began_core_s = memoryview(bytes(MIB)), time.time(), time.process_time()
        for _ in range(size_bytes // MIB):
            stream.sendall(block)
        stream.recv(1)
        wall_s, sender_s = time.time() - began_s, time.process_time() - began_core_s
    receiver_s = float(os.read(told, 64))
    os.waitpid(receiver, 0)
    os.close(told)
    os.close(tell)
    return Cost(wall_s, sender_s, receiver_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size-mib", type=int, default=2048, help="of each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--toy", action="store_true", help="a size that proves only that it runs")
    asked = parser.parse_args()
    if asked.toy:
        asked.size_mib, asked.rounds = 16, 1
    size_bytes = asked.size_mib * MIB
    runs: dict[str, list[Cost]] = {"plain": [], "AES-128-GCM": []}
    with tempfile.TemporaryDirectory() as folder:
        files = ["-keyout", f"{folder}/key", "-out", f"{folder}/certificate"]
        subprocess.run([*CERTIFY.split(), *files], check=True, capture_output=True)
        for _ in range(asked.rounds):
            runs["plain"].append(run(None, size_bytes))
            runs["AES-128-GCM"].append(run(folder, size_bytes))
    told = {}
    for name, costs in runs.items():
        median = Cost(*(statistics.median(each) for each in zip(*costs, strict=True)))
        told[name] = {
            "gb_per_s": round(size_bytes / median.wall_s / 1e9, 2),
            "sender_cores_at_10_gbit": round(median.sender_s / size_bytes * TEN_GIGABIT, 2),
            "receiver_cores_at_10_gbit": round(median.receiver_s / size_bytes * TEN_GIGABIT, 2),
        }
        print(f"{name:12s}", "  ".join(f"{key} {value}" for key, value in told[name].items()))
    print(json.dumps({**machine(), "size_bytes": size_bytes, "rounds": asked.rounds, **told}))


if __name__ == "__main__":
    main()
