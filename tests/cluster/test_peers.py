"""The peers of benchmarks/collectives.py take part for as long as all of them live."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import replace

import cluster
import pytest
from meters import Links
from peers import gloo
from ranks import RankError
from scenes import KIB, Scene, Variant

needs_root = pytest.mark.skipif(
    cluster.why_impossible() is not None, reason="needs root for network namespaces"
)
NODES, RATE_MBIT = 2, 500


@needs_root
def test_a_peer_that_has_lost_a_rank_plays_nothing_more_and_says_so() -> None:
    scene = Scene("reduce", KIB, nodes=NODES, rate_mbit=RATE_MBIT)
    with ExitStack() as stack:
        network = stack.enter_context(cluster.Network(NODES, rate_mbit=RATE_MBIT))
        links = Links(network)
        stack.callback(links.close)
        (peer,) = gloo.start(network, links, stack, store_bytes=0)
        sample = peer.play(scene)
        assert sample.ended_s.keys() == set(range(NODES))
        assert peer.why_not(scene) is None
        assert peer.why_not(replace(scene, variant=Variant.DEATH)) == "ends with its rank"
        os.kill(network.processes(1)[0], signal.SIGKILL)
        with pytest.raises(RankError, match="rank 1: its process has ended"):
            peer.play(scene)
        assert str(peer.why_not(scene)).startswith("has failed before: ")
