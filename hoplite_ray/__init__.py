"""Collective object transfers for Ray: broadcast and reduce trees that grow as tasks arrive.

    import hoplite_ray as hop

init                                          start Ray, or connect to it, with the store
put array empty get wait delete               objects: numpy arrays, torch tensors, dicts of them
reduce all_reduce reduce_scatter              many objects into one, as their tasks end
gather all_gather sources                     many objects as one; the sources of a result
put_async array_async ...                     the awaitable twin of each; also `await array`
publish latest watch channels unpublish       versions under a name, for readers that come and go
stream open_safetensors                       leaf by leaf while a value arrives; a file as a value
Table                                         keys with versions: cuts, reads at a time, watches
publish_weights weights                       arrays under a name, of which a node has one copy

They take and return Ray's references; `Store` does the same with ids, without Ray. Every name is
loaded at its first use, so that this import costs nothing and needs neither Ray nor numpy.

The rooms of the package, from top to bottom; each imports from the rooms below it only:

cli                                           the command `hoplite-ray`
serve, worlds                                 stages on Ray Serve; small groups of processes
node                                          the node process
integrations                                  engines for verl and vLLM
plugin                                        every contact with Ray
store, collectives, publishing                the store of one process; start reading there
channel, streams                              publishers and readers of versions; leaf by leaf
client and the files below it                 starts each operation, and waits for it
metrics, control                              counters and dashboards; calls between nodes
tables                                        what the log of a table means; pure
values, config, errors, base                  values as bytes; options; errors; small tools
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from hoplite_ray.errors import (
    CollectiveError,
    ControlError,
    DuplicateObjectError,
    GetTimeoutError,
    HopliteError,
    InvalidArgumentError,
    LayoutMismatchError,
    NodeLostError,
    ObjectLostError,
    PeerLostError,
    ReduceError,
    RequestCancelledError,
    StaleEpochError,
    StoreFullError,
    SystemFailureError,
    UnauthenticatedError,
    UnusableAfterForkError,
    VersionDroppedError,
    VersionMissingError,
    VersionRefusedError,
    WireError,
    WireVersionMismatchError,
    WorldBrokenError,
    WorldError,
    WorldTimeoutError,
    WrongTypeError,
)
from hoplite_ray.plugin.hooks.import_hooks import install as _install_joining

if TYPE_CHECKING:
    from hoplite_ray.parts.composed import compose
    from hoplite_ray.plugin.handle.array import Array
    from hoplite_ray.plugin.hooks.flag import runtime_env
    from hoplite_ray.plugin.hooks.start import init
    from hoplite_ray.plugin.surface.api import array, delete, empty, get, wait
    from hoplite_ray.plugin.surface.awaiting import (
        all_gather_async,
        all_reduce_async,
        array_async,
        delete_async,
        empty_async,
        gather_async,
        get_async,
        put_async,
        reduce_async,
        reduce_scatter_async,
        sources_async,
        wait_async,
    )
    from hoplite_ray.plugin.surface.combining import (
        all_gather,
        all_reduce,
        gather,
        reduce,
        reduce_scatter,
        sources,
    )
    from hoplite_ray.plugin.surface.publishing import (
        channels,
        latest,
        latest_async,
        publish,
        publish_async,
        unpublish,
        unpublish_async,
        watch,
    )
    from hoplite_ray.plugin.surface.putting import put
    from hoplite_ray.plugin.surface.streaming import (
        open_safetensors,
        open_safetensors_async,
        stream,
    )
    from hoplite_ray.plugin.tables.table import Table
    from hoplite_ray.plugin.tables.weights import (
        publish_weights,
        publish_weights_async,
        weights,
        weights_async,
    )
    from hoplite_ray.store import Store, new_id
    from hoplite_ray.values.specs import spec

    __version__: str

__all__ = [
    "Array",
    "CollectiveError",
    "ControlError",
    "DuplicateObjectError",
    "GetTimeoutError",
    "HopliteError",
    "InvalidArgumentError",
    "LayoutMismatchError",
    "NodeLostError",
    "ObjectLostError",
    "PeerLostError",
    "ReduceError",
    "RequestCancelledError",
    "StaleEpochError",
    "Store",
    "StoreFullError",
    "SystemFailureError",
    "Table",
    "UnauthenticatedError",
    "UnusableAfterForkError",
    "VersionDroppedError",
    "VersionMissingError",
    "VersionRefusedError",
    "WireError",
    "WireVersionMismatchError",
    "WorldBrokenError",
    "WorldError",
    "WorldTimeoutError",
    "WrongTypeError",
    "all_gather",
    "all_gather_async",
    "all_reduce",
    "all_reduce_async",
    "array",
    "array_async",
    "channels",
    "compose",
    "delete",
    "delete_async",
    "empty",
    "empty_async",
    "gather",
    "gather_async",
    "get",
    "get_async",
    "init",
    "latest",
    "latest_async",
    "new_id",
    "open_safetensors",
    "open_safetensors_async",
    "publish",
    "publish_async",
    "publish_weights",
    "publish_weights_async",
    "put",
    "put_async",
    "reduce",
    "reduce_async",
    "reduce_scatter",
    "reduce_scatter_async",
    "runtime_env",
    "sources",
    "sources_async",
    "spec",
    "stream",
    "unpublish",
    "unpublish_async",
    "wait",
    "wait_async",
    "watch",
    "weights",
    "weights_async",
]

_PLUGIN = {
    "surface.api": ("array", "delete", "empty", "get", "wait"),
    "handle.array": ("Array",),
    "surface.awaiting": (
        *("array_async", "delete_async", "empty_async", "get_async", "put_async", "wait_async"),
        *("all_gather_async", "all_reduce_async", "gather_async", "reduce_async"),
        *("reduce_scatter_async", "sources_async"),
    ),
    "surface.combining": (
        *("all_gather", "all_reduce", "gather"),
        *("reduce", "reduce_scatter", "sources"),
    ),
    "surface.publishing": (
        *("channels", "latest", "latest_async", "publish", "publish_async"),
        *("unpublish", "unpublish_async", "watch"),
    ),
    "surface.putting": ("put",),
    "surface.streaming": ("open_safetensors", "open_safetensors_async", "stream"),
    "hooks.flag": ("runtime_env",),
    "hooks.start": ("init",),
    "tables.table": ("Table",),
    "tables.weights": (
        *("publish_weights", "publish_weights_async"),
        *("weights", "weights_async"),
    ),
}

_HOMES = {
    **{name: f"hoplite_ray.plugin.{home}" for home, names in _PLUGIN.items() for name in names},
    **dict.fromkeys(("Store", "new_id"), "hoplite_ray.store"),
    "compose": "hoplite_ray.parts.composed",
    "spec": "hoplite_ray.values.specs",
}


# Names that have left the top level; they can be had from here until the next release.
_MOVED = {
    "Config": "hoplite_ray.config",
    "Layout": "hoplite_ray.values.layout",
    "NodeStats": "hoplite_ray.metrics.counters",
    "Reduction": "hoplite_ray.pending",
}

# Old names of functions; they work until the next release.
_RENAMED = {
    "allgather": "all_gather",
    "allgather_async": "all_gather_async",
    "allreduce": "all_reduce",
    "allreduce_async": "all_reduce_async",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from hoplite_ray.base.release import release

        return release()
    if name in _MOVED:
        _warn(f"has moved to {_MOVED[name]}; the next release has it only there", name)
        return getattr(importlib.import_module(_MOVED[name]), name)
    if name in _RENAMED:
        _warn(f"is called {_RENAMED[name]}; the next release lacks the old name", name)
        return __getattr__(_RENAMED[name])
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _warn(what: str, name: str) -> None:
    warnings.warn(f"hoplite_ray.{name} {what}", DeprecationWarning, stacklevel=3)


def __dir__() -> list[str]:
    return __all__


_install_joining()
