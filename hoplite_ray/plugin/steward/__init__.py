"""The steward's duties, which only the process of that actor runs: one steward for each Ray node.

The room may use handle/, process/, steward_client/, node/ and seams/.
No other room imports this one: callers reach the actor through steward_client/.
The steward owns the anchors of arrays and runs pending reduces and gathers.
It deletes what dead processes have left, publishes metrics, and leaves when nothing needs it.
Start with `Steward` in steward.py.
"""
