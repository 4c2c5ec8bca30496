"""A module that notes at its import what fetches of weights have begun in its process."""

from __future__ import annotations

from hoplite_ray.plugin.tables import weights

BEGUN = [*weights._early]
