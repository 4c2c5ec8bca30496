"""How the members of a world find each other, and what keeps them connected until it ends.

The room makes an incarnation of a world from a name, a rank and a rendezvous. It owns the thread in
which that happens, the listening sockets, the watches between processes, and the edges until the
native core takes them. It may use `lending`, `gpu`, `handshake` and `core`. Start at `meet`, which
`WorldManager` drives, and at `joining` for the protocol.
"""
