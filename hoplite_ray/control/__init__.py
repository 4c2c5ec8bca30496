"""Membership and administration over gRPC: one view of the nodes, kept by the oldest of them."""
