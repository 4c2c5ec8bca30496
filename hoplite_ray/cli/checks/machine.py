"""Checks of this machine that need no cluster: versions, memory, limits of the kernel."""

from __future__ import annotations

import importlib
import importlib.metadata
import mmap
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from hoplite_ray.cli.checks.finding import Finding, Level
from hoplite_ray.cli.cluster.tables import size
from hoplite_ray.config import Config, Memory, describe_small_arena, ray_arena_bytes

# The least version, and the first one that is too new, as in pyproject.toml.
PYTHON = ((3, 11), (3, 15))
RAY = ((2, 60), (2, 62))

# A node has two connections per rail and peer, one per client, and some twenty of its own.
_OPEN_FILES_GOOD = 4096
_OPEN_FILES_MIN = 256
_MAPPINGS_GOOD = 65530  # the kernel's default; every view of a large array that lives is one
_FILES_SHARE_MAX = 0.9


def checks(root: Path = Path("/")) -> Iterator[Finding]:
    """Make every check, in the order in which one depends on the other."""
    yield _python(sys.version_info[:3])
    yield _ray(_installed_version("ray"))
    yield _native()
    yield _default_arena(root)
    yield _memfd()
    yield _pidfd()
    yield _open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for about, check, file in _KERNEL:
        try:
            yield check((root / file).read_text())
        except OSError as error:  # a sandbox, or a container's network, may lack it
            yield Finding("ok", about, f"not known here: /{file}: {error.strerror}")


def _python(running: tuple[int, ...]) -> Finding:
    return _in_range("Python", running, PYTHON, "run hoplite_ray with such a Python on every node")


def _ray(installed: str | None) -> Finding:
    if installed is None:
        return Finding("fail", "Ray", "it is not installed", "pip install 'ray>=2.60,<2.62'")
    numbers = tuple(int(each) for each in installed.split(".")[:3] if each.isdigit())
    return _in_range("Ray", numbers, RAY, "pip install 'ray>=2.60,<2.62' on every node")


def _in_range(
    name: str,
    running: tuple[int, ...],
    wanted: tuple[tuple[int, int], tuple[int, int]],
    next_step: str,
) -> Finding:
    text = ".".join(map(str, running))
    if wanted[0] <= running[:2] < wanted[1]:
        return Finding("ok", name, text)
    low, high = (".".join(map(str, each)) for each in wanted)
    return Finding("fail", name, f"{text} is not from {low} up and below {high}", next_step)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _native() -> Finding:
    try:
        native = importlib.import_module("hoplite_ray._native")
    except ImportError as error:
        next_step = "pip install hoplite_ray again, for this Python and machine"
        return Finding("fail", "native module", f"it does not load: {error}", next_step)
    return Finding("ok", "native module", f"loads; wire version {native.WIRE_VERSION}")


def _default_arena(root: Path) -> Finding:
    memory = Memory.read(root)
    have = f"{size(memory.available_bytes)} of {size(memory.total_bytes)} are available"
    try:
        config = Config.from_environment()
        wanted = ray_arena_bytes(config, memory)
    except ValueError as error:
        next_step = "set HOPLITE_RAY_ARENA_BYTES, or free memory"
        return Finding("fail", "memory", str(error), next_step)
    text = f"{have}; a node started now gets an arena of {size(wanted)}"
    if small := describe_small_arena(config, memory, wanted):
        text += f": {small}"
    return Finding("ok", "memory", text)


def _memfd() -> Finding:
    """Make what an arena is made of."""
    try:
        descriptor = os.memfd_create("hoplite-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, mmap.PAGESIZE)
            with mmap.mmap(descriptor, mmap.PAGESIZE) as view:
                view[0] = 1
        finally:
            os.close(descriptor)
    except OSError as error:
        next_step = "allow memfd_create in the seccomp profile, and set vm.memfd_noexec to 0 or 1"
        return Finding("fail", "shared memory", f"memfd_create: {error.strerror}", next_step)
    return Finding("ok", "shared memory", "memfd_create works")


def _pidfd() -> Finding:
    """Open what tells a node that its raylet, or the program that started it, has ended."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        next_step = "allow pidfd_open in the seccomp profile"
        return Finding("fail", "watched process", f"pidfd_open: {error.strerror}", next_step)
    return Finding("ok", "watched process", "pidfd_open works")


def _open_files(limit: int) -> Finding:
    text = f"{limit} per process"
    if limit == resource.RLIM_INFINITY:
        return Finding("ok", "open files", "no limit per process")
    if limit >= _OPEN_FILES_GOOD:
        return Finding("ok", "open files", text)
    cause = f"{text}: a node needs two per rail and peer and one per process that attaches"
    level: Level = "warn" if limit >= _OPEN_FILES_MIN else "fail"
    next_step = "ulimit -n 65536 before the first job, or LimitNOFILE= of the service"
    return Finding(level, "open files", cause, next_step)


def _all_files(told: str) -> Finding:
    used, _, most = told.split()
    cause = f"{used} of the machine's {most} are in use"
    if int(used) < _FILES_SHARE_MAX * int(most):
        return Finding("ok", "open files of all", cause)
    return Finding("warn", "open files of all", cause, f"sysctl fs.file-max={2 * int(most)}")


def _mappings(told: str) -> Finding:
    most = int(told)
    if most >= _MAPPINGS_GOOD:
        return Finding("ok", "mappings", f"{most} per process")
    cause = f"{most} per process: every large array that a process has got and keeps is one"
    return Finding("warn", "mappings", cause, f"sysctl vm.max_map_count={_MAPPINGS_GOOD}")


def _congestion_control(told: str) -> Finding:
    name = told.strip()
    if name != "reno":
        return Finding("ok", "congestion control", name)
    cause = "reno halves its rate at every loss, however long the way"
    return Finding(
        "warn", "congestion control", cause, "sysctl net.ipv4.tcp_congestion_control=cubic"
    )


_KERNEL = (
    ("open files of all", _all_files, "proc/sys/fs/file-nr"),
    ("mappings", _mappings, "proc/sys/vm/max_map_count"),
    ("congestion control", _congestion_control, "proc/sys/net/ipv4/tcp_congestion_control"),
)
