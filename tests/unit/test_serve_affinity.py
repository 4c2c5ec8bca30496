"""The replica of a query that has a key: it stays, loads are even, and only what must move moves.

A `World` has keys with weights, and asks one sender or several with queries of these keys.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hoplite_ray.serve.routing import affinity
from hoplite_ray.serve.routing.affinity import BOUND, Affinity, Calls
from hoplite_ray.serve.routing.keys import digest_key

WINDOW = 512  # queries of each replica that a sender remembers
IDLE = Calls(0, 0)
CHOICES = "ce67500634f70b42"  # a digest of them
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples are as even as can be


def replicas(count: int, seed: int = 0) -> dict[str, Calls]:
    return {f"replica-{seed}-{number}": IDLE for number in range(count)}


def digest(key: Any) -> bytes:
    found = digest_key(key)
    assert found is not None
    return found


def order(key: Any, there: dict[str, Calls]) -> tuple[str, ...]:
    """Return a key's replicas, the best first."""
    return Affinity(max_batch=1).rank(digest(key), there)


class World:
    """Keys with weights, whose sum is 1. Each query is of one of them."""

    def __init__(self, weights: list[float], seed: int = 0) -> None:
        self.weights = [each / sum(weights) for each in weights]
        self.keys = [f"{seed}-{number}" for number in range(len(weights))]
        self._digests = [digest(key) for key in self.keys]
        self._sums = list(itertools.accumulate(self.weights))
        self._random = random.Random(seed)

    @classmethod
    def zipf(cls, skew: float, keys: int = 1000, seed: int = 0) -> World:
        return cls([1 / rank**skew for rank in range(1, keys + 1)], seed)

    def even(self) -> Iterator[float]:
        """Yield places of queries without chance: each key comes at even distances."""
        return (number * GOLDEN % 1 for number in itertools.count(1))

    def draw_places(self) -> Iterator[float]:
        return iter(self._random.random, None)

    def ask(
        self,
        senders: list[Affinity],
        there: dict[str, Calls],
        queries: int,
        places: Iterator[float] | None = None,
    ) -> dict[int, Counter[str]]:
        """Ask so many queries; returns how many of each key each replica got."""
        found: dict[int, Counter[str]] = defaultdict(Counter)
        for place in itertools.islice(places or self.draw_places(), queries):
            number = min(bisect.bisect(self._sums, place), len(self.keys) - 1)
            sender = self._random.choice(senders) if len(senders) > 1 else senders[0]
            found[number][sender.choose(self._digests[number], there)] += 1
        return found

    def weigh(self, numbers: set[int]) -> float:
        return sum(self.weights[each] for each in numbers)


def homes(found: dict[int, Counter[str]]) -> dict[int, str]:
    """Return the replica that got most queries of each key."""
    return {number: counts.most_common(1)[0][0] for number, counts in found.items()}


def unevenness(found: dict[int, Counter[str]], there: dict[str, Calls]) -> float:
    total = sum(found.values(), Counter[str]())
    return max(total.values()) * len(there) / total.total()


@given(seed=st.integers(0, 10**6), count=st.integers(1, 5))
@settings(max_examples=8)
def test_a_key_has_one_replica_for_all_senders_from_its_first_query_on(
    seed: int, count: int
) -> None:
    world, there = World.zipf(0, keys=1500, seed=seed), replicas(count, seed)
    senders = [Affinity(max_batch=8) for _ in range(2)]
    found = world.ask(senders, there, 4000, world.even())
    natural = Counter(order(key, there)[0] for key in world.keys)
    if max(natural.values()) * count <= 1.15 * len(world.keys):  # else some are to move
        assert all(
            set(counts) == {order(world.keys[each], there)[0]} for each, counts in found.items()
        )
    assert unevenness(found, there) <= BOUND


@pytest.mark.parametrize(
    ("count", "skew", "senders"),
    [(4, 0.0, 1), (4, 1.0, 4), (16, 0.0, 1), (16, 1.0, 1), (16, 1.0, 3)],
)
def test_loads_are_within_the_bound_and_keys_stay(count: int, skew: float, senders: int) -> None:
    world, there = World.zipf(skew), replicas(count)
    sending = [Affinity(max_batch=8) for _ in range(senders)]
    window = WINDOW * count * senders
    world.ask(sending, there, 3 * window)
    found = world.ask(sending, there, window)
    assert unevenness(found, there) <= BOUND
    carriers = math.ceil(world.weights[0] * count / BOUND)
    least = 0.01 * found[0].total()  # by chance a burst goes elsewhere
    carry = {each for each, queries in found[0].items() if queries > least}
    assert carry == {*order(world.keys[0], there)[:carriers]}
    main = sum(max(counts.values()) for number, counts in found.items() if number)
    assert main >= 0.95 * sum(counts.total() for number, counts in found.items() if number)


