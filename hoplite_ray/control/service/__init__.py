"""Answer the control calls at one node.

`control_service` checks the proof of each call and maps errors to gRPC's statuses,
`administration` does what an operator asks, `health` is the standard health service, and
`request_timeout` limits the time for a request to arrive. Start with `control_service`. The room
uses `hoplite_ray.control.views` and the files of `hoplite_ray.control`.
"""
