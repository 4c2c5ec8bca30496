"""Carry membership and administration between nodes over gRPC.

The files of this folder belong to both ends of a call: `control.proto` and its generated messages,
`methods`, the proof in `auth`, `tls`, the `client`, and the pure parts `view` and `voting`. Above
them, `views` keeps the same view on all nodes, and `service` answers the calls at one node. Start
with `control.proto`. The room uses the native module and `hoplite_ray.errors`.
"""
