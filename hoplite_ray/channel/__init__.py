"""Version channels: names whose newest version readers wait for, with and without Ray.

A channel's home, a member of the store's view, decides the order of versions (native/plan). Here
are their names and records, and the operations of publishers and readers. Each operation is a
generator, which a call waits through and its awaitable twin awaits.
"""
