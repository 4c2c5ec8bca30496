"""House-style 2.7: the linker proves that plan, wire and delta do no I/O."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

# Two are allowed: HOPLITE_CHECK says what was broken (fprintf) and aborts.
# Parts of mangled names are enough: a clock is read by _ZNSt6chrono3_V212steady_clock3nowEv.
IMPURE = re.compile(
    r"^(socket|bind|listen|accept4?|connect|send|sendto|sendmsg|recv|recvfrom|recvmsg|poll|ppoll"
    r"|select|epoll_\w+|eventfd|pipe2?|open|openat|close|read|write|pread|pwrite|readv|writev|fopen"
    r"|fwrite|puts|printf|mmap|munmap|memfd_create|ioctl|fcntl"
    r"|time|clock|clock_gettime|gettimeofday|localtime\w*|gmtime\w*|usleep|nanosleep|sleep"
    r"|pthread_\w+|sem_\w+|futex|syscall|fork|execve?|kill|signal|sigaction"
    r"|getenv|secure_getenv|setenv|environ|gethostname|getpid"
    r"|rand|random|srand|drand48|getrandom|getentropy|arc4random\w*)(@.*)?$"
    r"|steady_clock|system_clock|random_device|condition_variable|St5mutex|St6thread|this_thread"
    r"|basic_[io]?f?stream|_ZSt4c(out|err|log|in)\b|__cxa_throw|__cxa_guard"
)
ARCHIVES = ("libhoplite_plan.a", "libhoplite_wire.a", "libhoplite_delta.a")


def undefined_symbols(archive: Path) -> set[str]:
    """Symbols that the archive imports; its members may define them for each other."""
    listing = subprocess.run(
        ["nm", str(archive)], check=True, capture_output=True, text=True
    ).stdout
    wanted: set[str] = set()
    defined: set[str] = set()
    for line in listing.splitlines():
        if match := re.match(r"^[0-9a-f ]{16} (\w) (\S+)", line):
            (wanted if match[1] in "Uw" else defined).add(match[2])
    return wanted - defined


def impure(symbols: set[str]) -> list[str]:
    return sorted(symbol for symbol in symbols if IMPURE.search(symbol))
