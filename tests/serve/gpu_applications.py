"""Stages that use a GPU, imported by their replicas.

All replicas share one GPU, so each says that it is a host of its own: NCCL refuses it else.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np

from tests.process.fake_gpu import fake, stand_in_for_cupy

ELEMENTS = 250_000


class UsesGpu:
    """Has begun to use a GPU, by torch or by what stands in for cupy."""

    def __init__(self, library: str) -> None:
        os.environ["NCCL_HOSTID"] = uuid.uuid4().hex
        os.environ |= {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
        if library == "torch":
            import torch

            self.torch = torch
            torch.zeros(1, device="cuda")
        else:
            self.cupy = stand_in_for_cupy()
            fake().fake_use(0)

    def filled(self, value: float) -> Any:
        if hasattr(self, "torch"):
            return self.torch.full((50, ELEMENTS // 50), value, device="cuda").bfloat16().t()
        return self.cupy.ndarray(np.full((50, ELEMENTS // 50), value, np.float16).T)

    def seen(self, array: Any) -> list[Any]:
        if hasattr(self, "torch"):
            assert array.is_cuda and array.dtype == self.torch.bfloat16
            return [list(array.shape), array.float().sum().item()]
        assert type(array) is self.cupy.ndarray and array.dtype == np.float16
        return [list(array.shape), float(array.array.sum(dtype=np.float64))]


class Filled(UsesGpu):
    def __call__(self, queries: list[int]) -> list[Any]:
        return [{"query": query, "values": self.filled(float(query))} for query in queries]


class Summed(UsesGpu):
    def __call__(self, queries: list[Any]) -> list[Any]:
        return [[each["query"], *self.seen(each["values"])] for each in queries]
