"""The least time of each collective: n nodes on full-duplex links of one rate, without latency.

Every result is in seconds, for objects of `size_bytes` over links of `rate_mbit`.
"""

from __future__ import annotations

# The application's share of a link's nominal rate; Ethernet, IP and TCP headers take the rest.
PAYLOAD_SHARE = 0.955


def payload_bytes_per_s(rate_mbit: float) -> float:
    """The rate of a link as an application sees it."""
    return rate_mbit * 1e6 / 8 * PAYLOAD_SHARE


def hop_s(size_bytes: int, *, rate_mbit: float) -> float:
    """S/B, the time over one link; no broadcast and no reduce to one node takes less.

    Each receiver's link has to carry the object once, and so does the link of each source.
    """
    return size_bytes / payload_bytes_per_s(rate_mbit)


def gather_s(size_bytes: int, *, nodes: int, rate_mbit: float) -> float:
    """(n - 1) S/B, for an object of each node, one of which is there; an allgather's as well."""
    return (nodes - 1) * hop_s(size_bytes, rate_mbit=rate_mbit)


def allreduce_s(size_bytes: int, *, nodes: int, rate_mbit: float) -> float:
    """2 (n - 1)/n S/B: every node sends and receives (n - 1)/n of the object twice."""
    return 2 * (nodes - 1) / nodes * hop_s(size_bytes, rate_mbit=rate_mbit)
