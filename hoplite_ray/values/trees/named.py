"""Named tuples and dataclasses as containers, whose classes both ends find by name.

No code of a class runs: the values of the fields are taken and set, and `__init__` and
`__post_init__` are not called. The reader imports the class's module, if it is not imported yet.
"""

from __future__ import annotations

import dataclasses
import importlib
import sys
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple, TypeGuard

from hoplite_ray.errors import HopliteError

NAMED = ("NamedTuple", "dataclass")


class Described(NamedTuple):
    """A class of a container: what it is, `module:qualified name`, and its fields in order."""

    kind: Literal["NamedTuple", "dataclass"]
    name: str
    fields: tuple[str, ...]


@lru_cache(maxsize=256)
def describe_class(cls: Any) -> Described | None:
    """Describe a class that is a named tuple or a dataclass; None if it is neither.

    Raises:  ValueError with the reason and the next step if no import finds the class.
    """
    if _is_named_tuple(cls):
        described = Described("NamedTuple", _name(cls), cls._fields)
    elif dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__:
        fields = tuple(field.name for field in dataclasses.fields(cls))
        described = Described("dataclass", _name(cls), fields)
    else:
        return None
    module, _, qualname = described.name.partition(":")
    if _find_attribute(sys.modules.get(module), qualname) is not cls:
        raise ValueError(
            f"of a class that no import finds, {described.name}; define it at the top level of a "
            "module"
        )
    return described


def take_fields(value: Any, described: Described) -> tuple[Any, ...]:
    """Return the values of the fields.

    Raises:  ValueError with the reason if `value` has more than its fields, or fewer.
    """
    if described.kind == "NamedTuple":
        children = tuple(value)
    else:
        lacking = [name for name in described.fields if not hasattr(value, name)]
        if lacking:
            raise ValueError(
                f"a {described.name} without a value of its field {lacking[0]}; set it"
            )
        children = tuple(getattr(value, name) for name in described.fields)
    if len(children) != len(described.fields):
        raise ValueError(f"a {described.name} whose length is not that of its fields; copy it")
    for name in getattr(value, "__dict__", ()):
        is_cached = isinstance(getattr(type(value), name, None), cached_property)
        if name not in described.fields and not is_cached:
            raise ValueError(
                f"a {described.name} with an attribute beside its fields, {name}; make it a field"
            )
    return children


def make_named(described: Described, children: list[Any]) -> Any:
    """Return an instance of the class with these values of its fields.

    Raises:  HopliteError naming the class if it can't be imported here, or differs.
    """
    cls = _load_class(described)
    if described.kind == "NamedTuple":
        return tuple.__new__(cls, children)
    made: Any = object.__new__(cls)
    for name, child in zip(described.fields, children, strict=True):
        object.__setattr__(made, name, child)
    return made


@lru_cache(maxsize=256)
def _load_class(described: Described) -> type:
    module, _, qualname = described.name.partition(":")
    try:
        found = _find_attribute(importlib.import_module(module), qualname)
        here = describe_class(found) if isinstance(found, type) else None
    except Exception as error:  # a module may raise anything while it is imported
        raise HopliteError(
            f"this object holds a {described.kind} {described.name}, which can't be imported here "
            f"({type(error).__name__}: {error}); make its module importable on each node"
        ) from error
    if found is None or here is None or here != described:
        fields = "no such class" if here is None else f"other fields: {', '.join(here.fields)}"
        raise HopliteError(
            f"this object holds a {described.kind} {described.name} with the fields "
            f"{', '.join(described.fields)}; here its module has {fields}; use one version of it "
            "on all nodes"
        )
    cls: type = found
    return cls


def _is_named_tuple(cls: type) -> TypeGuard[Any]:
    fields = getattr(cls, "_fields", None)
    return (
        issubclass(cls, tuple)
        and isinstance(fields, tuple)
        and all(isinstance(each, str) for each in fields)
    )


def _find_attribute(found: Any, qualname: str) -> Any:
    """Return what a qualified name means in a module; None if it means nothing there."""
    for step in qualname.split("."):
        found = getattr(found, step, None)
    return found


def _name(cls: Any) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"
