"""Every contact with Ray, one file per seam; `hoplite_ray` imports it on the first use of a name.

flag        ray.init(runtime_env={"hoplite": {...}}) and the workers' setup hook
start       exactly one node process per Ray node
attachment  this process's client of its node
array       the handle that travels in Ray's objects
ids         which object and which incarnation an array is
anchors     refs whose end of life is an array's end of life
journal     what a process owns, written down before it exists
lifetime    deletes what nobody refers to any more
steward     the actor of each Ray node: anchors, pending reduces
reducing    one pending reduce
api         the functions users call
seams       private names of Ray, each behind one function
"""
