"""The tree of errors: complete, drawn as it is, and able to travel."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

import hoplite_ray
from hoplite_ray import _native, errors, serve

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.HopliteError)
}


def test_every_native_code_has_its_own_class() -> None:
    names = _native.error_classes()
    assert set(names) <= set(CLASSES)
    assert len(set(names)) == len(names)
    assert names[0] == "HopliteError"  # kOk, which is never raised


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn = set(re.findall(r"\w+Error(?=\s| *\()", errors.__doc__ or ""))
    of_serve = {name for name in serve.__all__ if name.endswith("Error")}
    assert drawn - {"TimeoutError", "TypeError", "ValueError"} == set(CLASSES) | of_serve


def test_every_error_is_public() -> None:
    assert set(CLASSES) <= set(hoplite_ray.__all__)


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_errors_survive_pickling(name: str) -> None:
    error = pickle.loads(pickle.dumps(CLASSES[name]("object 7f3a lost")))
    assert type(error) is CLASSES[name]
    assert str(error) == "object 7f3a lost"
    assert inspect.getdoc(CLASSES[name])


def test_a_reduce_error_lists_every_fate_and_keeps_it() -> None:
    fates = ["source 0: in", "source 1: lost"]
    error = errors.ReduceError("3 of 4 sources are left", fates, [1])
    again = pickle.loads(pickle.dumps(error))
    assert again.fates == ("source 0: in", "source 1: lost")
    assert again.lost == (1,)
    assert str(again) == "3 of 4 sources are left\n  source 0: in\n  source 1: lost"


def test_python_programs_catch_them_by_python_names() -> None:
    assert issubclass(errors.GetTimeoutError, TimeoutError)
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.LayoutMismatchError, ValueError)
    assert issubclass(errors.WrongTypeError, TypeError)
