"""A name that pickles on disk may have: of the function that makes the value of an Array.

The code is in handle/array.py.
"""

from __future__ import annotations

from hoplite_ray.plugin.handle.array import _taken as _taken