def test_senders_with_keys_of_their_own_keep_the_bound_together() -> None:
    there = replicas(4)
    worlds = [World.zipf(1.2, keys=200, seed=seed) for seed in range(3)]
    total: Counter[str] = Counter()
    for world in worlds:
        sender = [Affinity(max_batch=8)]
        world.ask(sender, there, 4 * WINDOW * len(there))
        found = world.ask(sender, there, WINDOW * len(there))
        total += sum(found.values(), Counter[str]())
    assert max(total.values()) * len(there) / total.total() <= BOUND


@pytest.mark.parametrize(
    ("count", "share", "carriers"),
    [(4, 1.0, 4), (4, 0.55, 2), (8, 0.14, 1), (8, 0.45, 3)],
)
def test_a_key_above_the_bound_has_as_few_replicas_as_carry_it(
    count: int, share: float, carriers: int
) -> None:
    assert carriers == math.ceil(share * count / BOUND)
    rest = [(1 - share) / 400] * 400 if share < 1 else []
    world, there = World([share, *rest]), replicas(count)
    sender = [Affinity(max_batch=8)]
    world.ask(sender, there, 4 * WINDOW * count)
    found = world.ask(sender, there, WINDOW * count)
    assert set(found[0]) == {*order(world.keys[0], there)[:carriers]}


@pytest.mark.parametrize(("count", "skew"), [(4, 1.0), (16, 0.0)])
def test_a_key_at_its_first_replica_stays_there(count: int, skew: float) -> None:
    world, there = World.zipf(skew), replicas(count)
    sender, places = [Affinity(max_batch=8)], world.even()
    world.ask(sender, there, 6 * WINDOW * count, places)
    before = homes(world.ask(sender, there, WINDOW * count, places))
    after = world.ask(sender, there, 2 * WINDOW * count, places)
    first = {each for each, home in before.items() if home == order(world.keys[each], there)[0]}
    assert len(first) > 500
    assert {each for each in first & after.keys() if set(after[each]) != {before[each]}} <= {0}


def move_on(
    world: World, before: dict[int, str], after: dict[int, str], there: dict[str, Calls]
) -> set[int]:
    """Return the keys that have left a living replica for a later one of their order."""
    found = set()
    for number in before.keys() & after.keys():
        ranked = order(world.keys[number], there)
        if before[number] in ranked:
            was, came_to = ranked.index(before[number]), ranked.index(after[number])
            found |= {number} if came_to > was else set()
    return found


@pytest.mark.parametrize(("count", "skew"), [(4, 0.0), (4, 1.0), (12, 1.0)])
def test_a_death_moves_the_keys_of_the_dead_and_those_that_the_bound_forces(
    count: int, skew: float
) -> None:
    """Other keys leave no replica up to 1.1 of the mean, and leave no other one below the mean."""
    world, there = World.zipf(skew), replicas(count)
    sender, places = [Affinity(max_batch=8)], world.even()
    world.ask(sender, there, 4 * WINDOW * count, places)
    before = homes(world.ask(sender, there, 2 * WINDOW * count, places))
    dead = next(iter(there))
    left = {each: calls for each, calls in there.items() if each != dead}
    soon = world.ask(sender, left, len(left) * 20, places)
    assert unevenness(soon, left) <= 1.5, "the load of the dead one is spread at once"
    after = homes(world.ask(sender, left, 4 * WINDOW * count, places))
    demand = Counter[str]()
    for number, home in before.items():
        came_to = order(world.keys[number], left)[0] if home == dead else home
        demand[came_to] += world.weights[number] * len(left)
    moved = move_on(world, before, after, left)
    assert world.weigh(moved) * len(left) <= sum(max(each - 1, 0.0) for each in demand.values())
    assert not moved or max(demand.values()) > 1.1


@pytest.mark.parametrize(("count", "skew"), [(4, 0.0), (4, 1.0)])
def test_a_replica_that_joins_takes_its_share_and_no_more(count: int, skew: float) -> None:
    world, there = World.zipf(skew), replicas(count)
    sender, places = [Affinity(max_batch=8)], world.even()
    world.ask(sender, there, 4 * WINDOW * count, places)
    before = homes(world.ask(sender, there, 2 * WINDOW * count, places))
    wider = {**there, "new": IDLE}
    soon = sum(world.ask(sender, wider, 30 * count, places).values(), Counter[str]())
    assert soon["new"] <= 1.5 * 30 * count / len(wider), "it is not flooded"
    after = homes(world.ask(sender, wider, 4 * WINDOW * count, places))
    taken = {each for each, home in after.items() if home == "new"}
    assert 0.6 <= world.weigh(taken) * len(wider) <= BOUND
    assert world.weigh(move_on(world, before, after, wider) - taken) <= 0.1 * world.weigh(taken)


