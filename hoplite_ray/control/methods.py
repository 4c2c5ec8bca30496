"""The calls of control.proto as one table, for the service and its client alike.

Written by hand in place of protoc's `_pb2_grpc`: that file refuses every grpcio older than the one
that generated it, has no types, and hides a request's bytes, over which the proof is made.
"""

from __future__ import annotations

from typing import NamedTuple

from google.protobuf.message import Message

from hoplite_ray.control import control_pb2 as pb

SERVICE = "hoplite_ray.control.Control"


class Method(NamedTuple):
    """The messages of one call: its request and its reply."""

    request: type[Message]
    reply: type[Message]
    streams: bool = False


METHODS: dict[str, Method] = {
    "Join": Method(pb.JoinRequest, pb.View),
    "Leave": Method(pb.LeaveRequest, pb.View),
    "WatchView": Method(pb.WatchRequest, pb.View, streams=True),
    "ReportDeath": Method(pb.DeathReport, pb.View),
    "Confirm": Method(pb.ConfirmRequest, pb.Confirmation),
    "Vote": Method(pb.VoteRequest, pb.VoteReply),
    "Stats": Method(pb.StatsRequest, pb.StatsReply),
    "Describe": Method(pb.DescribeRequest, pb.Description),
    "Probe": Method(pb.ProbeRequest, pb.Probes),
    "ListObjects": Method(pb.ListObjectsRequest, pb.Objects, streams=True),
    "ListTransfers": Method(pb.ListTransfersRequest, pb.Transfers, streams=True),
    "ListChannels": Method(pb.ListChannelsRequest, pb.Channels, streams=True),
    "Trace": Method(pb.TraceRequest, pb.Traced),
    "Drain": Method(pb.DrainRequest, pb.DrainReply),
}


def full_name(method: str) -> str:
    """Return the name by which gRPC calls `method`."""
    return f"/{SERVICE}/{method}"
