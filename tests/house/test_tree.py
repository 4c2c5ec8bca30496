"""The repository obeys the house style; test_canary shows that each checker can fail."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.house import (
    blocks,
    budgets,
    dead_files,
    exports,
    faults,
    growth,
    layers,
    parties,
    prose,
    purity,
    readme,
    rooms,
    sizes,
    stub,
    text,
    words,
)
from tests.house.tree import ROOT, Tree, repository

Checker = Callable[[Tree], list[str]]

CHECKERS: dict[str, Checker] = {
    "layers of the includes": layers.includes,
    "own header first": layers.own_header_first,
    "banned constructs": layers.wordings,
    "layers of the imports": layers.imports,
    "arrows between rooms": rooms.arrows,
    "no cycle of imports": rooms.cycles,
    "sizes of folders": rooms.folders,
    "doors of rooms": rooms.doors,
    "file sizes": sizes.files,
    "line lengths": sizes.lines,
    "function lengths": sizes.functions,
    "words of plan": words.plan,
    "words of the public names": words.python,
    "verbs of the functions": words.verbs,
    "verbs of the native functions": words.native_verbs,
    "prose of the pages": prose.pages,
    "prose of the comments": prose.comments,
    "unfinished work": text.unfinished,
    "machine paths": text.machine_paths,
    "banners": text.banners,
    "licences": text.licences,
    "sorted and complete __all__": exports.exports,
    "few names at the top": exports.top_names,
    "dead sources": dead_files.cpp_sources,
    "dead headers": dead_files.headers,
    "dead modules": dead_files.python_modules,
    "dead pages": dead_files.pages,
    "README set-up": readme.set_up,
    "README code": readme.code,
    "README paths": readme.paths,
    "code blocks": blocks.claimed,
    "design decisions": readme.decisions,
    "table of faults": faults.table,
    "tables of parties": parties.table,
    "table of what grows": growth.table,
    "budgets of the tests": budgets.recorded,
}


@pytest.mark.parametrize("checker", CHECKERS.values(), ids=CHECKERS)
def test_repository_obeys(checker: Checker) -> None:
    if found := checker(repository()):
        pytest.fail("\n".join(found), pytrace=False)


@pytest.mark.parametrize("archive", purity.ARCHIVES)
def test_linker_finds_nothing_impure(archive: str) -> None:
    symbols = purity.undefined_symbols(ROOT / "build/editable" / archive)
    assert symbols, "an archive that wants nothing was not read"
    assert not purity.impure(symbols)


def test_stub_is_the_built_one(tmp_path: Path) -> None:
    assert not stub.difference(stub.COMMITTED.read_text(), stub.generated(tmp_path)), (
        "run: make fix"
    )


def test_every_public_name_can_be_had() -> None:
    package = import_module("hoplite_ray")
    for name in package.__all__:
        assert getattr(package, name) is not None
