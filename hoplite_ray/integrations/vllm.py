"""A weight-transfer engine for vLLM 0.33: the trainer's weights are versions of a channel.

`WeightTransferConfig(backend="hoplite")` chooses it in vLLM's workers, and `HopliteTrainerInitInfo`
in the trainer. vLLM finds both by the entry point of `vllm_plugin`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import ray
import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferInitRequest,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)

import hoplite_ray as hop
from hoplite_ray.errors import HopliteError
from hoplite_ray.integrations.named_tensors import Writer
from hoplite_ray.values.specs import spec


@dataclass
class HopliteInitInfo(WeightTransferInitInfo):
    """Where a worker reads weights; the trainer sends it.

    channel, namespace:  of the versions.
    address:             of Ray's GCS, for a worker process that Ray has not started.
    timeout_s:           seconds to wait for a version; None has no limit.
    """

    channel: str
    namespace: str
    address: str
    timeout_s: float | None = 600.0


@dataclass
class HopliteUpdateInfo(WeightTransferUpdateInfo):
    """The version to load at least; with 0 the newest one."""

    version: int = 0


class HopliteWeightTransferEngine(WeightTransferEngine[HopliteInitInfo, HopliteUpdateInfo]):
    """Loads versions of the trainer's weights into a worker's model.

    After the first version the worker's node fetches the next one as the trainer writes it, while
    the model still generates.
    """

    init_info_cls = HopliteInitInfo
    update_info_cls = HopliteUpdateInfo

    _source: HopliteInitInfo | None = None

    def init_transfer_engine(self, init_info: HopliteInitInfo) -> None:
        """Note the channel, and join the trainer's Ray cluster if Ray is not in this process."""
        if not ray.is_initialized():
            hop.init(init_info.address, namespace=init_info.namespace, log_to_driver=False)
        self._source = init_info

    def start_weight_update(self) -> None:
        """Let vLLM take weights in the format of a checkpoint, layer by layer."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: HopliteUpdateInfo) -> None:
        """Fetch the version, or a newer one, and load it from the store's memory.

        Raises:  GetTimeoutError; ObjectLostError if all nodes with the bytes are gone.
        """
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

        source = self._source
        if source is None:
            raise HopliteError("init_transfer_engine comes before receive_weights")
        update = hop.latest(
            source.channel,
            newer_than=max(update_info.version - 1, 0),
            namespace=source.namespace,
            timeout_s=source.timeout_s,
        )
        with disable_mtp_completeness_check():  # a trainer may have no weights of a draft model
            self.model.load_weights(update.value["tensors"].items())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one version, whose bytes are in the model at the end of the call."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def finish_weight_update(self) -> None:
        """End the layer-by-layer loading."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Forget the channel."""
        self._source = None


@dataclass
class HopliteTrainerInitInfo(TrainerInitInfo):
    """The trainer's end of a channel.

    channel:    its name; trainings that run beside each other have one each.
    namespace:  of Ray, in which the channel is; None takes this job's.
    keep:       versions that the trainer's node keeps.
    timeout_s:  seconds for one version, at each end; None has no limit.
    """

    backend: ClassVar[str] = "hoplite"

    channel: str = "vllm"
    namespace: str | None = None
    keep: int = 1
    timeout_s: float | None = 600.0


