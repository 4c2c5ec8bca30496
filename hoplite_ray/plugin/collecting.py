"""A name that pickles on disk may have: of the class of a gather's result.

The code is in handle/messages.py.
"""

from __future__ import annotations

from hoplite_ray.plugin.handle.messages import Gathered as Gathered
