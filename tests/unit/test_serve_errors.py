"""The errors of Serve applications: one tree under HopliteError, as they arrive after an edge."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hoplite_ray import HopliteError, serve
from hoplite_ray.serve import errors
from hoplite_ray.serve.edge.failures import pack_failure

OWN = {name: each for name, each in vars(errors).items() if name.endswith("Error")}
MADE = [
    errors.BusyError("full"),
    errors.LateError("late"),
    errors.NoReplicaError("none"),
    errors.PipelineGoneError("removed"),
    errors.PoisonousQueryError("3 replicas"),
    errors.QuorumError("1 of 3", {"a": 1}),
    errors.UnattainableError("at no rate"),
    errors.EdgeBrokenError("gone", was_sent=False, has_begun=True),
    errors.JoinLostError("lost", 2),
    errors.UnknownPipelineError("unknown", 1, 12.5),
    errors.StoredLostError("not here"),
    errors.OtherVersionError("version 1"),
]


def test_every_error_of_the_package_is_a_hoplite_error() -> None:
    public = {name for name in serve.__all__ if name.endswith("Error")}
    assert public == {name for name in OWN if name != "HopliteError"} - {
        "JoinLostError",
        "UnknownPipelineError",
        "StoredLostError",
        "OtherVersionError",
    }
    assert all(issubclass(each, HopliteError) for each in OWN.values())
    assert {type(each) for each in MADE} == {*OWN.values()} - {HopliteError}, "each is tried below"


def test_no_other_module_defines_an_error() -> None:
    folder = Path(str(serve.__file__)).parent
    found = [path for path in folder.rglob("*.py") if "Error(Exception)" in path.read_text()]
    assert not found


def test_a_late_query_is_a_timeout_too() -> None:
    with pytest.raises(TimeoutError):
        raise errors.LateError("too late")


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_edges_with_what_it_has(error: HopliteError) -> None:
    error.add_note("in stage a")
    for read in (pickle.loads(pickle.dumps(error)), pack_failure(2, 7, error).value()):
        assert type(read) is type(error) and str(read) == str(error)
        assert vars(read) == vars(error)
