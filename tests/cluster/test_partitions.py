"""Views and transfers on real nodes when the network is cut: both ways, one way, and healed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import cluster
import numpy as np
import pytest
from cluster import Cluster

from hoplite_ray.errors import GetTimeoutError
from hoplite_ray.store import Store, new_id

RATE_MBIT = 1000
ARENA_BYTES = 32 << 20
OPTIONS = {"link_down_max_ms": 1000}  # a cut counts as a death after a second in place of three

# Runs at a node's place in the network, and ends when it is as wanted there: argv is the node's
# directory, the least epoch, and the ids of the members, or nothing for a shortage.
WAIT = """
import asyncio, json, pathlib, sys
from hoplite_ray.control.client import ControlClient
from hoplite_ray.errors import ControlError

async def wait(directory, epoch, wanted):
    calls = ControlClient((directory / "secret").read_bytes().strip())
    while True:
        try:  # one life may end and the next one begin at any moment
            control = json.loads((directory / "node.json").read_text())["control"]
            view = await calls.view(control)
            told = await calls.describe(control)
            healthy = await calls.is_healthy(control)
        except (ControlError, FileNotFoundError):
            continue
        ids = [member.node_id for member in view.members]
        is_whole = sorted(ids) == sorted(wanted) and not told.shortage
        if view.epoch >= epoch and (is_whole if wanted else told.shortage):
            break
        await asyncio.sleep(0.05)
    await calls.close()
    lives = [member.incarnation for member in view.members]
    print(json.dumps([view.epoch, ids, lives, told.shortage, healthy]))

epoch, *wanted = map(int, sys.argv[2:])
asyncio.run(wait(pathlib.Path(sys.argv[1]), epoch, wanted))
"""


class Cut:
    """Nodes whose views are waited for where they are."""

    def __init__(self, made: Cluster) -> None:
        self.made = made
        self.network = made.network
        self.ids = [node.node_id for node in made.nodes]

    def _begin(self, rank: int, wanted: Sequence[int], epoch: int) -> subprocess.Popen[str]:
        node = self.made.nodes[rank]
        words = [str(node.directory), str(epoch), *(str(self.ids[each]) for each in wanted)]
        command = [*self.network.within(rank), sys.executable, "-c", WAIT, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def wait(
        self, ranks: Sequence[int], members: Sequence[int], *, epoch: int = 0
    ) -> list[dict[str, Any]]:
        """Wait until each of `ranks` has a view of exactly `members`; without any, a shortage.

        The view has to be of that epoch or a newer one.
        """
        names = ("epoch", "members", "lives", "shortage", "healthy")
        with ExitStack() as stack:
            waiting = [stack.enter_context(self._begin(rank, members, epoch)) for rank in ranks]
            told = [each.communicate()[0] for each in waiting]
        return [dict(zip(names, json.loads(each), strict=True)) for each in told]

    def shortage(self, ranks: Sequence[int]) -> list[dict[str, Any]]:
        """Wait until each of `ranks` says that it is in a minority."""
        return self.wait(ranks, ())

    def status(self, rank: int) -> dict[str, Any]:
        """What `hoplite-ray status` tells an operator at that node."""
        node = self.made.nodes[rank]
        words = ["-m", "hoplite_ray.cli", "status", "--json", "--directory", str(node.directory)]
        command = [*self.network.within(rank), sys.executable, *words]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return {"exit": ran.returncode, **json.loads(ran.stdout)}

    def is_receiving(self, rank: int, size_bytes: int) -> None:
        """Return once so many bytes have come in over the node's link."""
        counter = "/sys/class/net/rail0/statistics/rx_bytes"
        enough = f"until [ $(cat {counter}) -gt {size_bytes} ]; do sleep 0.02; done"
        subprocess.run([*self.network.within(rank), "sh", "-c", enough], check=True)


needs_root = pytest.mark.skipif(
    cluster.why_impossible() is not None, reason=cluster.why_impossible() or ""
)


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Cut]:
    """As many nodes as the test asks for, oldest first."""
    with Cluster(
        request.param, rate_mbit=RATE_MBIT, arena_bytes=ARENA_BYTES, options=OPTIONS
    ) as made:
        cut = Cut(made)
        cut.wait(range(request.param), range(request.param))
        yield cut


def of(count: int) -> pytest.MarkDecorator:
    """Ask for that many nodes."""
    return pytest.mark.parametrize("nodes", [count], indirect=True, ids=[f"{count} nodes"])


