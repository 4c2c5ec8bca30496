"""Streams of named tensors: each is copied before the next one is asked for, whatever it fits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from hoplite_ray.errors import HopliteError, InvalidArgumentError

torch = pytest.importorskip("torch", reason="torch is not installed")

from hoplite_ray.integrations.named_tensors import (  # noqa: E402 - it imports torch
    Writer,
    copy_tensors,
    describe_tensors,
)

Shapes = dict[str, tuple[int, ...]]
LAYOUT: Shapes = {"a": (2, 3), "b": (4,), "c": ()}


def stream(shapes: Shapes, dtype: Any = torch.float32) -> Iterator[tuple[str, Any]]:
    """Yield tensors from one memory, which the next one overwrites."""
    memory = torch.zeros(64, dtype=dtype, requires_grad=True)
    for number, (name, shape) in enumerate(shapes.items()):
        with torch.no_grad():
            memory.fill_(number + 1)
        yield name, memory[: int(torch.Size(shape).numel())].view(shape)
    with torch.no_grad():
        memory.fill_(-1)


def check(tensors: dict[str, Any], shapes: Shapes) -> None:
    assert list(tensors) == list(shapes)
    for number, (name, shape) in enumerate(shapes.items()):
        assert tensors[name].shape == shape
        assert (tensors[name] == number + 1).all(), name
        assert not tensors[name].requires_grad


def places_of(shapes: Shapes) -> dict[str, Any]:
    return {name: torch.empty(shape) for name, shape in shapes.items()}


def test_copies_and_places_hold_each_tensor() -> None:
    copies = copy_tensors(stream(LAYOUT))
    check(copies, LAYOUT)
    assert describe_tensors(copies) == describe_tensors(places_of(LAYOUT))
    writer, places = Writer(stream(LAYOUT)), places_of(LAYOUT)
    writer.write(places)
    check(places, LAYOUT)
    assert not writer.left


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        ({"a": (2, 3), "x": (4,), "c": ()}, "'x' .* no such name"),
        ({"a": (2, 3), "b": (5,), "c": ()}, r"'b' .*\(5,\), and its place .*\(4,\)"),
        ({**LAYOUT, "d": (1,)}, "'d' .* no such name"),
        ({"a": (2, 3)}, "2 tensors are missing, among them 'b'; the layout has 3"),
        ({"x": (3,), **LAYOUT}, "'x' .* no such name"),
    ],
)
def test_what_has_no_place_is_named_and_none_is_lost(sent: Shapes, error: str) -> None:
    writer = Writer(stream(sent))
    with pytest.raises(InvalidArgumentError, match=error):
        writer.write(places_of(LAYOUT))
    check(writer.left, sent)


def test_another_dtype_has_no_place() -> None:
    writer = Writer(stream(LAYOUT, torch.float16))
    with pytest.raises(InvalidArgumentError, match=r"'a' has torch\.float16"):
        writer.write(places_of(LAYOUT))
    check(writer.left, LAYOUT)


def test_a_name_has_one_tensor() -> None:
    twice = [*stream(LAYOUT), *stream({"b": (4,)})]
    with pytest.raises(InvalidArgumentError, match="'b' comes twice"):
        copy_tensors(twice)
    writer = Writer(twice)
    with pytest.raises(InvalidArgumentError, match="'b' comes twice"):
        writer.write(places_of(LAYOUT))
    assert not writer.left


def test_a_stream_is_read_once() -> None:
    writer = Writer(stream(LAYOUT))
    writer.write(places_of(LAYOUT))
    with pytest.raises(HopliteError, match="send the weights again"):
        writer.write(places_of(LAYOUT))


def test_the_package_and_its_entry_point_import_no_framework() -> None:
    program = """
import sys, hoplite_ray, hoplite_ray.integrations, hoplite_ray.integrations.vllm_plugin
sys.modules["vllm"] = None  # as where vLLM is not installed, or has no such engines
hoplite_ray.integrations.vllm_plugin.register()
print([name for name in ("torch", "verl", "vllm.distributed", "ray") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
