"""The places where Ray calls this package: `ray.init`, the start of a worker, and Ray's tables.

The room may use all others, and no other room uses it.
`import hoplite_ray` runs import_hooks.py, so this room imports Ray and numpy inside functions only.
Start with `install` in import_hooks.py; flag.py consumes `ray.init(runtime_env={"hoplite": ...})`.
"""
