"""The trail of a version: which deltas there are, which go, and what a reader needs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.channel.names import name_channel, name_delta, name_object
from hoplite_ray.channel.record import KEPT_MAX, Origin, Record
from hoplite_ray.channel.trail import Pace, Trail
from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.deltas import DELTAS_MAX, are_worth_it
from hoplite_ray.values.recipe import Delta
from hoplite_ray.values.versions import VersionNumber

WHOLE = 100 << 20
ORIGIN = Origin("n" * 100, "a name", 2**63, 2**64 - 1)


def number(n: int, counter: int = 1) -> VersionNumber:
    return VersionNumber(1, counter, n)


def delta(size_mib: int) -> Delta:
    return Delta(size_mib << 20, 7 + size_mib, 4096)


def numbers(listed: list[VersionNumber]) -> list[int]:
    return [each.n for each in listed]


@pytest.mark.parametrize(
    ("sizes_mib", "kept", "dropped"),
    [
        ([], [], []),
        ([3], [2], []),
        ([3, 3, 3], [2, 3, 4], []),
        ([20, 20, 20], [3, 4], [2]),  # 60 % are not worth it
        ([20, 45, 10], [4], [3]),
        ([45, 50], [3], [2]),
        ([3, None], [], [2, 3]),
        ([None], [], []),
        ([None, 3], [3], []),
        ([1] * 32, list(range(2, 34)), []),
        ([1] * 33, list(range(3, 35)), [2]),
    ],
)
def test_deltas_are_kept_while_they_are_worth_it(
    sizes_mib: list[int | None], kept: list[int], dropped: list[int]
) -> None:
    """Version 1 is whole; `dropped` are those that go with the last version."""
    trail = Trail()
    for each in sizes_mib:
        trail = trail.end() if each is None else trail.add(delta(each), WHOLE)
    last = number(1 + len(sizes_mib))
    assert numbers(trail.list_kept(last)) == kept
    assert numbers(trail.list_dropped(last)) == dropped


@given(st.lists(st.one_of(st.none(), st.integers(1, 50)), max_size=60))
def test_no_delta_is_left(sizes_mib: list[int | None]) -> None:
    trail, there = Trail(), set[int]()
    for n, each in enumerate(sizes_mib, 2):
        if each is None:
            trail = trail.end()
        else:
            trail = trail.add(delta(each), WHOLE)
            there.add(n)
            assert (trail.crc32c, trail.block_bytes) == (7 + each, 4096)
        there -= set(numbers(trail.list_dropped(number(n))))
        assert sorted(there) == numbers(trail.list_kept(number(n))), "the record names what exists"
        sizes = trail.sizes_bytes
        assert not sizes or are_worth_it(sizes, WHOLE)
        assert len(sizes) <= DELTAS_MAX


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (number(7), [8, 9]),
        (number(8), [9]),
        (number(6), [7, 8, 9]),
        (number(5), []),  # older than the trail
        (number(9), []),  # the version itself
        (number(10), []),
        (number(8, counter=2), []),  # of another publisher
        (None, []),
    ],
)
def test_a_reader_needs_the_deltas_after_its_base(
    base: VersionNumber | None, missing: list[int]
) -> None:
    trail = Trail((1, 2, 3), 4096, 5)
    assert numbers(trail.find_missing(number(9), base)) == missing


@given(
    st.builds(
        Trail,
        st.lists(st.integers(1, 2**40), max_size=DELTAS_MAX).map(tuple),
        st.integers(1, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, DELTAS_MAX),
    )
)
def test_records_come_back_and_fit(trail: Trail) -> None:
    old = VersionNumber(2**64 - 1, 2**32 - 1, 2**64 - 1)
    record = Record(2**63, 1e9, 2**40, (old,) * 8, (old,) * 8, ORIGIN, trail)
    payload = record.encode()
    assert len(payload) <= 4096
    read = Record.decode(payload)
    assert read == record or not (trail.sizes_bytes or trail.dropped)
    assert read.trail.sizes_bytes == trail.sizes_bytes


TERMS = st.lists(
    st.tuples(st.integers(1, 2**32 - 1), st.integers(1, 2**60), st.integers(1, 9)),
    max_size=9,
    unique_by=lambda term: term[0],
)


@given(TERMS, st.integers(0, 81))
def test_the_versions_that_records_name_come_back(
    terms: list[tuple[int, int, int]], split: int
) -> None:
    named = tuple(
        VersionNumber(7, counter, first + i)
        for counter, first, count in sorted(terms)
        for i in range(count)
    )
    record = Record(1, kept=named[split:], dropped=named[:split])
    assert Record.decode(record.encode()) == record


def test_a_record_holds_all_versions_that_may_be_kept() -> None:
    trail = Trail((2**40,) * DELTAS_MAX, 2**32 - 1, 2**32 - 1, 1)
    named = tuple(VersionNumber(2**40, 1, n) for n in range(1, KEPT_MAX + 1))
    for keep in (KEPT_MAX, 2):  # with a smaller one the same publisher drops the others
        record = Record(1, kept=named[-keep:], dropped=named[:-keep], trail=trail)
        assert Record.decode(record.encode()) == record


def test_a_record_of_another_release_is_named() -> None:
    fields = json.loads(Record(1).encode())
    runs = ([[1, 1, 1]], [[1, 1, 1, 2**60]], [[1, 1, 1, 0]], [[1, 1, 1, "x"]])
    for wrong in (
        fields[:-1],
        [*fields[:-2], ["", "a", "first", 1], []],
        [*fields[:-1], [1, 2]],
        [*fields[:-1], [1, 2, 3, ["x"]]],
        *([*fields[:4], each, *fields[5:]] for each in runs),
    ):
        with pytest.raises(InvalidArgumentError, match="none of this release"):
            Record.decode(json.dumps(wrong).encode())


def test_a_publisher_looks_rarely_where_it_finds_nothing() -> None:
    pace, looked = Pace(), []
    for version in range(60):
        if pace.is_due():
            looked.append(version)
            pace.note(has_found=False)
    assert looked == [0, 1, 3, 7, 15, 31, 47]
    while not pace.is_due():
        pass
    pace.note(has_found=True)
    assert pace.is_due(), "after one delta it looks at each version"


def test_ids_differ() -> None:
    channel = name_channel("", "ids")
    ids = {name(channel, number(n)) for n in (1, 2) for name in (name_object, name_delta)}
    assert len(ids) == 4 and all(len(each) == 28 for each in ids)
