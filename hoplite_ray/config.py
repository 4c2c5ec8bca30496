"""Options of a cluster's nodes, validated once at the edge. The only reader of HOPLITE_RAY_*."""

from __future__ import annotations

import difflib
import ipaddress
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from hoplite_ray.errors import InvalidArgumentError

_logger = logging.getLogger(__name__)

_DEFAULT_SHARE = 0.2  # of memory: what is left of it is Ray's (30 %) and the workers'
_ARENA_BYTES_MIN = 1 << 20  # one block of the largest kind: with less nothing large can come in
_ENVIRONMENT_PREFIX = "HOPLITE_RAY_"

WORLD_TRANSPORTS = ("auto", "tcp", "shared_memory", "nccl")

# The options that take an int, and those of them whose bounds are here: the others' bounds are
# those of native/node/node_options.cc.
_NUMBERS = ("arena_bytes", "broadcast_stripes", "link_mbit", "reduce_degree", "reduce_stripes")
_OWN_RANGES = {"arena_bytes": (_ARENA_BYTES_MIN, 1 << 48)}
# And of those that take a word, all words; a node's native half takes their places in the list.
_WORDS: dict[str, tuple[str, ...]] = {
    "when_full": ("wait", "fail", "spill"),
    "data_tls": ("off", "on"),
}
_PLACES = ("spill_directory",)
_NETWORKS = ("rails",)
_NAMES = (*_NUMBERS, *_PLACES, *_WORDS, *_NETWORKS)
# The defaults of a node, in words.
DEFAULTS: dict[str, str] = {
    "arena_bytes": "20 % of each node's memory, or half of what is free if that is less",
    "broadcast_stripes": "0: by size and receivers",
    "link_mbit": "10000",
    "reduce_degree": "0: by size and sources",
    "reduce_stripes": "0: one per node but the caller's",
    "spill_directory": "the node's own, in Ray's session directory",
    "when_full": "wait",
    "data_tls": "off",
    "rails": "Ray's own address of each node",
}
# And the variables that are no options of nodes.
_OWN_VARIABLES = ("PROGRESS", "WORLD_TRANSPORT", "CUDA_LIBRARY", "NCCL_LIBRARY")


