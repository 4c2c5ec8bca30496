"""The declaration of a stage: a class that answers lists of queries with lists.

    @stage(max_batch=32, num_replicas=2)
    class Vision:
        def __init__(self, path): ...
        def __call__(self, images: list) -> list: ...

The class needs to know nothing of worlds, batches or ids. Source: Vortex 5.1; MultiWorld.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from hoplite_ray.plugin.tables.weights import begin_early
from hoplite_ray.serve.routing.keys import KeyFunction
from hoplite_ray.serve.seams import is_in_replica
from hoplite_ray.serve.stages.batching import Late
from hoplite_ray.serve.stages.options import (
    NearName,
    check_key,
    check_near,
    check_options,
    check_weights,
)

P = ParamSpec("P")
T = TypeVar("T")
LateName = Literal["serve", "drop"]

_CALL = "__call__"
_LATE = [each.value for each in Late]


@dataclass(frozen=True, slots=True)
class Stage(Generic[P, T]):
    """A class that `@stage` has decorated, with constructor arguments and inputs once it has them.

    A type checker knows it as Stage[arguments of the constructor, the class].
    """

    user_class: type[T]
    max_batch: int
    late: Late
    serve_options: Mapping[str, object]
    inputs: tuple[str, ...] = ()
    expected_s: tuple[float, ...] = ()  # of batches of 1, 2 and so on, by the profile of a plan
    budget_s: float | None = None  # for a query's wait and its batch, by a plan
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]] = field(default=((), {}))
    key: KeyFunction | None = None
    near: NearName | None = None
    starts_parked: bool = False
    weights: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what begins the fetch of weights ahead of the class, whose import may be long."""
        return _make_blank, (_Beginning(self.weights),), self.__getstate__()

    def __call__(self, *args: object, **kwargs: object) -> T:
        name = self.user_class.__name__
        raise TypeError(
            f"{name} is a stage, whose objects Serve makes: {name}.bind(...) has their arguments, "
            f"{name}.user_class is the class itself"
        )

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Stage[P, T]:
        """Return the stage with arguments for the constructor of its class."""
        return replace(self, arguments=(args, kwargs))

    def after(self, *stages: str, **named: object) -> Stage[P, T]:
        """Return the stage with the answers of `stages` as its input.

        From several stages `__call__` gets one list each, by keyword.
        """
        if named:
            word = next(iter(named))
            raise TypeError(f"after({word}=...): name stages by themselves, as in after({word!r})")
        for each in stages:
            if not isinstance(each, str):
                raise TypeError(f"after({each!r}): name a stage by its keyword in the pipeline")
        if not stages or len(set(stages)) != len(stages):
            raise ValueError(f"after{stages}: name each stage once, and at least one")
        return replace(self, inputs=stages)

    def options(
        self,
        *,
        max_batch: int | None = None,
        late: LateName | None = None,
        key: KeyFunction | None = None,
        near: NearName | None = None,
        starts_parked: bool | None = None,
        weights: str | None = None,
        **options: object,
    ) -> Stage[P, T]:
        """Return the stage with other options, as `Deployment.options` of Serve does.

        An option that is left out stays as it is.

        Raises:  what `stage` raises for an option.
        """
        made: Any = _declare(
            self.user_class,
            self.max_batch if max_batch is None else max_batch,
            self.late.value if late is None else late,
            self.key if key is None else key,
            {**self.serve_options, **options},
            near=self.near if near is None else near,
            starts_parked=self.starts_parked if starts_parked is None else starts_parked,
            weights=self.weights if weights is None else weights,
        )
        changed: Stage[P, T] = replace(
            made,
            inputs=self.inputs,
            arguments=self.arguments,
            expected_s=self.expected_s,
            budget_s=self.budget_s,
        )
        return changed


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Begins the fetch of a stage's weights where it is unpickled, in a replica.

    Serve unpickles a stage before it makes the replica, and imports the user's class by that.
    """

    weights: str | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _begin_in_replica, (self.weights,)


def _begin_in_replica(weights: str | None) -> None:
    if weights is not None and is_in_replica():
        begin_early(weights)


def _make_blank(_: object) -> AnyStage:
    """Return a stage whose state pickle sets next."""
    return object.__new__(Stage)


AnyStage = Stage[..., Any]
# The type of arguments that are stages. mypy ignores what a class's decorator returns
# (python/mypy#3135), so it takes a decorated class for the class itself.
StageLike = AnyStage | type[Any]


class Decorator(Protocol):
    """The result of `stage(...)`: it makes a class a stage."""

    def __call__(self, cls: Callable[P, T], /) -> Stage[P, T]: ...


@overload
def stage(cls: Callable[P, T], /) -> Stage[P, T]: ...


@overload
def stage(
    *,
    max_batch: int = ...,
    late: LateName = ...,
    key: KeyFunction = ...,
    near: NearName = ...,
    starts_parked: bool = ...,
    weights: str = ...,
    **options: object,
) -> Decorator: ...


def stage(
    cls: Any = None,
    /,
    *,
    max_batch: int = 32,
    late: LateName = "serve",
    key: KeyFunction | None = None,
    near: NearName | None = None,
    starts_parked: bool = False,
    weights: str | None = None,
    **options: object,
) -> Any:
    """Make a class a stage; `options` are those of `serve.deployment`.

    The class has `__call__(list) -> list`, plain or async. It returns as many answers as queries,
    in their order. An answer may be an exception, which its caller then gets. A call that raises
    is repeated with halves of its batch, so that only a query that can't be answered fails.

    max_batch:      of queries in one call. A free stage takes the queries that wait and never waits
                    for more.
    late:           "serve" runs queries whose deadline can't be met; "drop" answers LateError at
                    once.
    key:            returns the key of a query: text, bytes, a whole number, a tuple of these, or
                    None. Queries with one key go to one replica while loads allow it. It runs where
                    the query is made, and must be quick: `key=lambda query: query["user"]`.
    near:           "data" sends a query to a replica whose node has the most bytes of its Arrays,
                    while loads allow it. It can't be given with `key`.
    starts_parked:  True: a replica gets no queries until an autoscaling policy releases it, no
                    other replica is active, or no policy writes for 10 s. It is released in some
                    0.1 s, because its object is made and its edges are open.
    weights:        the name of weights that `hop.publish_weights` has published. A new replica
                    fetches them while it imports the class, and `hop.weights()` maps them in
                    `__init__`.

    Raises:  TypeError for a generator, a class without `__call__`, a name that is no option, an
             option that the pipeline gives, a key that is no function of one value, weights that
             are no name, or a starts_parked that is no bool; ValueError for a value that an option
             can't have, or for `key` and `near` together.
    """

    def decorate(user_class: Any, /) -> AnyStage:
        if not isinstance(user_class, type):
            raise TypeError(f"@stage is for classes, not for {user_class!r}")
        return _declare(
            user_class,
            max_batch,
            late,
            key,
            options,
            near=near,
            starts_parked=starts_parked,
            weights=weights,
        )

    return decorate if cls is None else decorate(cls)


def _declare(
    user_class: type[Any],
    max_batch: int,
    late: str,
    key: KeyFunction | None,
    options: Mapping[str, object],
    *,
    near: NearName | None,
    starts_parked: bool,
    weights: str | None,
) -> AnyStage:
    """Return a class as a stage. Raises what `stage` does."""
    name = user_class.__name__
    run = next((vars(base)[_CALL] for base in user_class.__mro__ if _CALL in vars(base)), None)
    if run is None:
        raise TypeError(f"stage {name} has no __call__(list) -> list")
    if inspect.isgeneratorfunction(run) or inspect.isasyncgenfunction(run):
        raise TypeError(f"stage {name} is a generator; return a list with one answer a query")
    if type(max_batch) is not int or max_batch < 1:
        raise ValueError(f"stage {name}: max_batch={max_batch!r} must be a whole number from 1 on")
    check_options(name, options)
    if late not in _LATE:
        raise ValueError(f"stage {name}: late={late!r} is none of {_LATE}")
    if key is not None:
        check_key(name, key)
    if near is not None:
        check_near(name, near, key)
    if type(starts_parked) is not bool:
        raise TypeError(f"stage {name}: starts_parked={starts_parked!r} is to be True or False")
    if weights is not None:
        check_weights(name, weights)
    return Stage(
        user_class,
        max_batch,
        Late(late),
        options,
        key=key,
        near=near,
        starts_parked=starts_parked,
        weights=weights,
    )
