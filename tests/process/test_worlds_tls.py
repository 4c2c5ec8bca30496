"""Worlds where data_tls is on: their edges are not encrypted, so none may leave the machine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from hoplite_ray import worlds
from tests.process.test_worlds_meeting import Table, managers, met
from tests.process.world_crew import JOIN_S, in_a_loop

ON = ("HOPLITE_RAY_DATA_TLS", "on")


@pytest.mark.parametrize("has_it", [0, 1], ids=["the listener", "the dialler"])
@in_a_loop
async def test_with_data_tls_no_edge_is_a_plain_connection(
    monkeypatch: pytest.MonkeyPatch, has_it: int
) -> None:
    table = Table()
    async with managers(2) as members:
        how = {"size": 2, "rendezvous": table, "transport": "tcp", "timeout_s": JOIN_S}
        if has_it == 0:
            monkeypatch.setenv(*ON)
        leads = asyncio.create_task(members[0].join("w", rank=0, **how))
        await table.next_record()
        monkeypatch.delenv(ON[0], raising=False)
        if has_it == 1:
            monkeypatch.setenv(*ON)
        with pytest.raises(worlds.WorldError, match=r"data_tls is on.* TCP is not encrypted: have"):
            await members[1].join("w", rank=1, **how)
        leads.cancel()
        await asyncio.gather(leads, return_exceptions=True)


@in_a_loop
async def test_with_data_tls_members_of_one_machine_share_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(*ON)
    async with managers(2) as members:
        left, right = await met(members, rendezvous=Table())
        assert (left.transports, right.transports) == ({1: "shared_memory"}, {0: "shared_memory"})
        arrays = [np.full(3, 1.0), np.full(3, 2.0)]
        await asyncio.gather(left.all_reduce(arrays[0]), right.all_reduce(arrays[1]))
        assert (arrays[0] == 3.0).all()