@needs_root
@of(5)
def test_the_majority_goes_on_and_the_rest_says_why_it_does_not(nodes: Cut) -> None:
    for rank in (0, 1):  # the oldest, each alone
        nodes.network.cut(rank)
    went_on = nodes.wait((2, 3, 4), (2, 3, 4))
    assert len({each["epoch"] for each in went_on}) == 1
    for stuck in nodes.shortage((0, 1)):
        assert stuck["epoch"] < went_on[0]["epoch"]
        assert "only 1 of the 5 members" in stuck["shortage"]
        assert stuck["healthy"]
    told = nodes.status(0)
    assert told["exit"] == 1
    own = next(node for node in told["nodes"] if int(node["node_id"], 16) == nodes.ids[0])
    assert (own["state"], own["has_quorum"]) == ("minority", 0)
    assert "only 1 of the 5 members" in own["why"]
    for rank in (0, 1):
        nodes.network.heal(rank)
    healed = nodes.wait(range(5), range(5))
    assert len({each["epoch"] for each in healed}) == 1
    assert sorted(healed[0]["lives"])[:3] == [1, 1, 1]  # those who went on
    assert min(sorted(healed[0]["lives"])[3:]) > 1  # those who heard that they were dead
    assert nodes.status(0)["exit"] == 0


@needs_root
@of(2)
def test_of_two_that_are_cut_apart_none_goes_on(nodes: Cut) -> None:
    nodes.network.cut(1)
    apart = nodes.shortage((0, 1))
    assert [each["epoch"] for each in apart] == [2, 2]
    with Store.attach(nodes.made.nodes[0].socket) as store:
        cause = "after .* its node is cut off, only 1 of the 2 members of view 2 answer"
        with pytest.raises(GetTimeoutError, match=cause):
            store.get(new_id(), timeout_s=0.1)
        nodes.network.heal(1)
        nodes.wait((0,), (0, 1), epoch=3)
        with pytest.raises(GetTimeoutError, match="it has not been put yet"):
            store.get(new_id(), timeout_s=0.1)
    together = nodes.wait((0, 1), (0, 1))
    assert together[0]["lives"][0] == 1  # the younger one has joined again


@needs_root
@of(2)
@pytest.mark.parametrize("killed", [0, 1], ids=["older", "younger"])
def test_of_two_the_one_that_is_left_goes_on(nodes: Cut, killed: int) -> None:
    nodes.made.kill(killed)
    nodes.wait((1 - killed,), (1 - killed,))


@needs_root
@of(4)
def test_half_goes_on_if_the_other_half_is_killed_but_not_if_it_may_live(nodes: Cut) -> None:
    nodes.network.cut(1)
    nodes.made.kill(0)
    nodes.shortage((2, 3))
    nodes.made.kill(1)
    nodes.network.heal(1)  # its machine says that nobody listens there any more
    nodes.wait((2, 3), (2, 3))


@needs_root
@of(3)
@pytest.mark.parametrize("way", [(0, 1), (1, 0), (1, 2), (2, 1)], ids="{0[0]}-{0[1]}".format)
def test_one_way_is_cut_and_one_of_the_two_has_to_go(nodes: Cut, way: tuple[int, int]) -> None:
    nodes.network.silence(*way)
    nodes.wait((0,), range(3), epoch=5)  # the younger has been removed, and is back for a while
    nodes.network.unsilence(*way)
    for told in nodes.wait(range(3), range(3), epoch=5):
        assert told["members"] == [nodes.ids[rank] for rank in (0, 3 - max(way), max(way))]
        assert told["lives"][:2] == [1, 1]
        assert told["lives"][2] > 1


@needs_root
@of(4)
@pytest.mark.parametrize("way", ["both ways", "one way"])
def test_a_receiver_is_cut_off_in_the_middle_and_nobody_else_waits_for_it(
    nodes: Cut, way: str
) -> None:
    for rank in range(4):
        nodes.network.set_rate(rank, 50)  # 16 MiB take 2.7 s
    # Whoever looks after an object is drawn by its id: of several, one is looked after by the node
    # that is cut off, which must not tell the others that what it doesn't reach is lost.
    array = np.random.default_rng(5).integers(0, 256, 1 << 20, np.uint8)
    ids = [new_id() for _ in range(16)]
    with ExitStack() as stack:
        stores = [stack.enter_context(Store.attach(node.socket)) for node in nodes.made.nodes]
        gets = {rank: [stores[rank].begin_get(each) for each in ids] for rank in (1, 2, 3)}
        for each in ids:
            stores[0].put(each, array)
        nodes.is_receiving(1, 4 << 20)
        if way == "both ways":
            nodes.network.cut(1)
        else:
            nodes.network.silence(0, 1)
        for pending in gets[2] + gets[3]:
            np.testing.assert_array_equal(pending.result().value, array)
        if way == "both ways":
            nodes.network.heal(1)
        else:
            nodes.network.unsilence(0, 1)
    nodes.wait(range(4), range(4))
    with Store.attach(nodes.made.nodes[1].socket) as again:
        for each in ids:
            np.testing.assert_array_equal(
                again._client.begin_get(each, exists=True).result().value, array
            )
