"""How two processes begin to speak: frames, TLS, and a proof on both sides that they may.

The room knows bytes and sockets, and nothing of worlds, members or ranks. It uses no other room of
this package; Serve's edges use it too. Start at `introductions`.
"""
