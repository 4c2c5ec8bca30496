"""What benchmarks/collectives.py plays, and what it says of it."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from pathlib import Path

import bounds
import collectives
import pytest
import records
from cases import Case, goals, size_bytes, sweep
from meters import Usage, cpu_s, machine
from peers import PEERS, Absent
from scenes import COLLECTIVES, KIB, MIB, Sample, Scene, Variant
from table import Result, Row, lines
from table import records as records_of

NODES, RATE_MBIT = 8, 500


def sample(seconds: float, busy_share: float = 0.5) -> Sample:
    return Sample(seconds, {0: seconds}, Usage(busy_share, 1.0, 0.1, 3))


def played(case: Case, peer: str, level: str, *seconds: float) -> Result:
    return Result(case, peer, level, samples=[sample(each) for each in seconds])


def case_of(collective: str, size: int, variant: Variant = Variant.PLAIN, nodes: int = 8) -> Case:
    return Case(1, Scene(collective, size, variant, nodes=nodes, rate_mbit=RATE_MBIT))


def test_the_lines_of_the_goals_keep_their_numbers() -> None:
    large = 32 * MIB
    cases = goals(nodes=NODES, rate_mbit=RATE_MBIT, large_bytes=large)
    first = {1: "broadcast", 6: "reduce", 8: "allreduce", 10: "gather", 14: "reduce"}
    for number, collective in first.items():
        assert (cases[number - 1].number, cases[number - 1].scene.collective) == (
            number,
            collective,
        )
    assert [case.number for case in cases if case.is_wanted(["14", "late"])] == [9, 14]
    assert all(case.is_wanted([]) for case in cases)


def test_the_commands_of_the_page_say_what_to_play(monkeypatch: pytest.MonkeyPatch) -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "internals/performance/methodology.md").read_text()
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.M | re.S)
    for command in block.splitlines():
        sudo, python, program, *arguments = shlex.split(command, comments=True)
        assert [sudo, python] == ["sudo", ".venv/bin/python"]
        assert program == "benchmarks/collectives.py"
        monkeypatch.setattr("sys.argv", [program, *arguments])
        assert collectives.chosen(collectives.parse_options())


def test_a_sweep_plays_every_collective_at_every_size_and_every_variant_of_the_largest() -> None:
    cases = sweep(nodes=NODES, rate_mbit=RATE_MBIT, sizes_bytes=[KIB, MIB])
    plain = [case.scene for case in cases if case.scene.variant == Variant.PLAIN]
    assert {(scene.collective, scene.size_bytes) for scene in plain} == {
        (collective, size)
        for collective in COLLECTIVES
        for size in ((KIB,) if collective == "objects" else (KIB, MIB))
    }
    varied = [case.scene for case in cases if case.scene.variant != Variant.PLAIN]
    assert {scene.variant for scene in varied} == set(Variant) - {Variant.PLAIN}
    assert {scene.size_bytes for scene in varied} == {MIB}
    assert all(case.scene.bound_s > 0 for case in cases)
    assert all(case.name for case in cases)


def test_a_limit_is_of_the_size_and_the_nodes_that_it_was_given_for() -> None:
    assert case_of("broadcast", 256 * MIB).limit == 1.04
    assert case_of("broadcast", MIB).limit == 1.15
    assert case_of("broadcast", MIB, nodes=16).limit == 1.25
    assert case_of("broadcast", 32 * KIB).limit is None
    assert case_of("gather", 32 * MIB).limit is None


def test_the_last_one_of_a_staggered_collective_comes_a_hop_after_the_first() -> None:
    for collective in ("broadcast", "reduce", "allreduce"):
        scene = case_of(collective, MIB, Variant.STAGGERED).scene
        assert len(scene.arrivals_s) == NODES
        assert scene.arrivals_s[0] == 0
    reduce = case_of("reduce", MIB, Variant.STAGGERED).scene
    assert reduce.arrivals_s[-1] == pytest.approx(reduce.hop_s)
    broadcast = case_of("broadcast", MIB, Variant.STAGGERED).scene
    assert broadcast.arrivals_s[1] == 0  # the first receiver comes with the origin
    ends = {rank: 1.0 + rank for rank in range(NODES)}
    taken = broadcast.sample(ends, Usage(0, 0, 0, 0)).seconds
    assert taken == pytest.approx(NODES - broadcast.arrivals_s[-1])


def test_a_slow_node_and_the_origin_do_not_count_among_the_receivers() -> None:
    slow = case_of("broadcast", MIB, Variant.SLOW_LINK).scene
    assert slow.receivers == [1, 2, 3, 5, 6, 7]
    assert slow.slow_rank == 4


def test_nobody_plays_what_the_memory_cannot_hold() -> None:
    assert Scene("broadcast", KIB).why_not is None
    why = Scene("allgather", 1 << 40).why_not
    assert why is not None
    assert "GiB of memory" in why


@pytest.mark.parametrize(
    ("text", "size"), [("1K", KIB), ("32KiB", 32 * KIB), ("4096", 4096), ("1 GiB", 1 << 30)]
)
def test_sizes_are_written_as_people_do(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "large", "-1K", "1TiB", "3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        size_bytes(text)


def test_a_row_names_the_fastest_of_each_level_and_whether_it_is_ahead() -> None:
    case = case_of("broadcast", 32 * MIB)
    row = Row(
        [
            played(case, "hoplite", "store", 0.5, 0.6, 0.7),
            played(case, "openmpi", "store", 3.0),
            played(case, "gloo", "store", 1.2),
            played(case, "hoplite", "ray", 1.0),
            played(case, "ray", "ray", 0.9),
        ]
    )
    assert row.rivals() == "gloo 2.00 x; BEHIND: ray 0.90 x"
    assert row.results[0].holds() is False  # 0.6 s are 1.07 x the bound
    text = lines([row])
    assert "OVER" in text[1]
    assert "hoplite under ray" in text[0]


def test_a_row_says_what_a_gb_costs_the_cores_beside_each_peer() -> None:
    case = case_of("allreduce", 32 * MIB)
    moved_gb = 14 * 32 * MIB / 1e9
    ours, theirs = (played(case, peer, "store", 1.0) for peer in ("hoplite", "gloo"))
    theirs.samples += [Sample(1.0, {0: 1.0}, Usage(0.5, 1.0, own_s, 3)) for own_s in (0.2, 0.8)]
    assert ours.cpu_s_per_gb == pytest.approx(0.1 / moved_gb)
    assert theirs.cpu_s_per_gb == pytest.approx(0.2 / moved_gb)
    small = played(case_of("reduce", KIB), "hoplite", "store", 1.0)
    assert small.cpu_s_per_gb is None
    under_ray = played(case, "hoplite", "ray", 1.0)
    assert Row([ours, theirs, under_ray]).costs() == "0.21 core s/GB, 0.50 x gloo's"
    assert Row([small]).costs() == ""


def test_what_every_collective_moves_fits_through_the_links_in_its_bound() -> None:
    for collective in COLLECTIVES:
        scene = case_of(collective, MIB).scene
        links_bytes = NODES * bounds.payload_bytes_per_s(RATE_MBIT) * scene.bound_s
        assert 0 < scene.moved_bytes <= links_bytes * 1.001


def test_a_process_has_run_for_as_long_as_it_says_itself() -> None:
    before = cpu_s(os.getpid())
    own = time.process_time()
    after = cpu_s(os.getpid())
    assert before is not None
    assert after is not None
    assert before <= own <= after


def test_a_peer_that_is_not_there_is_in_the_table_and_among_the_records() -> None:
    case = case_of("reduce", MIB)
    absent = Absent("openmpi", "store", "not installed: apt-get install openmpi-bin")
    row = Row([played(case, "hoplite", "store", 0.02), *Row.of(case, [absent]).results])
    assert "openmpi: not installed: apt-get install openmpi-bin" in lines([row])
    ours, theirs = (each | machine() for each in records_of([row], NODES, RATE_MBIT))
    assert (ours["failure"], ours["median_s"], ours["limit"]) == (None, 0.02, 1.2)
    assert theirs["failure"] == "not installed: apt-get install openmpi-bin"
    assert theirs["samples"] == []
    text = "the table\n" + "\n".join(json.dumps(each) for each in (ours, theirs))
    read = records.read({"of a run": text})
    assert len(read) == 2  # report.py can draw both


def test_saturated_cores_are_marked() -> None:
    case = case_of("reduce", MIB)
    hot = Result(case, "gloo", "store", samples=[sample(0.1, busy_share=0.95)])
    text = lines([Row([played(case, "hoplite", "store", 0.02), hot])])
    assert "!5.69 x" in text[1]
    assert text[-1].startswith("!: with saturated cores")


def test_of_a_few_ticks_of_the_clock_nobody_can_tell_how_busy_the_cores_were() -> None:
    assert not Usage(busy_s=0.02, cores_s=0.02, own_s=0, retransmitted=0).is_saturated
    assert Usage(busy_s=0.2, cores_s=0.2, own_s=0, retransmitted=0).is_saturated


def test_every_peer_says_whether_it_is_there() -> None:
    for module in PEERS.values():
        why = module.why_absent()
        assert why is None or why.startswith("not installed: ")
