"""The layouts of a device that can be part of a best placement.

A layout is useless if another one has a slice at least as good for each of its slices. With the
profiles of an A100, 11 of 29 layouts are left, and integer programs take a third of the time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from hoplite_ray.serve.placement.ordered_sums import Occupant

Names = tuple[str, ...]  # of the slices of a layout


def keep_useful(layouts: Sequence[Names], occupants: Sequence[Occupant]) -> tuple[Names, ...]:
    """Return the layouts that no other one replaces; of equal ones the first. At least one."""
    better = _find_better(occupants)
    held = [tuple(sorted(name for name in layout if name in better)) for layout in layouts]

    @cache
    def replaces(larger: Names, smaller: Names) -> bool:
        if not smaller:
            return True
        first, *rest = smaller
        return any(
            replaces(_remove(larger, name), tuple(rest)) for name in {*larger} & better[first]
        )

    kept: list[int] = []
    for at, mine in enumerate(held):
        is_useless = any(
            replaces(other, mine) and (number < at or not replaces(mine, other))
            for number, other in enumerate(held)
            if number != at
        )
        if not is_useless:
            kept.append(at)
    return tuple(layouts[at] for at in kept)


def _find_better(occupants: Sequence[Occupant]) -> Mapping[str, set[str]]:
    """Return each size with the sizes that are at least as good for all that fits on it."""
    by_size: dict[str, dict[frozenset[int], list[Occupant]]] = {}
    for each in occupants:
        by_size.setdefault(each.size, {}).setdefault(frozenset(each.units), []).append(each)
    return {
        size: {
            other
            for other, theirs in by_size.items()
            if all(
                any(_is_as_good(candidate, each) for candidate in theirs.get(key, ()))
                for key, mine in held.items()
                for each in mine
            )
        }
        for size, held in by_size.items()
    }


def _is_as_good(one: Occupant, other: Occupant) -> bool:
    return all(one.units[component] >= units for component, units in other.units.items())


def _remove(names: Names, name: str) -> Names:
    at = names.index(name)
    return names[:at] + names[at + 1 :]
