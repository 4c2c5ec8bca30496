"""Ray Direct Transport over the store: the tensor transports `hoplite` and `hoplite_numpy`.

The room may use handle/, process/ and seams/.
tables.py adds the transports to Ray's table, and is light: every worker of a job imports it.
transport.py is what Ray calls then: start with `StoreTransport`.
"""
