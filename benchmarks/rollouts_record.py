"""The findings of a run of rollouts.py: when each rollout had a version, and their figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from figures import OURS, Figure
from rollouts_driver import GLOO, HOPLITE, RAY

MIB = 1 << 20
MODES = {HOPLITE: OURS, RAY: "Ray", GLOO: "Gloo"}
DELTA_GOAL, GOAL = 0.2, 1.2  # times S/B: with the version before, and without


@dataclass(slots=True)
class Life:
    """A rollout from its start to its end. Times are of the machine's monotonic clock."""

    name: str
    rank: int
    ended_s: float | None = None  # when it was killed
    began_s: float | None = None  # when it began to listen
    had_s: dict[int, float] = field(default_factory=dict)  # by version

    def lives_through(self, begin_s: float, end_s: float) -> bool:
        """Return whether it listens all that time."""
        has_begun = self.began_s is not None and self.began_s < begin_s
        return has_begun and (self.ended_s is None or self.ended_s > end_s)


class Record:
    """All publications of a mode and all lives of rollouts, and what follows from them."""

    def __init__(self, mode: str, bound_s: float) -> None:
        self.mode = mode
        self.bound_s = bound_s  # S/B
        self.published_s: dict[int, float] = {}  # by version
        self.lives: dict[str, Life] = {}
        self.link_bytes: dict[int, tuple[float, int]] = {}  # mean of rollouts' links; trainer's
        self.failures: list[str] = []

    def add_collected(
        self, found: Mapping[str, tuple[float | None, Mapping[str, float]] | None], now_s: float
    ) -> None:
        """Add what the rollouts have said of themselves; None is of one that has died."""
        for name, said in found.items():
            life = self.lives[name]
            if said is not None:
                life.began_s = said[0]
                life.had_s |= {int(version): had_s for version, had_s in said[1].items()}
            elif life.ended_s is None:
                life.ended_s = now_s
                self.failures.append(f"rollout {name} has died, and was not killed")

    def find_living(self, version: int) -> list[Life]:
        """Return the rollouts that lived from before this publication until the next one."""
        end_s = self.published_s.get(version + 1, self.published_s[version] + self.bound_s)
        begin_s = self.published_s[version]
        return [each for each in self.lives.values() if each.lives_through(begin_s, end_s)]

    def times_s(self, version: int, *, with_base: bool) -> list[float]:
        """Return how long a version took to each of them that had the version before, or not."""
        began_s = self.published_s[version]
        return [
            life.had_s[version] - began_s
            for life in self.find_living(version)
            if version in life.had_s
            and (life.had_s.get(version - 1, began_s) < began_s) is with_base
        ]

    def count_missed(self, version: int) -> int:
        """Return how many of them never had it."""
        return sum(version not in each.had_s for each in self.find_living(version))

    def join_times_s(self) -> list[float]:
        """Return how long each rollout took that joined, from its begin to its first version."""
        first_s = min(self.published_s.values(), default=0.0)
        return [
            min(each.had_s.values()) - each.began_s
            for each in self.lives.values()
            if each.began_s is not None and each.began_s > first_s and each.had_s
        ]

    def count_late(self) -> int:
        """Return how many times were above their goal."""
        found = [(GOAL, each) for each in self.join_times_s()]
        for version in self.published_s:
            found += [(DELTA_GOAL, each) for each in self.times_s(version, with_base=True)]
            found += [(GOAL, each) for each in self.times_s(version, with_base=False)]
        return sum(took_s > goal * self.bound_s for goal, took_s in found)

    def figures(self, what: str) -> Iterator[Figure]:
        """Give the figures; `what` begins each one's name."""
        by, is_ours = MODES[self.mode], self.mode == HOPLITE
        every = [(version, self.times_s(version, with_base=True)) for version in self.published_s]
        slowest_s = tuple(max(times_s) for _, times_s in every if times_s)
        joined_s = tuple(self.join_times_s())
        missed = sum(map(self.count_missed, self.published_s))
        kinds = (
            ("slowest rollout with the version before", slowest_s, DELTA_GOAL),
            ("first version of a rollout that joins", joined_s, GOAL),
        )
        for kind, samples, goal in kinds:
            if samples:
                yield Figure(
                    case=f"{what}, {kind}",
                    by=by,
                    unit="s",
                    samples=samples,
                    bound=self.bound_s,
                    goal=goal * self.bound_s if is_ours else None,
                )
        yield Figure(
            case=f"{what}, missed",
            by=by,
            unit="versions",
            samples=(float(missed),),
            goal=0.0 if is_ours else None,
        )
        if self.link_bytes:
            to_rollouts = tuple(each / MIB for each, _ in self.link_bytes.values())
            yield Figure(
                case=f"{what}, bytes over a rollout's link", by=by, unit="MiB", samples=to_rollouts
            )

    def describe(self) -> Iterator[str]:
        """Return lines for people: one of each version, and a summary."""
        for version in self.published_s:
            yield f"  version {version}: {self._describe_version(version)}"
        times_s = [
            each for version in self.published_s for each in self.times_s(version, with_base=True)
        ]
        yield f"  had the version before: {self._describe_times(times_s)}"
        yield f"  joined: {self._describe_times(self.join_times_s())}"
        missed = sum(map(self.count_missed, self.published_s))
        asked = sum(len(self.find_living(version)) for version in self.published_s)
        yield f"  {missed} of {asked} missed; {self.count_late()} later than their goals"
        yield from (f"  {words}" for words in self.failures)

    def _describe_version(self, version: int) -> str:
        times_s = [
            each
            for with_base in (True, False)
            for each in self.times_s(version, with_base=with_base)
        ]
        words = self._describe_times(times_s)
        if missed := self.count_missed(version):
            words += f"; {missed} missed it"
        if version in self.link_bytes:
            came, sent = self.link_bytes[version]
            words += f"; {came / MIB:.1f} MiB to a rollout, {sent / MIB:.1f} from the trainer"
        return words

    def _describe_times(self, times_s: Sequence[float]) -> str:
        if not times_s:
            return "no rollout"
        median_s, most_s = statistics.median(times_s), max(times_s)
        return (
            f"{len(times_s)} times, median {median_s:.2f} s, most {most_s:.2f} s; "
            f"{median_s / self.bound_s:.2f} and {most_s / self.bound_s:.2f} x S/B"
        )
