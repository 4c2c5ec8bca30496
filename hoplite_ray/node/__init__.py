"""Run a node of the store as a process of its own: `python -m hoplite_ray.node`.

`process` is the node, `options` is its command line and its directory, and `trace` reads what a
node's log says of one object. Start with `process`. The room uses the native module,
`hoplite_ray.control`, the options and the errors; under Ray, `process` also asks the plug-in when
it needs Ray's GCS. No other room of the package imports this one: `hoplite_ray.launch` starts its
process.
"""