@dataclass(frozen=True, slots=True)
class Config:
    """The options that a user may set. None takes what the first start in the cluster has fixed.

    arena_bytes:        shared memory for objects on each node; None: 20 % of the node's memory, and
                        under Ray at most half of what is free below Ray's memory threshold.
    broadcast_stripes:  broadcast trees per object; 0: by size and receivers; 1: Hoplite's chain.
    link_mbit:          what the slowest link of the cluster carries, Mbit/s, the same on each node;
                        None: 10,000. It shapes transfers.
    reduce_degree:      members per node of a reduce's tree; 0: by size and sources; 1: a chain;
                        4096: always one level.
    reduce_stripes:     owners per reduce; 0: one per node but the caller's.
    spill_directory:    a directory on each node's disk; None: the node's own, which is one of Ray's
                        session under Ray.
    when_full:          what a put does for which the arena has no room: "wait" (the default) until
                        there is some, "fail" at once, or "spill" other objects to disk.
    data_tls:           "on": what nodes, members of worlds and replicas send to other machines is
                        encrypted, by TLS with the certificates of Ray's own TLS settings, which all
                        of them then need; "off" (the default).
    rails:              under Ray, 1 to 8 networks in which each node has an address to send blocks
                        from and to, as "10.1.0.0/16, 10.2.0.0/16"; None: Ray's own address of it.
    """

    arena_bytes: int | None = None
    broadcast_stripes: int | None = None
    link_mbit: int | None = None
    reduce_degree: int | None = None
    reduce_stripes: int | None = None
    spill_directory: str | None = None
    when_full: str | None = None
    data_tls: str | None = None
    rails: str | None = None

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if value is not None:
                _check(option.name, value)

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> Config:
        """Take options by name.

        Raises:  InvalidArgumentError naming the option, what it may be, and all options there are.
        """
        for name in options:
            if name not in _NAMES:
                raise InvalidArgumentError(
                    f"hoplite option {name!r} is unknown; options are {', '.join(_NAMES)}"
                )
        return cls(**options)  # type: ignore[arg-type]  # __post_init__ checks every value

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Config:
        """Take options from HOPLITE_RAY_ARENA_BYTES and so on, as a shell or a container sets them.

        Raises:  InvalidArgumentError naming the variable and what it may be.
        """
        environment = os.environ if environment is None else environment
        _warn_of_unknown(environment)
        options: dict[str, object] = {}
        for name in _NAMES:
            variable = variable_of(name)
            text = environment.get(variable)
            if text is None:
                continue
            options[name] = int(text) if _is_integer(text) and name in _NUMBERS else text
            if not _is_allowed(name, options[name]):
                wrong = (
                    "is no integer" if name in _NUMBERS and not _is_integer(text) else "is wrong"
                )
                raise InvalidArgumentError(
                    f"{variable}={text!r} {wrong}; {_allowed(name)}; correct or unset it"
                )
        return cls.from_options(options)

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of all options."""
        return _NAMES

    @staticmethod
    def variables() -> dict[str, str]:
        """Return the variables of this process's environment that `from_environment` takes."""
        variables = (variable_of(name) for name in _NAMES)
        return {each: os.environ[each] for each in variables if each in os.environ}

    def explicit(self) -> dict[str, object]:
        """Return only what was set; the rest follows the cluster."""
        values = {option.name: getattr(self, option.name) for option in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


def variable_of(name: str) -> str:
    """The environment variable of an option."""
    return _ENVIRONMENT_PREFIX + name.upper()


def range_of(name: str) -> tuple[int, int]:
    """Return the least and the largest value of an option that takes an int."""
    if name in _OWN_RANGES:
        return _OWN_RANGES[name]
    from hoplite_ray import _native  # here: `hoplite-ray doctor` runs without it, and says so

    return _native.option_ranges()[name]


def rails_max() -> int:
    """Return how many networks the option `rails` takes at most."""
    from hoplite_ray import _native  # as above

    return _native.RAILS_MAX


def networks_of(rails: str) -> list[str]:
    """The networks of the option `rails`, in its order; none if one of them is no network."""
    try:
        return [str(ipaddress.ip_network(each.strip())) for each in rails.split(",")]
    except ValueError:
        return []


def progress_wanted(environment: Mapping[str, str] | None = None) -> bool | None:
    """Return whether this process's long gets show their progress; None: where a person looks.

    Raises:  InvalidArgumentError if HOPLITE_RAY_PROGRESS is neither 0 nor 1.
    """
    environment = os.environ if environment is None else environment
    text = environment.get("HOPLITE_RAY_PROGRESS")
    if text in (None, "0", "1"):
        return None if text is None else text == "1"
    raise InvalidArgumentError(
        f"HOPLITE_RAY_PROGRESS={text!r} is neither 0 nor 1; correct or unset it"
    )


def world_transport(environment: Mapping[str, str] | None = None) -> str:
    """Return the transport of a world whose members leave the choice open.

    Raises:  InvalidArgumentError if HOPLITE_RAY_WORLD_TRANSPORT is none of the words for it.
    """
    environment = os.environ if environment is None else environment
    _warn_of_unknown(environment)
    text = environment.get("HOPLITE_RAY_WORLD_TRANSPORT", "auto")
    if text in WORLD_TRANSPORTS:
        return text
    raise InvalidArgumentError(
        f"HOPLITE_RAY_WORLD_TRANSPORT={text!r} is wrong; it takes "
        f"{' or '.join(map(repr, WORLD_TRANSPORTS))}; correct or unset it"
    )


def nccl_libraries(environment: Mapping[str, str] | None = None) -> tuple[str | None, str]:
    """Return the NCCL library that the user names, if any, and the CUDA driver's, for dlopen."""
    environment = os.environ if environment is None else environment
    cuda = environment.get("HOPLITE_RAY_CUDA_LIBRARY") or "libcuda.so.1"
    return environment.get("HOPLITE_RAY_NCCL_LIBRARY") or None, cuda


_warned_of: set[str] = set()


def _warn_of_unknown(environment: Mapping[str, str]) -> None:
    """Warn once of each variable with our prefix that no code reads; name the likely one."""
    known = [name.upper() for name in (*_NAMES, *_OWN_VARIABLES)]
    for variable in environment:
        prefix, name = variable[: len(_ENVIRONMENT_PREFIX)], variable[len(_ENVIRONMENT_PREFIX) :]
        is_read = prefix == _ENVIRONMENT_PREFIX and name in known
        if prefix.upper() != _ENVIRONMENT_PREFIX or is_read or variable in _warned_of:
            continue
        _warned_of.add(variable)
        near = difflib.get_close_matches(name.upper(), known, n=1)
        meant = f"is {_ENVIRONMENT_PREFIX}{near[0]} meant?" if near else "it can be unset"
        _logger.warning("%s is set, and nobody reads it: %s", variable, meant)


def native_value(name: str, value: object) -> int:
    """Return an option's value as the native node takes it, from a command line or a Config.

    Raises:  InvalidArgumentError if it is no integer, or none of the option's words.
    """
    words = _WORDS.get(name, ())
    return words.index(str(value)) if str(value) in words else int(str(value))


def shown(name: str, value: int) -> int | str:
    """Return an option's value as a user says it, from what the native node takes."""
    words = _WORDS.get(name, ())
    return words[value] if 0 <= value < len(words) else value


def _allowed(name: str) -> str:
    if name in _WORDS:
        return f"it takes {' or '.join(map(repr, _WORDS[name]))}"
    if name in _PLACES:
        return "it takes the absolute path of a directory"
    if name in _NETWORKS:
        return f"it takes 1 to {rails_max()} networks, as '10.1.0.0/16, fd00::/64'"
    low, high = range_of(name)
    return f"it takes an int from {low} to {high}"


def _is_integer(text: str) -> bool:
    return text.strip().lstrip("+-").isdecimal()


def _is_allowed(name: str, value: object) -> bool:
    if name in _WORDS:
        return value in _WORDS[name]
    if name in _PLACES:
        return isinstance(value, str) and value.startswith("/")
    if name in _NETWORKS:
        return isinstance(value, str) and 1 <= len(networks_of(value)) <= rails_max()
    low, high = range_of(name)
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check(name: str, value: object) -> None:
    if not _is_allowed(name, value):
        raise InvalidArgumentError(
            f"hoplite option {name!r} is {value!r}; {_allowed(name)}; leave it out for the default"
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of this machine, or of the control group that holds us where that is less."""

    total_bytes: int
    available_bytes: int

    @classmethod
    def read(cls, root: Path = Path("/")) -> Memory:
        """Read /proc/meminfo and the limits of the control groups above us, v2 and v1."""
        table = dict(
            line.split(":", 1) for line in (root / "proc/meminfo").read_text().splitlines()
        )
        total = int(table["MemTotal"].split()[0]) * 1024
        available = int(table["MemAvailable"].split()[0]) * 1024
        for limit_file, used_file in _limit_files(root):
            limit, used = _number(limit_file), _number(used_file)
            if limit is not None and used is not None and limit < total:
                total = limit
                available = min(available, max(0, limit - used))
        return cls(total, available)


def _limit_files(root: Path) -> list[tuple[Path, Path]]:
    """Return (limit, usage) files of our control group and of all above it."""
    try:
        own = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    files = []
    for line in own:
        _, controllers, place = line.split(":", 2)
        if controllers == "":
            base, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = base / place.lstrip("/")
        # Inside a container our own folder may not be visible: then the root of what is, counts.
        folders = [folder, *(parent for parent in folder.parents if base in parent.parents), base]
        files += [(each / limit, each / used) for each in dict.fromkeys(folders)]
    return files


def _number(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def arena_bytes(config: Config, memory: Memory) -> int:
    """Return the arena's size in whole pages: as configured, or 20 % of memory.

    Raises:  InvalidArgumentError if that much is not available now, naming both numbers.
    """
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    wanted = config.arena_bytes
    if wanted is None:
        wanted = max(_ARENA_BYTES_MIN, int(memory.total_bytes * _DEFAULT_SHARE))
    if wanted > memory.available_bytes:
        raise InvalidArgumentError(
            f"an arena of {wanted} bytes does not fit: {memory.available_bytes} of "
            f"{memory.total_bytes} bytes of memory are available; set arena_bytes lower"
        )
    return -(-wanted // page_bytes) * page_bytes


def ray_memory_threshold() -> float:
    """Return the share of memory above which Ray kills workers."""
    return float(os.environ.get("RAY_memory_usage_threshold", "0.95"))


def ray_arena_bytes(config: Config, memory: Memory) -> int:
    """Return an arena's size with which a full arena alone does not make Ray kill workers.

    The default of 20 % shrinks to half of the spare memory. A size that a job asks for does not.

    Raises:  InvalidArgumentError if that much is not spare now, naming both numbers.
    """
    threshold = ray_memory_threshold()
    spare_bytes = memory.available_bytes - int((1 - threshold) * memory.total_bytes)
    if config.arena_bytes is None:
        wanted = min(memory.total_bytes // 5, max(spare_bytes, 0) // 2)
        return arena_bytes(Config(arena_bytes=max(wanted, _ARENA_BYTES_MIN)), memory)
    if config.arena_bytes > spare_bytes:
        raise InvalidArgumentError(
            f"arena_bytes={config.arena_bytes} does not fit: {memory.available_bytes} of "
            f"{memory.total_bytes} bytes of memory are available, and Ray kills workers above "
            f"{threshold:.0%} use; ask for at most {max(spare_bytes, 0)}"
        )
    return arena_bytes(config, memory)


def describe_small_arena(config: Config, memory: Memory, size_bytes: int) -> str:
    """Say that a default arena is cut below a fifth of memory; "" if it is not."""
    fifth_bytes = memory.total_bytes // 5
    if config.arena_bytes is not None or size_bytes >= fifth_bytes:
        return ""
    return (
        f"the arena has {size_bytes} bytes instead of {fifth_bytes}, 20 % of memory, because only "
        f"{memory.available_bytes} bytes are available and Ray kills workers above "
        f"{ray_memory_threshold():.0%} use; free memory, or set arena_bytes"
    )