def colliding_keys(there: dict[str, Calls]) -> tuple[str, str]:
    """Return two keys whose first replica is the same one."""
    keys = [f"hot-{number}" for number in range(20)]
    first = {key: order(key, there)[0] for key in keys}
    return next(
        (one, other) for one, other in itertools.combinations(keys, 2) if first[one] == first[other]
    )


def test_a_heavy_key_that_had_to_leave_comes_back_below_the_mean_only() -> None:
    """In means of a replica, one key weighs 0.8, and the other one the weights of the list."""
    there = replicas(4)
    one, other = colliding_keys(there)
    first = order(one, there)[0]
    sender = Affinity(max_batch=8)

    def home(weight: float) -> str:
        world = World([0.8, weight, *[(3.2 - weight) / 300] * 300])
        world._digests[:2] = [digest(one), digest(other)]
        world.ask([sender], there, 5 * WINDOW * 4, world.even())
        found = world.ask([sender], there, 200, world.even())
        assert homes(found)[0] == first, "the heavier one stays"
        return homes(found)[1]

    at_home = [home(weight) == first for weight in (0.4, 0.6, 0.4, 0.3, 0.1, 0.3, 0.4)]
    assert at_home == [True, False, False, False, True, True, True]


FULL = 2 * 8  # calls to a replica whose stage has max_batch=8, while the others have none


@pytest.mark.parametrize(
    ("own", "others", "place"),
    [
        (Calls(FULL - 1, 0), IDLE, 0),
        (Calls(FULL, 0), IDLE, 1),
        (Calls(FULL + 8, 0), Calls(5, 0), 0),
        (Calls(FULL + 10, 0), Calls(5, 0), 1),
        (Calls(0, 1), IDLE, 0),
        (Calls(0, 2), IDLE, 1),
        (Calls(3, 2), Calls(9, 0), 1),
    ],
)
def test_a_full_or_silent_replica_beats_affinity(own: Calls, others: Calls, place: int) -> None:
    ranked = order("key", replicas(4))
    there = {each: own if each == ranked[0] else others for each in ranked}
    sender = Affinity(max_batch=8)
    assert sender.choose(digest("key"), there) == ranked[place]
    assert sender.rank(digest("key"), there)[0] == ranked[place]


def test_among_full_replicas_the_one_with_the_fewest_calls_is_taken() -> None:
    ranked = order("key", replicas(3))
    there = dict(zip(ranked, (Calls(90, 2), Calls(10, 4), Calls(40, 2)), strict=True))
    assert Affinity(max_batch=1).choose(digest("key"), there) == ranked[1]


def test_a_silent_replica_is_asked_now_and_then_while_nothing_is_open_there() -> None:
    ranked = order("key", replicas(3))
    sender = Affinity(max_batch=64)
    there = {each: Calls(0, 5 if each == ranked[0] else 0) for each in ranked}
    chosen = [sender.choose(digest("key"), there) for _ in range(40)]
    assert [number for number, each in enumerate(chosen) if each == ranked[0]] == [16, 33]
    there[ranked[0]] = Calls(1, 5)
    assert ranked[0] not in {sender.choose(digest("key"), there) for _ in range(40)}


def test_choices_are_those_of_every_other_process() -> None:
    """The order of the replicas is no input, and neither is Python's own hash."""
    there = replicas(5)
    chosen = []
    for each in (there, dict(reversed(there.items()))):
        world, sender = World.zipf(1.0, keys=300), Affinity(max_batch=8)
        places = world.even()
        text = [
            sender.choose(digest(world.keys[bisect.bisect(world._sums, place)]), each)
            for place in itertools.islice(places, 4000)
        ]
        chosen.append(hashlib.blake2b(" ".join(text).encode(), digest_size=8).hexdigest())
    assert chosen == [CHOICES, CHOICES]


def test_a_sender_remembers_so_many_keys_and_forgotten_ones_stay() -> None:
    there = replicas(3)
    sender = Affinity(max_batch=8, keys_max=50)
    before = [sender.choose(digest(key), there) for key in range(100)]
    assert len(sender) == 50
    assert [sender.choose(digest(key), there) for key in range(100)] == before
    assert len(sender) == 50


def test_weights_that_grow_too_large_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> dict[int, Counter[str]]:
        world, there = World.zipf(1.0, keys=100), replicas(2)
        return world.ask([Affinity(max_batch=8)], there, 8000, world.even())

    plain = run()
    monkeypatch.setattr(affinity, "_STEP_MAX", 5.0)
    assert run() == plain


@pytest.mark.parametrize(
    "make",
    [
        lambda: Affinity(max_batch=0),
        lambda: Affinity(max_batch=1, bound=1.0),
        lambda: Affinity(max_batch=1, keys_max=0),
    ],
)
def test_mistakes_are_named(make: Callable[[], Affinity]) -> None:
    with pytest.raises(ValueError, match=r"bound=.* must be above 1, max_batch=. and keys_max="):
        make()
