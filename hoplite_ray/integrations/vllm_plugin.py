"""The entry point by which every process of vLLM finds the weight-transfer engine `hoplite`.

It imports neither torch nor the engine, because vLLM loads it wherever hoplite_ray is installed.
"""

from __future__ import annotations

import logging

_HOME = "hoplite_ray.integrations.vllm"
_is_registered = False


def register() -> None:
    """Register the engine by name, for vLLM to import at its first use. Idempotent.

    A vLLM without such engines stays as it is, and the log says so.
    """
    global _is_registered
    if _is_registered:
        return
    try:
        from vllm.distributed.weight_transfer.factory import (
            WeightTransferEngineFactory,
            WeightTransferTrainerFactory,
        )
    except ImportError as error:
        logging.getLogger(__name__).info("this vLLM takes no weight-transfer engine: %s", error)
        return
    WeightTransferEngineFactory.register_engine("hoplite", _HOME, "HopliteWeightTransferEngine")
    WeightTransferTrainerFactory.register_engine("hoplite", _HOME, "HopliteTrainerEngine")
    _is_registered = True
