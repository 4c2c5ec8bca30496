"""Lists of channels: what several nodes say, brought together; and the metrics of one node."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hoplite_ray.channel.listing import ListedReader, collect_channels
from hoplite_ray.channel.record import Origin, Record
from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.plugin.steward.publishing import measure_channels
from hoplite_ray.values.versions import VersionNumber


def row(
    ordinal: int,
    *readers: tuple[int, int],
    name: str = "a",
    namespace: str = "",
    is_home: bool = False,
) -> pb.Channel:
    """A node's row: version 10 per ordinal, 1 s apart; readers as (process, ordinal)."""
    origin = Origin(namespace, name, ordinal, 77)
    kept = (VersionNumber(1, 1, ordinal - 1),)
    record = Record(10 * ordinal, float(ordinal), 500, kept, (), origin)
    return pb.Channel(
        channel_id=f"{namespace}/{name}".encode(),
        epoch=1,
        counter=1,
        n=ordinal,
        record=record.encode(),
        is_home=is_home,
        readers=[
            pb.ChannelReader(process=process, version=10 * read, ordinal=read, time_s=float(read))
            for process, read in readers
        ],
    )


def test_the_newest_version_of_any_node_counts_and_all_readers_do() -> None:
    answers = {1: [row(3, (70, 3))], 2: [row(5, (80, 5), (81, 2))], 3: [row(4, is_home=True)]}
    (channel,) = collect_channels(answers)
    assert (channel.version, channel.time_s, channel.size_bytes, channel.kept) == (50, 5.0, 500, 2)
    assert (channel.publisher_node_id, channel.home_node_id) == (77, 3)
    assert channel.lag_versions == 3
    assert channel.readers == (
        ListedReader(2, 81, 20, 3, 3.0),
        ListedReader(1, 70, 30, 2, 2.0),
        ListedReader(2, 80, 50, 0, 0.0),
    )


def test_a_reader_may_be_ahead_of_what_the_other_nodes_have_heard() -> None:
    (channel,) = collect_channels({1: [row(3, (70, 4))]})
    assert channel.readers == (ListedReader(1, 70, 40, 0, 0.0),)


def test_channels_come_in_the_order_of_names_and_unknown_records_are_left_out() -> None:
    foreign = pb.Channel(channel_id=b"x", n=1, epoch=1, counter=1, record=b"not ours")
    rows = [row(1, name="b"), foreign, row(1, name="a", namespace="z"), row(1, name="a")]
    listed = [(each.namespace, each.name) for each in collect_channels({1: rows})]
    assert listed == [("", "a"), ("", "b"), ("z", "a")]


@given(st.dictionaries(st.integers(1, 5), st.integers(1, 9), min_size=1))
def test_the_order_of_answers_does_not_count(known: dict[int, int]) -> None:
    answers = {node: [row(ordinal, (node, ordinal))] for node, ordinal in known.items()}
    shuffled = dict(sorted(answers.items(), reverse=True))
    assert collect_channels(answers) == collect_channels(shuffled)
    (channel,) = collect_channels(answers)
    assert channel.version == 10 * max(known.values())
    assert channel.lag_versions == max(known.values()) - min(known.values())


def test_the_metrics_of_a_node_are_those_of_its_slowest_readers() -> None:
    rows = [row(5, (80, 5), (81, 2), is_home=True), row(1, name="b"), row(2, (82, 2), name="c")]
    assert measure_channels(collect_channels({0: rows})) == {
        (("", "a"), "channel_version"): 50,
        (("", "a"), "channel_reader_version"): 20,
        (("", "a"), "channel_lag_versions"): 3,
        (("", "a"), "channel_lag_seconds"): 3.0,
        (("", "c"), "channel_reader_version"): 20,
        (("", "c"), "channel_lag_versions"): 0,
        (("", "c"), "channel_lag_seconds"): 0.0,
    }
