"""Private names of Ray: each stands behind one function, and each function has a test.

The room may use Ray and `hoplite_ray.errors`, and nothing else of this package.
A release of Ray that moves a name changes one function here and its test.
Start with core.py: where this process is, what it executes, and how long a ref lives.
table.py is the cluster's key-value store.
direct.py belongs to Ray Direct Transport, values.py to values and errors that stay pickled.
"""
