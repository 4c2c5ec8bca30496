"""The decisions of versioned tables, as pure machines: no Ray, no clock, no thread.

A table is a log of records in slots of a shared key-value store, and each slot is written once.
log.py has the records and their bytes, state.py what a log means, and replica.py one process's
appends and reads. compaction.py shortens the log, and routes.py chooses handlers.
`hoplite_ray.plugin.tables` performs the calls that these machines ask for. Start with replica.py.
"""