class HopliteTrainerEngine(TrainerWeightTransferEngine[HopliteTrainerInitInfo]):
    """Publishes the weights of a source, and has vLLM load each version.

    Rank 0 publishes. The other ranks only read their source to the end, because its collectives
    need all ranks. Each tensor is copied once, into the store.
    """

    init_info_cls = HopliteTrainerInitInfo

    def __init__(
        self,
        init_info: HopliteTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource,
    ) -> None:
        """Programs call `trainer_init`."""
        super().__init__(
            client=client, source=source, is_sender=init_info.is_sender, rank=init_info.rank
        )
        self._info = init_info
        self._specs = {each.name: spec(each.shape, each.dtype, "torch") for each in source.metadata}

    @classmethod
    def trainer_init(
        cls,
        init_info: HopliteTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """Tell vLLM's workers the channel, from rank 0, and return the engine.

        Raises:  ValueError without a source, or if rank 0 lacks a tensor; TypeError for a source
                 that yields no full tensors.
        """
        if source is None:
            raise ValueError("the engine 'hoplite' sends a WeightSource: give source=")
        if not source.implements_iter_full():
            raise TypeError(
                f"the engine 'hoplite' sends full tensors, which {type(source).__name__} has not: "
                "it lacks iter_full()"
            )
        for each in source.metadata:
            if each.owners is not None and 0 not in each.owners:
                raise ValueError(
                    f"rank 0 sends all tensors, and does not own {each.name!r}; its owners are "
                    f"{each.owners}"
                )
        engine = cls(init_info, client=client, source=source)
        if engine.is_sender:
            context = ray.get_runtime_context()
            if init_info.namespace is None:
                engine._info = init_info = HopliteTrainerInitInfo(
                    init_info.channel,
                    str(context.namespace),
                    init_info.keep,
                    init_info.timeout_s,
                    rank=init_info.rank,
                )
            client.init_weight_transfer_engine(
                {
                    "channel": init_info.channel,
                    "namespace": init_info.namespace,
                    "address": str(context.gcs_address),
                    "timeout_s": init_info.timeout_s,
                }
            )
        return engine

    def send_weights(self) -> None:
        """Publish a version, and have the client load it.

        Raises:  InvalidArgumentError for a tensor that differs from the source's metadata;
                 GetTimeoutError; StoreFullError if the arena does not hold `keep` + 1 versions;
                 VersionRefusedError if another training uses the channel; what the client raises.
        """
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source.iter_full():
                pass
            return
        writer = Writer(self.source.iter_full())

        def fill(value: dict[str, Any]) -> None:
            writer.write(value["tensors"])

        version = hop.publish(
            self._info.channel,
            {"tensors": self._specs},
            fill=fill,
            keep=self._info.keep,
            delta=False,  # workers drop a version when they have loaded it
            namespace=self._info.namespace,
            timeout_s=self._info.timeout_s,
        )
        self.client.start_weight_update()
        self.client.update_weights({"version": version})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Free the versions in the store, from rank 0."""
        if self.is_sender:
            with suppress(HopliteError):
                hop.unpublish(self._info.channel, namespace=self._info.namespace, timeout_s=60.0)


class ElasticRayClient:
    """A client of vLLM engines that are Ray actors, of which any may die or join at any time.

    vLLM's own client fails when one of its actors is dead. This one forgets it, and goes on.
    """

    def __init__(self, handles: Iterable[Any]) -> None:
        """Take the handles of actors that have the methods of vLLM's `AsyncLLM`."""
        self.handles = list(handles)
        self._init: WeightTransferInitRequest | None = None

    def add(self, handle: Any) -> None:
        """Take an engine in, between two versions; it loads the newest one if there is one.

        Raises:  GetTimeoutError within the engine if nothing has been published.
        """
        if self._init is None:
            self.handles.append(handle)
            return
        newest = WeightTransferUpdateRequest(update_info={"version": 0})
        ray.get(handle.init_weight_transfer_engine.remote(self._init))
        ray.get(handle.start_weight_update.remote())
        ray.get(handle.update_weights.remote(newest))
        ray.get(handle.finish_weight_update.remote())
        self.handles.append(handle)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell all engines where weights come from."""
        self._init = WeightTransferInitRequest(init_info=init_info)
        self._call_all("init_weight_transfer_engine", self._init)

    def start_weight_update(self) -> None:
        """Begin an update in all engines."""
        self._call_all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        """Load a version in all engines."""
        self._call_all("update_weights", WeightTransferUpdateRequest(update_info=update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End the update in all engines."""
        self._call_all("finish_weight_update")
        if weight_version is not None:
            self._call_all("update_weight_version", weight_version)

    def _call_all(self, method: str, *arguments: Any) -> None:
        """Call a method of all engines, and forget those that are dead."""
        calls = [(each, getattr(each, method).remote(*arguments)) for each in self.handles]
        for handle, call in calls:
            try:
                ray.get(call)
            except ray.exceptions.RayActorError:
                self.handles.remove(handle)
