"""Affinity: the replica of a query that has a key. Pure: no clock, and no chance.

A key's replicas are in rendezvous order, which is by a hash of the key and the replica's id. A
query goes to the first of them that is not above its bound. All senders have the same orders, so
they agree without a message.

The *load* of a replica is its share of the last queries of this sender. Two other notions fail:

    open calls              are near 0 at low load, where any share of the queries looks even
    queries of ten seconds  are too few to show a share where queries are rare

Shares add up: if no sender gives a replica more than 1.25 times the mean of its own queries, no
replica gets more than 1.25 times the mean of all queries. So each sender keeps the bound by itself,
at every rate. Open calls show something else: a replica that is too slow for its share is *full*,
and a full replica beats affinity.

Whole keys leave a replica, and not some queries of all its keys. There are two classes of keys:

    heavy   at least 1/16 of a replica's mean. They are placed one by one, the heaviest first. A key
            above the bound gets the first replicas of its order that carry it together.
    light   all others. Such a key belongs to the first replica of its order that admits it. Each
            replica admits a share of the light keys, drawn by a hash.

A replica lowers its share when it expects more than a limit below the bound, so light keys leave it
before heavy ones do. It raises its share only when it expects less than the mean by a margin.
Between the two, no key moves. A sender that has seen few queries widens all limits, because a share
of few queries says little.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998
(rendezvous); Mirrokni, Thorup and Zadimoghaddam, "Consistent hashing with bounded loads", SODA 2018
(the bound); Vortex 4.1 (affinity groups). Design decision 33.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import NamedTuple

BOUND = 1.25  # of a replica's load, times the mean
KEYS_MAX = 8192  # that a sender remembers, in 2 MiB with 16 replicas; the least recent one goes

_QUERIES = 512  # that a sender remembers for each replica; a share is then right within 3 %
_HIGH, _TARGET, _LOW = 0.8, 0.4, -0.4  # limits of light keys, from 0 (the mean) to 1 (the bound)
_HEAVY, _LIGHT = 1 / 16, 1 / 32  # of a replica's mean: where a key becomes heavy, and light again
_HEAVY_QUERIES = 4  # that a heavy key has at least
_SETTLES = 16  # times that keys are placed while as many queries come as are remembered
_STEP_MAX = 1e100  # of a query's weight, before all weights are divided by it
_SILENT = 2  # calls given up since the last answer; then no query goes there
_PROBE = 16  # queries that a silent replica loses, before one goes there all the same
_MASK = 2**64 - 1


class Calls(NamedTuple):
    """The calls of this sender to a replica.

    open:    that have no answer yet.
    silent:  that were given up since the replica has last answered.
    """

    open: int
    silent: int


def find_full(calls: Mapping[str, Calls], full_calls: int) -> list[str]:
    """Return the replicas that are full, and the silent ones.

    calls:       to each replica.
    full_calls:  open calls with which a replica is full while the others have none. It is full with
                 as many and twice the mean of the others.
    """
    others = max(len(calls) - 1, 1)
    total = sum(each.open for each in calls.values())
    return [
        replica
        for replica, each in calls.items()
        if each.silent >= _SILENT or each.open >= full_calls + 2 * (total - each.open) / others
    ]


class Probes:
    """The queries that silent replicas get all the same, because they would never answer one."""

    def __init__(self) -> None:
        self._skipped: Counter[str] = Counter()  # queries that a silent replica has lost

    def is_due(self, replica: str, calls: Calls) -> bool:
        """Count a query that a full or silent replica is to lose; True if it gets the query."""
        if calls.open:
            return False
        self._skipped[replica] += 1
        if self._skipped[replica] <= _PROBE:
            return False
        del self._skipped[replica]
        return True

    def keep_only(self, replicas: Collection[str]) -> None:
        """Forget all other replicas."""
        for each in self._skipped.keys() - set(replicas):
            del self._skipped[each]


class _Row:
    """A key that this sender remembers.

    digest:  of the key.
    order:   its replicas, in rendezvous order, at `epoch`.
    weight:  of its queries.
    homes:   the replicas of a heavy key, the first ones first; none for a light key.
    """

    __slots__ = ("digest", "epoch", "homes", "order", "weight")

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.order: tuple[str, ...] = ()
        self.epoch = -1
        self.weight = 0.0
        self.homes: tuple[str, ...] = ()


class Affinity:
    """The choices of one sender among the replicas of one stage.

    Weights and loads count queries. A later query counts more by a factor, so earlier ones fade
    and need not be touched.
    """

    def __init__(self, *, max_batch: int, bound: float = BOUND, keys_max: int = KEYS_MAX) -> None:
        """Begin without replicas and without keys.

        max_batch:  of the stage. A replica is full when it has as many calls of this sender as two
                    batches, and twice the mean of the other replicas.
        bound:      of a replica's load, times the mean.
        keys_max:   of keys that are remembered.
        """
        if not bound > 1 or max_batch < 1 or keys_max < 1:
            raise ValueError(
                f"bound={bound} must be above 1, max_batch={max_batch} and keys_max={keys_max} "
                "at least 1"
            )
        self._bound = bound
        self._full_calls = 2 * max_batch
        self._keys_max = keys_max
        self._rows: dict[bytes, _Row] = {}  # by digest, the least recent one first
        self._heavy: dict[bytes, _Row] = {}
        self._rising: dict[bytes, _Row] = {}  # light keys that are heavy at the next `_settle`
        self._heavy_from = 0.0  # the weight
        self._epoch = 0  # of the replicas
        self._replica_hashes: dict[str, int] = {}
        self._loads: dict[str, float] = {}  # of the queries that were sent there
        self._reserved: dict[str, float] = {}  # for heavy keys
        self._wanted: dict[str, float] = {}  # of light keys, if the replica admitted all
        self._admitted: dict[str, float] = {}  # of light keys that it admits
        self._shares: dict[str, float] = {}  # of light keys that each replica admits
        self._probes = Probes()
        self._total = 0.0
        self._step = 1.0  # the weight of the next query
        self._until_settle = 0  # queries

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self._rows)

    def choose(self, digest: bytes, calls: Mapping[str, Calls]) -> str:
        """Return the replica for a query with this key, and count the query.

        digest:  of the key, by `digest_key`.
        calls:   to each replica that can be called; at least one.

        Cost:    O(replicas), and O(replicas log replicas) for a key that is not remembered.
        """
        if calls.keys() != self._loads.keys():
            self._change_replicas(calls.keys())
        row = self._find_row(digest)
        if self._until_settle <= 0:
            self._settle()
        self._until_settle -= 1
        chosen = self._pick(row, calls)
        row.weight += self._step
        if row.weight >= self._heavy_from and not row.homes:
            self._rising[digest] = row
        self._loads[chosen] += self._step
        self._total += self._step
        self._step *= 1 + 1 / (_QUERIES * len(self._loads))
        if self._step > _STEP_MAX:
            self._divide_weights()
        return chosen

    def rank(self, digest: bytes, calls: Mapping[str, Calls]) -> tuple[str, ...]:
        """Return all replicas: first that of `choose`, then the others in the key's order."""
        chosen = self.choose(digest, calls)
        return (chosen, *(each for each in self._rows[digest].order if each != chosen))

    def _pick(self, row: _Row, calls: Mapping[str, Calls]) -> str:
        order, homes, loads = row.order, row.homes, self._loads
        mean = (self._total + self._step) / len(loads)
        full = find_full(calls, self._full_calls)
        if not homes:
            visited = self._visit(row)
            for each in visited:
                self._wanted[each] += self._step
            homes = visited[-1:]
            self._admitted[homes[0]] += self._step
        if homes[0] in full and self._probes.is_due(homes[0], calls[homes[0]]):
            return homes[0]
        if len(homes) > 1:  # a key with several homes leaves room for keys with one
            most = self._limit(mean, _HIGH) - self._step
            for each in homes:
                if each not in full and loads[each] <= most:
                    return each
        most = self._limit(mean) - self._step
        for each in (*homes, *order):
            if each not in full and loads[each] <= most:
                return each
        if free := [each for each in order if each not in full]:
            return min(free, key=loads.__getitem__)
        return min(order, key=lambda each: sum(calls[each]))

    def _visit(self, row: _Row) -> tuple[str, ...]:
        """Return the replicas of a light key up to the one that admits it, which is the last."""
        shares = self._shares
        for number, each in enumerate(row.order, 1):
            if shares[each] >= 1 or self._draw(row, each) < shares[each]:
                return row.order[:number]
        return row.order[:1]

    def _draw(self, row: _Row, replica: str) -> float:
        """Return a number from 0 to 1 for a key and a replica: the product of their hashes."""
        product = int.from_bytes(row.digest[:8], "little") * self._replica_hashes[replica]
        return (product & _MASK) / (_MASK + 1)

    def _limit(self, mean: float, way: float = 1.0) -> float:
        """Return the load that is a part of the way from the mean to the bound."""
        queries = mean / self._step
        widened = math.sqrt(_QUERIES / queries) if 0 < queries < _QUERIES else 1.0
        return mean * (1 + way * (self._bound - 1) * widened)

    def _find_row(self, digest: bytes) -> _Row:
        row = self._rows.pop(digest, None)
        if row is None:
            row = _Row(digest)
            if len(self._rows) >= self._keys_max:
                oldest = next(iter(self._rows))
                for table in (self._rows, self._heavy, self._rising):
                    table.pop(oldest, None)
        self._rows[digest] = row
        self._renew_order(row)
        return row

    def _renew_order(self, row: _Row) -> None:
        if row.epoch == self._epoch:
            return
        scores = {each: _score(row.digest, each) for each in self._loads}
        row.order = tuple(sorted(scores, key=lambda each: (scores[each], each)))
        row.homes = tuple(each for each in row.homes if each in scores)
        row.epoch = self._epoch

    def _change_replicas(self, replicas: Collection[str]) -> None:
        """Take in which replicas there are."""
        self._epoch += 1
        self._until_settle = 0
        hashes = self._replica_hashes = {
            each: int.from_bytes(blake2b(each.encode(), digest_size=8).digest(), "little") | 1
            for each in sorted(replicas)
        }
        self._loads = _spread(self._loads, hashes)
        self._wanted = _spread(self._wanted, hashes)
        self._admitted = _spread(self._admitted, hashes)
        self._shares = {each: self._shares.get(each, 1.0) for each in hashes}
        self._probes.keep_only(hashes)

    def _settle(self) -> None:
        """Place the heavy keys, and set the share of the light keys that each replica admits."""
        remembered = self._total / self._step
        self._until_settle = int(max(remembered / _SETTLES, len(self._loads)))
        mean = self._total / len(self._loads)
        self._sort_keys(mean)
        self._place_heavy(mean)
        high, target, low = (self._limit(mean, way) for way in (_HIGH, _TARGET, _LOW))
        for each, share in self._shares.items():
            light, wanted = self._admitted[each], self._wanted[each]
            expected = self._reserved[each] + light
            if expected > high and light > 0:
                kept = min(max(target - self._reserved[each], 0.0) / light, 1.0)
                self._shares[each] = share * kept
                self._admitted[each] = light * kept
            elif expected < low and share < 1 and wanted > 0:
                more = min((mean - expected) / wanted, 1 - share)
                self._shares[each] = share + more
                self._admitted[each] = light + more * wanted

    def _sort_keys(self, mean: float) -> None:
        """Find the keys that have become heavy or light, and count their weights so."""
        self._heavy_from = max(_HEAVY * mean, _HEAVY_QUERIES * self._step)
        for row in list(self._heavy.values()):
            self._renew_order(row)
            if row.weight < self._heavy_from * _LIGHT / _HEAVY:
                del self._heavy[row.digest]
                row.homes = ()
                self._count_light(row, row.weight)
        for row in self._rising.values():
            if row.weight >= self._heavy_from:
                self._renew_order(row)
                self._heavy[row.digest] = row
                self._count_light(row, -row.weight)
        self._rising.clear()

    def _count_light(self, row: _Row, weight: float) -> None:
        visited = self._visit(row)
        for each in visited:
            self._wanted[each] = max(self._wanted[each] + weight, 0.0)
        self._admitted[visited[-1]] = max(self._admitted[visited[-1]] + weight, 0.0)

    def _place_heavy(self, mean: float) -> None:
        self._reserved = dict.fromkeys(self._loads, 0.0)
        bound = self._limit(mean)
        for row in sorted(self._heavy.values(), key=lambda each: (-each.weight, each.digest)):
            home = self._find_home(row, mean, bound)
            if home is None:
                row.homes = self._split(row, bound)
            else:
                row.homes = (home,)
                self._reserved[home] += row.weight

    def _find_home(self, row: _Row, mean: float, bound: float) -> str | None:
        """Return the replica of a heavy key: the first with room; None if none has.

        The limit is the mean for a replica to which the key would come back, so that it does not go
        to and fro.
        """
        weight, reserved = row.weight, self._reserved
        for each in row.order:
            is_own = each in row.homes or not row.homes
            if reserved[each] + weight <= (bound if is_own else mean):
                return each
        return next((each for each in row.order if reserved[each] + weight <= bound), None)

    def _split(self, row: _Row, bound: float) -> tuple[str, ...]:
        """Return the first replicas of a key's order with room that carry it together."""
        homes, left = [], row.weight
        for each in row.order:
            room = min(bound - self._reserved[each], left)
            if room > 0:
                homes.append(each)
                self._reserved[each] += room
                left -= room
        return tuple(homes) or row.order[:1]

    def _divide_weights(self) -> None:
        """Make the weight of the next query 1, before weights are too large for a float."""
        step, self._step = self._step, 1.0
        self._total /= step
        self._heavy_from /= step
        for row in self._rows.values():
            row.weight /= step
        for table in (self._loads, self._reserved, self._wanted, self._admitted):
            for each in table:
                table[each] /= step


def _score(digest: bytes, replica: str) -> bytes:
    """Return the place of a replica in a key's order. All processes have the same one."""
    return blake2b(replica.encode(), digest_size=8, key=digest).digest()


def _spread(counts: Mapping[str, float], replicas: Collection[str]) -> dict[str, float]:
    """Return the counts of other replicas, with the same sum.

    A replica that has come gets the mean, and the others keep their shares of the rest. So a new
    replica is no empty one, to which all keys would go at once.
    """
    mean = sum(counts.values()) / len(replicas)
    kept = {each: counts[each] for each in replicas if each in counts}
    before = sum(kept.values())
    if not before:
        return dict.fromkeys(replicas, mean)
    scale = mean * len(kept) / before
    return {each: kept[each] * scale if each in kept else mean for each in replicas}
