"""Tables under Ray: the log is in the key-value store of Ray's GCS, the values are in the store.

The decisions are those of `hoplite_ray.tables`, and this room performs them. Start with table.py,
which users call, and operations.py, which has the steps of each verb. follower.py has the thread
that follows the log, janitor.py the one that deletes, values.py puts and fetches, watching.py hands
new versions to watchers, and handlers.py sends values that are stored nowhere.
"""
