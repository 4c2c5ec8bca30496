"""A checkpoint engine for verl 0.9: weights of the actor are versions of a channel.

verl imports this module by its configuration:

    checkpoint_engine.backend: hoplite
    checkpoint_engine.custom_backend_module: hoplite_ray.integrations.verl
    checkpoint_engine.engine_kwargs.hoplite: {channel: ..., keep: 1, timeout_s: 600}
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Generator
from typing import Any

import ray
import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

import hoplite_ray as hop
from hoplite_ray.errors import HopliteError, InvalidArgumentError
from hoplite_ray.integrations.named_tensors import Writer, copy_tensors, describe_tensors
from hoplite_ray.values.deadlines import deadline_in, left_s
from hoplite_ray.values.trees.tree import ArraySpec


@CheckpointEngineRegistry.register("hoplite")
class HopliteCheckpointEngine(CheckpointEngine):
    """Sends weights from the actor's first rank to rollouts, without a group of processes.

    A version of the channel is a dict: `sender` and `sync` name the synchronisation, `step` is
    verl's global step or -1, and `tensors` has the tensors by name. Any process of the cluster may
    read it by `hoplite_ray.latest`. No rank waits for another one, so a rollout that is late or
    dies delays none. The second synchronisation and later ones copy each tensor once, into the
    store.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        channel: str = "verl",
        namespace: str | None = None,
        keep: int = 1,
        timeout_s: float | None = 600.0,
    ) -> None:
        """Make an engine, as verl does in each actor and rollout.

        Args:    bucket_size: unused, because a version travels as a whole.
                 is_master: True in the actor's first rank, which sends.
                 channel: its name; trainings that run beside each other have one each.
                 namespace: of Ray, in which the channel is; None takes the master's.
                 keep: versions that the master's node keeps.
                 timeout_s: seconds for one synchronisation; None has no limit.
        """
        self.bucket_size = bucket_size
        self.is_master = is_master
        self._channel = channel
        self._namespace = namespace
        self._keep = keep
        self._timeout_s = timeout_s
        self._sender = uuid.uuid4().hex
        self._syncs = 0  # that this master has prepared
        self._specs: dict[str, ArraySpec] | None = None  # of the version before
        self._sync: dict[str, Any] | None = None  # which one is under way

    def prepare(self) -> dict[str, Any]:
        """Return the name of the next synchronisation, in the master; {} in the others."""
        if not self.is_master:
            return {}
        self._syncs += 1
        namespace = self._namespace
        if namespace is None:
            namespace = str(ray.get_runtime_context().namespace)
        return {
            "channel": self._channel,
            "namespace": namespace,
            "sender": self._sender,
            "sync": self._syncs,
        }

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Tell all ranks which synchronisation it is; the first actor's metadata names it."""
        if not metadata or "sync" not in metadata[0]:
            raise InvalidArgumentError(
                "the first actor is no master; verl makes rank 0 of the actors with is_master=True"
            )
        sync = metadata[0]
        return {"sync": [sync] * actor_wg_world_size}, {"sync": [sync] * rollout_world_size}

    def init_process_group(self, **kwargs: Any) -> None:
        """Note which synchronisation follows; no process waits for another one."""
        self._sync = kwargs["sync"]

    def finalize(self) -> None:
        """End the synchronisation. Tensors that were received stay valid."""
        self._sync = None

    async def send_weights(
        self,
        weights: Generator[tuple[str, torch.Tensor], None, None],
        global_steps: int | None = None,
    ) -> None:
        """Publish the weights; it ends when every rollout can read them.

        Each rank of the actors reads its generator to the end, because to export a tensor is a
        collective operation of all of them.

        Raises:  GetTimeoutError; StoreFullError if the arena does not hold `keep` + 1 versions;
                 VersionRefusedError if another training uses the channel.
        """
        if not self.is_master:
            for _ in weights:
                pass
            return
        sync = self._current_sync()
        step = -1 if global_steps is None else global_steps
        header = {"sender": sync["sender"], "sync": sync["sync"], "step": step}
        options: dict[str, Any] = {
            "keep": self._keep,
            "delta": False,  # rollouts drop a version when they have loaded it
            "namespace": sync["namespace"],
            "timeout_s": self._timeout_s,
        }
        if self._specs is not None:
            writer = Writer(weights)
            like = {**header, "tensors": self._specs}

            def fill(value: dict[str, Any]) -> None:
                writer.write(value["tensors"])

            try:
                await hop.publish_async(sync["channel"], like, fill=fill, **options)
                return
            except InvalidArgumentError:
                if not writer.left:
                    raise
            tensors = writer.left
        else:
            tensors = copy_tensors(weights)
        await hop.publish_async(sync["channel"], {**header, "tensors": tensors}, **options)
        self._specs = describe_tensors(tensors)

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield the tensors of this synchronisation, or of a later one that has replaced it.

        They are views of the store's memory, valid as long as the caller keeps them.

        Raises:  GetTimeoutError; ObjectLostError if all nodes with the bytes are gone.
        """
        sync = self._current_sync()
        deadline = deadline_in(self._timeout_s)
        newer_than: int | None = 0
        while True:
            update = await hop.latest_async(
                sync["channel"],
                newer_than=newer_than,
                namespace=sync["namespace"],
                timeout_s=left_s(deadline),
            )
            value, newer_than = update.value, update.version
            if value["sender"] == sync["sender"] and value["sync"] >= sync["sync"]:
                break
        for name, tensor in value["tensors"].items():
            yield name, tensor

    def _current_sync(self) -> dict[str, Any]:
        if self._sync is None:
            raise HopliteError(
                "no synchronisation is under way: verl calls prepare, build_topology and "
                "init_process_group before it sends and receives"
            )
        return self._sync
