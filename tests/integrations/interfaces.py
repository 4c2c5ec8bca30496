"""What a framework's base class asks of ours, and checks of the tests of both frameworks."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch


def check_interface(ours: type, theirs: type) -> None:
    """Check that `ours` has all abstract methods, with the parameters of `theirs`."""
    assert issubclass(ours, theirs)
    assert not getattr(ours, "__abstractmethods__", None)
    asked = [name for name in dir(theirs) if _is_abstract(theirs, name)]
    assert asked
    for name in asked:
        assert _parameters(ours, name) == _parameters(theirs, name), name
        kinds = [inspect.iscoroutinefunction, inspect.isasyncgenfunction]
        if any(kind(getattr(theirs, name)) for kind in kinds):
            assert any(kind(getattr(ours, name)) for kind in kinds), name


def _is_abstract(theirs: type, name: str) -> bool:
    return getattr(inspect.getattr_static(theirs, name), "__isabstractmethod__", False)


def _parameters(owner: type, name: str) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(getattr(owner, name)).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


def run_fresh(program: str) -> str:
    """Run a program in a process that has imported nothing; return what it prints last."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


def make_tensors(version: int, more: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield named tensors of many shapes from memory that the next one reuses, as trainers do."""
    shapes: list[tuple[int, ...]] = [(64, 1000), (7,), (), (0, 3), (300, 500), *[(5, 2)] * more]
    for number, shape in enumerate(shapes):
        dtype = (torch.bfloat16, torch.float32, torch.float16)[number % 3]
        tensor = torch.full(shape, 1.0, dtype=dtype, requires_grad=True)
        with torch.no_grad():
            tensor.mul_(version * 16 + number)
        yield f"layers.{number}.weight", tensor
        with torch.no_grad():
            tensor.zero_()


def check_tensors(received: dict[str, torch.Tensor], version: int, more: int = 0) -> None:
    """Check names, dtypes, shapes and bits of what `make_tensors` has sent."""
    names = []
    for name, tensor in make_tensors(version, more):
        got = received[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(got, tensor), name
        names.append(name)
    assert list(received) == names
