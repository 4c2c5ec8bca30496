"""One process's part: its attachment to the node, and all that it owns.

The room may use steward_client/, node/ and seams/.
A process has one `Attachment`, which every room above asks for.
The journal names what the process owns, the reaper deletes what has no reference left, and anchors
keep arrays alive beyond the process that made them.
Start with `attachment` in attachment.py.
"""
