"""Arrays on GPUs: what they are, NCCL in this process, and its communicators in a new world.

The room knows NCCL and CUDA; the transfers that use it are operations, and stand in `ops`. It may
use `handshake` and `core`. Start at `nccl`.
"""
