"""Values as bytes, and bytes as values.

A value is a numpy array, a torch tensor, a number, text, or a container of these. `trees` takes it
apart, `dtypes` names the elements, `layout` places the arrays in an object, and `codec` makes the
bytes and the value again. `deltas` finds what changed between two values of one layout, and
`versions` has what a version channel says. Start with `codec`. The room uses `hoplite_ray.errors`,
the native core and numpy; it imports torch and ml_dtypes only for a value that holds their arrays.
"""
