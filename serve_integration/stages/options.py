"""Checks of a stage's declaration, where it is written."""

from __future__ import annotations

import difflib
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from ray import serve

from hoplite_ray.tables.log import KEY_BYTES_MAX

NearName = Literal["data"]

_NEAR = [*get_args(NearName)]
_OPTIONS = {*inspect.signature(serve.deployment).parameters} - {"_func_or_class"}
_SET_BY_PIPELINE = {
    "name": "the stage's keyword in pipeline() or ensemble() is its name",
    "request_router_config": "stages are reached over edges, which have a router of their own",
}


def check_options(what: str, options: Mapping[str, object]) -> None:
    """Check a stage's options of `serve.deployment`; `what` is the name of its class.

    Raises:  TypeError for a name that is no option, or is an option that the pipeline gives;
             ValueError for a stage that Serve would scale to no replica.
    """
    for option in options:
        if option in _SET_BY_PIPELINE:
            raise TypeError(
                f"stage {what}: {option} is given by the pipeline "
                f"({_SET_BY_PIPELINE[option]}); leave it out"
            )
        if option not in _OPTIONS:
            close = difflib.get_close_matches(option, _OPTIONS, 1)
            raise TypeError(
                f"stage {what}: {option} is no option of @stage, nor of "
                f"serve.deployment{f'; is {close[0]} meant?' if close else ''}"
            )
    scaling = options.get("autoscaling_config")
    least = (
        scaling.get("min_replicas")
        if isinstance(scaling, Mapping)
        else getattr(scaling, "min_replicas", None)
    )
    if isinstance(least, numbers.Real) and least < 1:
        raise ValueError(
            f"stage {what}: min_replicas={least!r} in autoscaling_config would let it sleep for "
            "ever, for queries over edges don't wake what has no replica; let it be 1 or more"
        )


def check_key(what: str, key: Any) -> None:
    """Check a stage's function of keys; `what` is the name of its class.

    Raises:  TypeError for what is no plain function of one value.
    """
    if not callable(key):
        raise TypeError(
            f"stage {what}: key={key!r} is no function; give one that returns a query's key, as in "
            'key=lambda query: query["user"]'
        )
    if inspect.iscoroutinefunction(key):
        raise TypeError(f"stage {what}: key={key!r} is async; let it return the key itself")
    if why := misfit(key, None):
        raise TypeError(f"stage {what}: key={key!r} is to take one value, the query; {why}")


def check_near(what: str, near: Any, key: Any) -> None:
    """Check a stage's option `near`; `what` is the name of its class.

    Raises:  ValueError for another value than "data", or for a stage that has a key as well.
    """
    if near not in _NEAR:
        raise ValueError(f"stage {what}: near={near!r} is none of {_NEAR}")
    if key is not None:
        raise ValueError(
            f"stage {what}: key= and near= both choose the replica of a query; give one of them"
        )


def check_weights(what: str, weights: Any) -> None:
    """Check the name of a stage's weights; `what` is the name of its class.

    Raises:  TypeError for what is no text; ValueError for an empty or a very long one.
    """
    if not isinstance(weights, str):
        raise TypeError(
            f"stage {what}: weights={weights!r:.80} is no name; publish the weights by "
            "hop.publish_weights(name, value), and give that name"
        )
    if not 0 < len(weights.encode()) <= KEY_BYTES_MAX:
        raise ValueError(
            f"stage {what}: weights={weights!r:.80} is no name of 1 to {KEY_BYTES_MAX} bytes"
        )


def misfit(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> str:
    """Return why a function can't be called with these arguments, or "" if it can."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # it has no signature, as a subclass of dict without __init__
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""
