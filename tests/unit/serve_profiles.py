"""Profiles of stages that were never measured, for tests."""

from __future__ import annotations

from hoplite_ray.serve.slo.profile import BatchProfile, Profile

SIZES = (1, 2, 4, 8, 16, 32)


def line(
    fixed_s: float,
    each_s: float,
    *,
    jitter: float = 0.0,
    sizes: tuple[int, ...] = SIZES,
    name: str = "Stage",
    hops_s: tuple[float, ...] = (),
    loop_share: float = 0.0,
) -> Profile:
    """Return the profile of a stage whose batches of n take `fixed_s + n * each_s`.

    jitter:  the share by which they are shorter or longer at most.
    """
    batches = []
    for size in sizes:
        took_s = fixed_s + each_s * size
        times = tuple(took_s * (1 + jitter * step / 5) for step in range(-5, 6))
        batches.append(BatchProfile(size, times, size << 20))
    return Profile(name, tuple(batches), hops_s=hops_s, loop_share=loop_share)
