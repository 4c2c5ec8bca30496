"""Engines with which other frameworks move weights through the store.

`verl` is a checkpoint engine for verl, `vllm` a weight-transfer engine for vLLM; each imports its
framework, which nothing else here does. vLLM finds its engine by the entry point in `vllm_plugin`.
Both publish and read versions of a channel by `hoplite_ray`, and share `named_tensors`.
"""
