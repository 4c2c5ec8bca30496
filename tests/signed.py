"""Proofs of control calls that a test makes by itself, without hoplite_ray's own client."""

from __future__ import annotations

import time

import grpc
import grpc.aio

from hoplite_ray.control import control_pb2 as pb
from hoplite_ray.control.auth import (
    CHALLENGE_KEY,
    METADATA_KEY,
    NodeClock,
    make_proof,
    read_challenge,
)
from hoplite_ray.control.methods import full_name


async def clock_of(link: grpc.aio.Channel, secret: bytes, *, timeout_s: float = 20.0) -> NodeClock:
    """Ask the node at the other end for its challenge, as a first call does."""
    request = pb.DescribeRequest().SerializeToString()
    signed = make_proof(secret, "Describe", request, now_s=time.monotonic())
    call = link.unary_unary(full_name("Describe"))
    try:
        await call(request, metadata=((METADATA_KEY, signed),), timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        told = dict(error.trailing_metadata() or ())
        clock = read_challenge(secret, signed, str(told[CHALLENGE_KEY]), now_s=time.monotonic())
        assert clock is not None
        return clock
    raise AssertionError("the node has taken a call that no clock of it has signed")


def signed_at(clock: NodeClock, secret: bytes, method: str, request: bytes, late_s: float) -> str:
    """Sign a call `late_s` ago, or ahead if that is negative."""
    return make_proof(secret, method, request, clock=clock, now_s=time.monotonic() - late_s)
