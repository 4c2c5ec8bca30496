"""Serve's own router, which also tells this process where the doors of replicas are."""

from __future__ import annotations

from typing import Any

from hoplite_ray.serve.seams import PowerOfTwoChoicesRequestRouter


class EdgeRouter(PowerOfTwoChoicesRequestRouter):
    """The router of each handle to a stage. Serve pickles this module by value."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take in which replicas run. Serve calls it after each change."""
        from hoplite_ray.serve import seams
        from hoplite_ray.serve.routing import discovery

        super().update_replicas(replicas)
        doors = {
            each.replica_id.unique_id: each.replica_metadata[discovery.METADATA_KEY]
            for each in replicas
            if discovery.METADATA_KEY in each.replica_metadata
        }
        discovery.publish(seams.deployment_of(self), doors)


ROUTER = f"{EdgeRouter.__module__}:{EdgeRouter.__name__}"  # by which Serve imports it
