"""Every contact with Ray, one file per seam; `hoplite_ray` imports it on the first use of a name.

flag        ray.init(runtime_env={"hoplite": {...}}) and the workers' setup hook
start       exactly one node process per Ray node
attachment  this process's client of its node
sharing     a slow call that is made once for all who wait, each with a limit of its own
array       the handle that travels in Ray's objects
operators   what an operand can do: Python's, numpy's and torch's operators
leaves      the arrays in a value, converted
writable    the memory of an `empty` until it is sealed
fetching    transfers that begin again when the node dies under them
ids         which object and which incarnation an array is
anchors     refs whose end of life is an array's end of life
journal     what a process owns, written down before it exists
lifetime    deletes what nobody refers to any more
steward     the actor of each Ray node: anchors, pending reduces and gathers
stewards    how a process reaches one, and starts it outside of its job's environment
source      one source of those: from a ref to a handle
bare        what a source returned without hop.array, read by the caller's process
reducing    one pending reduce
collecting  one pending gather
arguments   what users may pass
api         put, array, empty, get, wait, delete
combining   reduce, allreduce, reduce_scatter, gather, allgather, sources
awaiting    the awaitable twins
joining     ray.init, and Ray's tables of tensor transports and of collective backends
direct      Ray Direct Transport: what joins the table, and what is done in Ray's place
transport   the tensor transports `hoplite` and `hoplite_numpy`
publishing  the node's counters, to Ray's metrics
collective  backend "HOPLITE" of ray.util.collective
operation   one operation of such a group at one member
rendezvous  where members of worlds meet
roster      who is in a group: how members meet, and hear of a failure
seams       private names of Ray, each behind one function; direct_seams those of its transports,
            value_seams those for values and errors that are not unpickled
"""
