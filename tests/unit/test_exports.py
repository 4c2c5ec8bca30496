"""What `import hoplite_ray` gives."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import subprocess
import sys
from importlib import metadata
from typing import Any

import pytest

import hoplite_ray
from hoplite_ray.cli import main
from hoplite_ray.store import Store


@pytest.mark.parametrize("name", hoplite_ray.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(hoplite_ray, name) is not None
    assert name in dir(hoplite_ray)


VERBS = ("put", "array", "empty", "get", "wait", "delete", "sources", "publish_weights", "weights")
COMBINING = ("reduce", "all_reduce", "reduce_scatter", "gather", "all_gather")


@pytest.mark.parametrize("verb", [*VERBS, *COMBINING])
def test_every_verb_has_an_awaitable_twin(verb: str) -> None:
    twin = getattr(hoplite_ray, f"{verb}_async")
    assert inspect.iscoroutinefunction(twin)
    takes = {**inspect.signature(getattr(hoplite_ray, verb)).parameters}
    takes.setdefault("timeout_s", inspect.signature(twin).parameters["timeout_s"])
    assert takes == {**inspect.signature(twin).parameters}


@pytest.mark.parametrize(
    ("name", "home"),
    [
        *[("Config", "config"), ("Layout", "values.layout"), ("Reduction", "pending")],
        ("NodeStats", "metrics.counters"),
    ],
)
def test_a_name_that_has_left_the_top_is_found_with_a_warning(name: str, home: str) -> None:
    with pytest.warns(DeprecationWarning, match=rf"moved to hoplite_ray\.{home};"):
        found = getattr(hoplite_ray, name)
    assert found is getattr(importlib.import_module(f"hoplite_ray.{home}"), name)
    assert name not in dir(hoplite_ray)


@pytest.mark.parametrize("old", ["allreduce", "allgather", "allreduce_async", "allgather_async"])
def test_an_old_name_of_a_function_works_with_a_warning(old: str) -> None:
    new = old.replace("all", "all_")
    with pytest.warns(DeprecationWarning, match=rf"hoplite_ray\.{old} is called {new};") as warned:
        found = getattr(hoplite_ray, old)
    assert found is getattr(hoplite_ray, new)
    assert warned[0].filename == __file__
    assert old not in dir(hoplite_ray)


def test_an_old_name_of_a_store_works_with_a_warning() -> None:
    class Fake(Store):
        """Answers with what it is called with."""

        def __init__(self) -> None:
            pass

        def all_reduce(self, *args: Any, **options: Any) -> Any:
            return args, options

        async def all_reduce_async(self, *args: Any, **options: Any) -> Any:
            return args, options

    given = ((b"target", [b"source"]), {"op": "max", "timeout_s": 1})
    with pytest.warns(DeprecationWarning, match=r"Store\.allreduce is called all_reduce;"):
        found = Fake().allreduce(*given[0], **given[1])
    assert found == given
    with pytest.warns(DeprecationWarning, match="is called all_reduce_async;"):
        begun = Fake().allreduce_async(*given[0], **given[1])
    assert asyncio.run(begun) == given


STORE_VERBS = (
    *("put", "empty", "get", "delete", "locate"),
    *("gather", "reduce", "all_reduce", "reduce_scatter"),
    *("publish", "latest", "unpublish", "channels"),
    "open_safetensors",
)
STORE_REST = {
    "attach",
    "begin_get",
    "begin_put",
    "close",
    "compose",
    "is_alive",
    "node",
    "node_id",
    "start",
    "stream",
    "watch",
}
OLD = {"allreduce", "allreduce_async"}


def test_a_store_has_what_people_call_and_nothing_of_the_plugin() -> None:
    public = {name for name in dir(Store) if not name.startswith("_")}
    twins = {f"{verb}_async" for verb in STORE_VERBS}
    assert public == {*STORE_VERBS} | twins | STORE_REST | OLD
    taken = {
        name
        for verb in ({*STORE_VERBS} | twins | {"begin_get", "begin_put"})
        for name in inspect.signature(getattr(Store, verb)).parameters
    }
    assert not taken & {"exists", "incarnation", "upto", "everywhere", "share"}


def test_the_version_is_the_installed_one() -> None:
    assert hoplite_ray.__version__ == metadata.version("hoplite_ray")


def test_a_source_tree_that_is_not_installed_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert hoplite_ray.__version__ == "0+source"


def test_the_command_tells_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"hoplite-ray {hoplite_ray.__version__}\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="broadcast_all"):
        hoplite_ray.broadcast_all  # noqa: B018


def test_a_nodes_process_has_no_numpy_whose_threads_each_node_would_have() -> None:
    program = (
        "import sys, hoplite_ray.node.process\n"
        "found = {'ray', 'numpy', 'torch'} & set(sys.modules)\n"
        "sys.exit(f'{found} are imported' if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_importing_it_needs_neither_ray_nor_numpy_nor_the_native_core() -> None:
    program = (
        "import sys, hoplite_ray, hoplite_ray.config\n"
        "found = {'ray', 'numpy', 'grpc', 'hoplite_ray._native'} & set(sys.modules)\n"
        "sys.exit(str(found) if found else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_backend_of_rays_collectives_may_be_imported_before_them() -> None:
    """Its first import is of ray.util.collective, whose import in turn has it join."""
    program = (
        "import hoplite_ray.plugin.groups.collective as ours\n"
        "from ray.util.collective.backend_registry import BackendRegistry\n"
        "assert BackendRegistry().get(ours.BACKEND) is ours.Collective"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
