"""The operations of a member: messages, collectives, gifts and transfers between GPUs.

Every operation takes a `Membership`, and is a generator that yields what to wait for, so that a
verb and its awaitable twin are one piece of code. The room may use all rooms below it, and no
facade. Start at `membership`; then read `messages` for `send` and `recv`, and `collectives` for
`all_reduce` and its kind. Serve's edges use `messages`, too.
"""
