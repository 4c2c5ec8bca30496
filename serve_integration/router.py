"""Serve's own router, which also tells this process where the replicas' doors are."""

from __future__ import annotations

from typing import Any

from ray.serve._private.request_router.pow_2_router import PowerOfTwoChoicesRequestRouter


class EdgeRouter(PowerOfTwoChoicesRequestRouter):
    """Of each handle to a stage. Serve pickles this module by value."""

    def update_replicas(self, replicas: list[Any]) -> None:
        """Take in which replicas run, as Serve tells."""
        from hoplite_ray.serve import discovery

        super().update_replicas(replicas)
        deployment = (self._deployment_id.app_name, self._deployment_id.name)
        doors = {
            each.replica_id.unique_id: each.replica_metadata[discovery.METADATA_KEY]
            for each in replicas
            if discovery.METADATA_KEY in each.replica_metadata
        }
        discovery.tell(deployment, doors)


ROUTER = f"{EdgeRouter.__module__}:{EdgeRouter.__name__}"  # as Serve imports it
