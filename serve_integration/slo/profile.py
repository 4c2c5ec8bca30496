"""The profile of a stage: how long its batches take and how much memory they need, by their size.

Pure data, and a file of JSON that people can read and keep. `profiling.py` measures one.
Source: Vortex 5.2.
"""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_FORMAT = 1  # of the file
_KNEE = 0.95  # of the best throughput: beyond the knee a batch only takes longer
SAMPLES_MIN = 3  # of one size, for a distribution


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """The batches of one size that were measured.

    size:          queries in each.
    service_s:     how long each kept the stage busy, in seconds, sorted.
    memory_bytes:  of the process at its highest while they ran.
    gpu_bytes:     of memory that torch held on the GPU at its highest; 0 without a GPU.
    """

    size: int
    service_s: tuple[float, ...]
    memory_bytes: int = 0
    gpu_bytes: int = 0

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 1:
            raise ValueError(f"a batch of size {self.size!r}: sizes are whole numbers from 1 on")
        if len(self.service_s) < SAMPLES_MIN:
            raise ValueError(
                f"batches of {self.size}: {len(self.service_s)} service times are no distribution; "
                f"measure at least {SAMPLES_MIN}"
            )
        if not all(math.isfinite(each) and each > 0 for each in self.service_s):
            raise ValueError(f"batches of {self.size}: a service time is not a number above 0")
        object.__setattr__(self, "service_s", tuple(sorted(self.service_s)))

    @property
    def mean_s(self) -> float:
        """The mean service time, in seconds."""
        return math.fsum(self.service_s) / len(self.service_s)

    @property
    def throughput_per_s(self) -> float:
        """The queries that a replica answers in a second while its batches have this size."""
        return self.size / self.mean_s

    def quantile_s(self, share: float) -> float:
        """Return the service time that `share` of the batches do not exceed, in seconds."""
        return _quantile(self.service_s, share)


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured service times of a stage, by batch size.

    stage:    the name of its class.
    batches:  one entry for each size that was measured, in ascending order.
    start_s:  how long its constructor took, in seconds.
    where:    the options and the machine under which it was measured.
    hops_s:   how long queries were under way to its replicas, in seconds, sorted; none if that was
              not seen.
    loop_share:  the part of its batches' time in which the replica can't pass messages on, because
              the stage's code keeps Python's global interpreter lock: 0 to 1.
    """

    stage: str
    batches: tuple[BatchProfile, ...]
    start_s: float = 0.0
    where: Mapping[str, Any] = field(default_factory=dict)
    hops_s: tuple[float, ...] = ()
    loop_share: float = 0.0
    _sizes: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        sizes = tuple(each.size for each in self.batches)
        if not sizes or list(sizes) != sorted(set(sizes)):
            raise ValueError(
                f"profile of {self.stage}: sizes {list(sizes)} are to ascend, and be at least one"
            )
        object.__setattr__(self, "_sizes", sizes)
        object.__setattr__(self, "hops_s", tuple(sorted(self.hops_s)))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes that were measured."""
        return self._sizes

    @property
    def knee(self) -> int:
        """The smallest measured size that reaches 95 % of the best throughput."""
        best = max(each.throughput_per_s for each in self.batches)
        return next(e.size for e in self.batches if e.throughput_per_s >= _KNEE * best)

    def quantile_s(self, size: int, share: float) -> float:
        """Return the service time that `share` of the batches of `size` do not exceed, in seconds.

        Between two measured sizes it lies on the line between them, and beyond the largest on the
        line through the two largest.
        """
        return self._between(size, lambda each: each.quantile_s(share))

    def mean_s(self, size: int) -> float:
        """Return the mean service time of batches of `size`, in seconds."""
        return self._between(size, lambda each: each.mean_s)

    def throughput_per_s(self, size: int) -> float:
        """Return the queries a second of one replica whose batches all have `size`."""
        return size / self.mean_s(size)

    def hop_quantile_s(self, share: float) -> float:
        """Return the way to a replica that `share` of the queries do not exceed, in seconds.

        REQUIRES: some were seen.
        """
        return _quantile(self.hops_s, share)

    def memory_bytes(self, size: int) -> int:
        """Return the memory of a replica whose batches have at most `size` queries.

        It is that of the smallest measured size from `size` on, or of the largest.
        """
        return max(each.memory_bytes for each in self._up_to(size))

    def gpu_bytes(self, size: int) -> int:
        """Return the same of memory on the GPU; 0 without one."""
        return max(each.gpu_bytes for each in self._up_to(size))

    def _up_to(self, size: int) -> tuple[BatchProfile, ...]:
        """Return the measured batches up to the smallest size from `size` on."""
        return self.batches[: bisect.bisect_left(self._sizes, size) + 1]

    def drift(self, seen: Profile) -> float:
        """Return how much longer batches take in another profile, in times of this one's.

        Sizes count by how often they were seen.
        """
        took_s = expected_s = 0.0
        for each in seen.batches:
            took_s += math.fsum(each.service_s)
            expected_s += len(each.service_s) * self.mean_s(each.size)
        return took_s / expected_s

    def _between(self, size: int, value: Any) -> float:
        """Interpolate a value of measured sizes; beyond them it never falls."""
        at = bisect.bisect_left(self._sizes, size)
        if at < len(self._sizes) and self._sizes[at] == size:
            return float(value(self.batches[at]))
        if at == 0:
            return float(value(self.batches[0]))
        if at == len(self._sizes):
            if at == 1:  # nothing says what one query more costs: as much as the measured ones
                return float(value(self.batches[0])) * size / self._sizes[0]
            at -= 1
        low, high = self.batches[at - 1], self.batches[at]
        part = (size - low.size) / (high.size - low.size)
        below, above = float(value(low)), float(value(high))
        return max(below + part * (above - below), above if part > 1 else 0.0)

    def save(self, path: str | Path) -> None:
        """Write the profile to a file of JSON, with one batch size a line."""
        head = {
            "format": _FORMAT,
            "stage": self.stage,
            "start_s": round(self.start_s, 6),
            "where": dict(self.where),
            "hops_s": [round(each, 7) for each in self.hops_s],
            "loop_share": round(self.loop_share, 3),
        }
        lines = [json.dumps(_short(asdict(each))) for each in self.batches]
        text = json.dumps(head, indent=1)[:-2] + ',\n "batches": [\n  ' + ",\n  ".join(lines)
        Path(path).write_text(text + "\n ]\n}\n")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read a profile that `save` has written.

        Raises:  ValueError for a file that is none; OSError if it can't be read.
        """
        text = Path(path).read_text()
        try:
            read = json.loads(text)
            if read["format"] != _FORMAT:
                raise ValueError(f"its format is {read['format']!r}, and {_FORMAT} is known")
            batches = tuple(
                BatchProfile(**each | {"service_s": tuple(each["service_s"])})
                for each in read["batches"]
            )
            hops_s, loop_share = tuple(read.get("hops_s", ())), read.get("loop_share", 0.0)
            return cls(read["stage"], batches, read["start_s"], read["where"], hops_s, loop_share)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is no profile: {error}; make one by serve.profile(...).save(path)"
            ) from error

    def __str__(self) -> str:
        lines = [f"{self.stage}: starts in {self.start_s:.2f} s, knee at {self.knee}"]
        lines += [
            f"  batch of {each.size:>4}: {1000 * each.quantile_s(0.5):8.2f} ms, "
            f"p95 {1000 * each.quantile_s(0.95):8.2f} ms, {each.throughput_per_s:8.1f}/s, "
            f"{each.memory_bytes / 2**20:7.1f} MiB"
            for each in self.batches
        ]
        if self.hops_s:
            p50_ms, p95_ms = (1000 * self.hop_quantile_s(share) for share in (0.5, 0.95))
            lines.append(f"  way here:      {p50_ms:8.2f} ms, p95 {p95_ms:8.2f} ms")
        if self.loop_share > 0.1:
            kept = f"{self.loop_share:.0%} of a batch"
            lines.append(f"  it keeps Python's interpreter for {kept}, and messages wait")
        return "\n".join(lines)


def _quantile(ordered: tuple[float, ...], share: float) -> float:
    """Return a quantile of sorted values, on the line between the two nearest ranks."""
    at = min(max(share, 0.0), 1.0) * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def _short(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"service_s": [round(each, 7) for each in batch["service_s"]]}
