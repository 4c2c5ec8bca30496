"""Each checker is shown a small tree that breaks its rule, and a near miss that does not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.conftest import skip_is_allowed
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
from tests.house.test_tree import CHECKERS, Checker
from tests.house.tree import sample

Files = dict[str, str]

INCLUDES = "native/plan/messages.h"
DUTIES = "hoplite_ray.plugin.steward.steward"
LONG_BODY = "  x += 1;\n" * 70
README_GOOD = "## Set up\n\n```sh\nmake demo\nmake test  # the gate\n```\n"
MAKEFILE = "demo:\ntest: demo\n"

FAULTS_HEAD = "| fault | simulated | on real processes |\n|---|---|---|\n"
SCENARIOS = "native/sim/scenarios"
FAULTS = {
    f"{SCENARIOS}/fault_scenarios_test.cc": "TEST_P(Faults, IsSurvived) {\n",
    "tests/process/test_failures.py": "def test_is_survived(cluster: MakeNodes) -> None: ...\n",
    "docs/internals/faults.md": f"{FAULTS_HEAD}"
    "| a death ★ | `Faults.IsSurvived` | `test_is_survived` |\n",
}

METHOD_PAGE = "docs/internals/performance/methodology.md"
PARTIES = {
    "native/plan/engine/lies_test.cc": "TEST_F(Lies, ChangeNothing) {\n",
    parties.PAGE: "## What each party sends, and what it gets\n"
    + f"\n{parties.HEAD}\n|---|---|---|\n| lies | nothing | `Lies.ChangeNothing` |\n" * 5,
}

GROWN = "class Parked {\n  std::deque<Message> kept_;\n};\n"
PARKED = "native/plan/links/parked.h"
GROWTH = {
    PARKED: GROWN,
    "native/plan/links/parked_test.cc": "TEST(Parked, DropsTheOldest) {\n",
    "docs/internals/growth.md": f"{growth.BOUNDED}\n|---|---|---|---|\n"
    "| `plan/links/parked.h` `kept_` | messages | 64 | `Parked.DropsTheOldest` |\n",
}


def record(name: str) -> str:
    return f"docs/internals/decisions/{name}.md"


def times(**seconds: float) -> Files:
    """A recorded gate, in which every other folder took a second."""
    took = {**dict.fromkeys(budgets.BUDGET_S, 1.0), **seconds}
    steps = {f"tests-{folder}": {"seconds": value} for folder, value in took.items()}
    return {budgets.RECORDED: json.dumps({"steps": steps})}


# checker, a tree that must fail, a tree that must pass
CASES: list[tuple[Checker, Files, Files]] = [
    (
        layers.includes,
        {"native/io/a.cc": '#include "plan/engine/engine.h"\n', "native/plan/engine/engine.h": ""},
        {"native/io/a.cc": '#include "plan/messages.h"\n', INCLUDES: ""},
    ),
    (
        layers.includes,
        {"native/node/a.cc": "#include <nanobind/nanobind.h>\n"},
        {"native/bindings/module.cc": "#include <nanobind/nanobind.h>\n"},
    ),
    (
        layers.includes,
        {"native/plan/a.cc": "#include <mutex>\n"},
        {"native/node/a.cc": "#include <mutex>\n"},
    ),
    (
        layers.includes,
        {"native/plan/a.cc": '#include "plan/gone.h"\n'},
        {"native/plan/a.cc": '#include "plan/a.h"\n', "native/plan/a.h": ""},
    ),
    (
        layers.includes,
        {"native/wire/b.h": "#include <fstream>\n", "native/wire/b.cc": '#include "wire/b.h"\n'},
        {
            "native/wire/b.h": "#include <fstream>\n",
            "native/wire/a_test.cc": '#include "wire/b.h"\n',
        },
    ),
    (layers.includes, {"native/misc/a.cc": ""}, {"native/base/a.cc": ""}),
    (
        layers.own_header_first,
        {"native/base/a.cc": '#include <map>\n#include "base/a.h"\n', "native/base/a.h": ""},
        {"native/base/a.cc": '#include "base/a.h"\n#include <map>\n', "native/base/a.h": ""},
    ),
    (
        layers.wordings,
        {"native/plan/a.h": "std::unordered_map<int, int> m;\n"},
        {"native/plan/a.h": "// not an unordered_map\nstd::map<int, int> m;\n"},
    ),
    (
        layers.wordings,
        {"native/io/a.cc": "auto* p = new int;\n"},
        {"native/io/a.cc": "struct A { A(const A&) = delete; };\n"},
    ),
    (layers.wordings, {"native/wire/a.cc": "throw 1;\n"}, {"native/node/a.cc": "throw 1;\n"}),
    (
        rooms.arrows,
        {
            "hoplite_ray/plugin/seams/core.py": "def f():\n    from hoplite_ray import plugin\n"
            "    from hoplite_ray.plugin.node import start\n",
            "hoplite_ray/plugin/node/start.py": "",
        },
        {
            "hoplite_ray/plugin/seams/core.py": "",
            "hoplite_ray/plugin/node/start.py": "from hoplite_ray.plugin.seams.core import x\n",
        },
    ),
    (
        rooms.arrows,
        {
            "hoplite_ray/plugin/node/start.py": "import_module('hoplite_ray.plugin.hooks.flag')\n",
            "hoplite_ray/plugin/hooks/flag.py": "",
        },
        {
            "hoplite_ray/plugin/hooks/flag.py": "from ..node import start\n",
            "hoplite_ray/plugin/node/start.py": "",
        },
    ),
    (
        rooms.arrows,
        {"hoplite_ray/plugin/steward_client/client.py": "from hoplite_ray import x\n"}
        | {"hoplite_ray/__init__.py": "x = 1\n"},
        {"hoplite_ray/plugin/steward_client/client.py": f"import_module({DUTIES!r})\n"}
        | {"hoplite_ray/plugin/steward/steward.py": ""},
    ),
    (rooms.arrows, {"hoplite_ray/plugin/a.py": ""}, {"hoplite_ray/plugin/array.py": ""}),
    (
        rooms.cycles,
        {
            "hoplite_ray/a.py": "from hoplite_ray import b\n",
            "hoplite_ray/b.py": "def f():\n    from hoplite_ray.a import x\n",
        },
        {
            "hoplite_ray/__init__.py": "from hoplite_ray.a import x\n",
            "hoplite_ray/a.py": "from hoplite_ray import _native, b\n",
            "hoplite_ray/b.py": "if TYPE_CHECKING:\n    from hoplite_ray.a import x\n",
            "hoplite_ray/_native.pyi": "",
        },
    ),
    (
        rooms.cycles,
        {
            "hoplite_ray/a.py": "import hoplite_ray.serve.b\n",
            "serve_integration/b.py": "try:\n    from hoplite_ray.a import x\nfinally:\n    pass\n",
        },
        {"hoplite_ray/a.py": "", "serve_integration/b.py": "from hoplite_ray.a import x\n"},
    ),
    (
        rooms.arrows,
        {"native/plan/links/a.h": '#include "plan/engine/b.h"\n', "native/plan/engine/b.h": ""},
        {"native/plan/engine/b.h": '#include "plan/links/a.h"\n', "native/plan/links/a.h": ""},
    ),
    (
        rooms.arrows,
        {"native/io/misc/a.h": ""},
        {"native/io/links/a.h": "", "native/io/links_test.cc": '#include "io/local_port.h"\n'},
    ),
    (
        rooms.folders,
        {f"hoplite_ray/worlds/gpu/{n}.py": "" for n in range(13)},
        {f"hoplite_ray/worlds/gpu/{name}.py": "" for name in ["__init__", *range(12)]},
    ),
    (
        rooms.folders,
        {f"native/client/{n}.cc": "" for n in range(13)},
        {f"native/client/{n}{end}": "" for n in range(12) for end in (".h", ".cc", "_a_test.cc")},
    ),
    (
        rooms.doors,
        {"hoplite_ray/plugin/node/start.py": ""},
        {
            "hoplite_ray/plugin/node/__init__.py": '"""The node.  Start with start.py."""\n',
            "hoplite_ray/plugin/node/start.py": "",
        },
    ),
    (
        rooms.doors,
        {"hoplite_ray/plugin/node/__init__.py": f'"""{"A sentence. " * 7}"""\n'},
        {"hoplite_ray/plugin/node/__init__.py": f'"""{"A sentence. " * 6}"""\n'},
    ),
    (
        layers.imports,
        {"hoplite_ray/store.py": "def f():\n    import ray.util\n"},
        {"hoplite_ray/plugin/seams/core.py": "import ray\n"},
    ),
    (
        layers.imports,
        {"serve_integration/edge.py": "from hoplite_ray._native import Client\n"},
        {"serve_integration/edge.py": "from hoplite_ray import Store\n"},
    ),
    (sizes.files, {"native/base/a.cc": "\n" * 601}, {"native/base/a.cc": "\n" * 600}),
    (sizes.files, {"native/base/a.h": "\n" * 151}, {"native/base/a.h": "\n" * 150}),
    (sizes.files, {"examples/a.py": "\n" * 81}, {"examples/support/a.py": "\n" * 81}),
    (sizes.lines, {"a.py": "#" * 101}, {"a.py": "#" * 100}),
    (
        sizes.functions,
        {
            "native/base/a.cc": "namespace h {\nA::A(int x) : y_{x}, z_{1} {\n"
            + LONG_BODY
            + "}\n}\n"
        },
        {"native/base/a.cc": "namespace h {\nstruct A {\n" + LONG_BODY + "void f() {\n}\n};\n}\n"},
    ),
    (
        sizes.functions,
        {"a.py": "def f():\n" + "    x = 1\n" * 70},
        {"a.py": "def f():\n" + "    x = 1\n" * 69},
    ),
    (
        words.plan,
        {"native/plan/a.h": "int kChunkBytes;\n"},
        {"native/plan/a.h": "// a chunk\nint kBlockBytes, blocks, wire_version;\n"},
    ),
    (
        words.plan,
        {"native/plan/a.h": "int get_rail();\n"},
        {"native/plan/a.h": "int rail = std::get_if(x);\n"},
    ),
    (words.plan, {"native/plan/a.h": "class PullImpl;\n"}, {"native/plan/a.h": "class Pull;\n"}),
    (
        words.python,
        {"hoplite_ray/a.py": "def put(*, worker_id=0): ...\n"},
        {"hoplite_ray/a.py": "def put(*, rank=0): ...\ndef _server(): ...\n"},
    ),
    (
        words.python,
        {"hoplite_ray/a.py": "class A:\n    pools: int\n"},
        {"hoplite_ray/a.py": "class A:\n    links: int\n"},
    ),
    (
        words.verbs,
        {"tests/a.py": "def f():\n    async def _given_up(): ...\n"},
        {"tests/a.py": "def feed(): ...\ndef lost_sources(): ...\ndef checked_id(): ...\n"},
    ),
    (  # an old name may stay, and its entry goes with it
        words.verbs,
        {words.OLD_NAMES: '{"a.py": ["told"]}', "a.py": "def tell(): ...\n"},
        {words.OLD_NAMES: '{"a.py": ["told"]}', "a.py": "def told(): ...\n"},
    ),
    (
        words.native_verbs,
        {"native/io/a.h": "class A {\n  [[nodiscard]] std::vector<Id> told(Id id) const;\n};\n"},
        {"native/io/a.h": "class A {\n  void feed();\n  Id lost_source();\n  bool told_;\n};\n"},
    ),
    (
        words.native_verbs,
        {"native/io/a.cc": "void A::give_up(Id id) {\n}\n"},
        {"native/io/a.cc": "void A::stop() {\n  Bytes taken(16);\n  const auto told = f();\n}\n"},
    ),
    (  # an old name may stay, and its entry goes with it
        words.native_verbs,
        {words.OLD_NATIVE_NAMES: '{"native/io": ["told"]}', "native/io/a.cc": "void send() {}\n"},
        {words.OLD_NATIVE_NAMES: '{"native/io": ["told"]}', "native/io/a.cc": "void told() {}\n"},
    ),
    (
        faults.table,
        {**FAULTS, "docs/internals/faults.md": f"{FAULTS_HEAD}| a death | `Faults.IsFeared` | |\n"},
        FAULTS,
    ),
    (
        faults.table,
        {**FAULTS, "tests/process/test_failures.py": "def test_is_feared(): ...\n"},
        FAULTS,
    ),
    (
        prose.pages,
        {"docs/a.md": "The home grants.\nWho asked waits.\n"},
        {"docs/a.md": "The home grants.\nPeople who ask wait for `who`.\n"},
    ),
    (
        prose.pages,
        {"docs/a.md": f"The home {'grants a lease and ' * 30}waits.\n"},
        {"docs/a.md": f"{'The home grants a lease. ' * 4}\n"},
    ),
    (
        prose.pages,
        {"docs/a.md": "A short sentence.\n", prose.DEBT: '{"docs/a.md": 1}'},  # it got better
        {"docs/a.md": "What is there.\n", prose.DEBT: '{"docs/a.md": 1}'},
    ),
    (
        prose.comments,
        {"native/plan/a.cc": "// Nobody claims it.\n", "hoplite_ray/a.py": ""},
        {"native/plan/a.cc": "// No node claims it.\n", "hoplite_ray/a.py": ""},
    ),
    (
        prose.comments,
        {"hoplite_ray/a.py": '"""A twin that took 3.4 s before."""\n'},
        {"hoplite_ray/a.py": '"""A twin that waits 3.4 s."""\n'},
    ),
    (
        parties.table,
        {**PARTIES, "native/plan/engine/lies_test.cc": "TEST_F(Lies, AreTold) {\n"},
        PARTIES,
    ),
    (
        parties.table,
        {**PARTIES, parties.PAGE: f"{PARTIES[parties.PAGE]}| bytes | a frown | |\n"},
        PARTIES,
    ),
    (
        parties.table,
        {**PARTIES, parties.PAGE: "## What each party sends, and what it gets\n"},
        PARTIES,
    ),
    (
        faults.table,
        {
            **FAULTS,
            "docs/internals/faults.md": f"{FAULTS_HEAD}| a death ★ | `Faults.IsSurvived` | |\n",
        },
        {
            **FAULTS,
            "docs/internals/faults.md": f"{FAULTS_HEAD}| a death | `Faults.IsSurvived` | |\n",
        },
    ),
    (
        faults.table,
        {**FAULTS, f"{SCENARIOS}/reduce_fault_scenarios_test.cc": "TEST_P(Faults, Other) {\n"},
        {**FAULTS, f"{SCENARIOS}/reduce_scenarios_test.cc": "TEST_P(Faults, Other) {\n"},
    ),
    (text.unfinished, {"a.md": "TO" + "DO: finish"}, {"a.md": "to do: nothing"}),
    (
        text.machine_paths,
        {"a.md": "see /ro" + "ot/x"},
        {"a.md": "see docs/work/x, tests/tmp/x, /tmp/test-XXXX"},
    ),
    (text.banners, {"a.py": "# " + "-" * 20 + "\n"}, {"a.py": "# -- a dash\n"}),
    (
        text.licences,
        {"native/a.h": "// A.\n// SPDX-License-Identifier: Apache-2.0\n"},
        {"native/a.h": "// SPDX-License-Identifier: Apache-2.0\n// A.\n"},
    ),
    (
        exports.exports,
        {"hoplite_ray/a.py": '__all__ = ["b", "A"]\nclass A: ...\ndef b(): ...\n'},
        {"hoplite_ray/a.py": '__all__ = ["A", "b"]\nclass A: ...\ndef b(): ...\n'},
    ),
    (
        exports.exports,
        {"hoplite_ray/a.py": '__all__ = ["A"]\nclass A: ...\ndef b(): ...\n'},
        {"hoplite_ray/a.py": '__all__ = ["A"]\nclass A: ...\ndef _b(): ...\n'},
    ),
    (
        exports.exports,
        {"hoplite_ray/__init__.py": "x = 1\n"},
        {"hoplite_ray/__init__.py": "from hoplite_ray.a import b\n__all__ = ['b']\n"},
    ),
    (
        exports.top_names,
        {
            "hoplite_ray/__init__.py": f"__all__ = {[f'n{i}' for i in range(31)]}\n",
            "hoplite_ray/errors.py": "class LostError(Exception): ...\n",
        },
        {
            "hoplite_ray/__init__.py": "__all__ = "
            f"{['LostError', 'n0_async', *(f'n{i}' for i in range(30))]}",
            "hoplite_ray/errors.py": "class LostError(Exception): ...\n",
        },
    ),
    (
        dead_files.cpp_sources,
        {"native/base/a.cc": "", dead_files.COMPILE_COMMANDS: "[]"},
        {dead_files.COMPILE_COMMANDS: "[]"},
    ),
    (
        dead_files.headers,
        {"native/base/a.h": "", "native/base/a.cc": '#include "base/a.h"\n'},
        {"native/base/a.h": "", "native/base/b.cc": '#include "base/a.h"\n'},
    ),
    (
        dead_files.python_modules,
        {"hoplite_ray/__init__.py": "", "hoplite_ray/a.py": "x = 1\n"},
        {"hoplite_ray/__init__.py": "from hoplite_ray.a import x\n", "hoplite_ray/a.py": "x = 1\n"},
    ),
    (
        dead_files.pages,
        {"README.md": "", "docs/internals/wire.md": ""},
        {"README.md": "[wire](docs/internals/wire.md)", "docs/internals/wire.md": ""},
    ),
    (
        readme.set_up,
        {
            "README.md": README_GOOD.replace("make demo", "pip install x\nmake demo"),
            "Makefile": MAKEFILE,
        },
        {"README.md": README_GOOD, "Makefile": MAKEFILE},
    ),
    (
        readme.set_up,
        {"README.md": README_GOOD, "Makefile": "demo:\n"},
        {"README.md": README_GOOD, "Makefile": MAKEFILE},
    ),
    (
        readme.code,
        {"README.md": "```python\nx = (\n```\n"},
        {"README.md": "```python\nx = await y\n```\n"},
    ),
    (
        blocks.claimed,
        {"docs/a.md": "```sh\nrm x\n```\n"},
        {"docs/a.md": "```text\nx\n```\n"},
    ),
    (
        blocks.claimed,
        {METHOD_PAGE: "```sh\nls\n```\n", "tests/unit/test_collectives_table.py": ""},
        {
            METHOD_PAGE: "```sh\nls\n```\n",
            "tests/unit/test_collectives_table.py": "# methodology.md",
        },
    ),
    (
        readme.paths,
        {"README.md": "[a](docs/a.md)"},
        {"README.md": "[a](docs/a.md)", "docs/a.md": ""},
    ),
    (
        readme.paths,
        {"README.md": "`native/plan/broadcast/pull`"},
        {"README.md": "`native/plan/broadcast/pull`", "native/plan/broadcast/pull.h": ""},
    ),
    (
        readme.paths,
        {"README.md": "`tests/a.py::test_b`", "tests/a.py": "def test_a() -> None: ...\n"},
        {"README.md": "`tests/a.py::test_a`", "tests/a.py": "def test_a() -> None: ...\n"},
    ),
    (  # a number is missing
        readme.decisions,
        {record("0001-one"): "# 1. One\n", record("0003-three"): "# 3. Three\n"},
        {record("0001-one"): "# 1. One\n", record("0002-two"): "# 2. Two\n"},
    ),
    (  # a number is there twice
        readme.decisions,
        {record("0001-one"): "# 1. One\n", record("0001-uno"): "# 1. One\n"},
        {record("0001-one"): "# 1. One\n", record("0001a-uno"): "# 1a. One\n"},
    ),
    (  # name and heading differ
        readme.decisions,
        {record("0001-one"): "# 2. One\n"},
        {record("0001-one"): "# 1. One\n"},
    ),
    (  # a letter is missing
        readme.decisions,
        {record("0001-one"): "# 1. One\n", record("0001b-uno"): "# 1b. One\n"},
        {record("0001-one"): "# 1. One\n", record("0001a-uno"): "# 1a. One\n"},
    ),
    (  # a part is of no decision
        readme.decisions,
        {record("0001a-one"): "# 1a. One\n"},
        {record("0001-one"): "# 1. One\n", "docs/internals/decisions/README.md": ""},
    ),
    (  # a number is cited that is not there
        readme.decisions,
        {record("0001-one"): "# 1. One\n", "native/a.h": "// Design decisions 1 and 3.\n"},
        {record("0001-one"): "# 1. One\n", "native/a.h": "// Design decision 1.\n"},
    ),
    (  # a letter is cited that is not there
        readme.decisions,
        {record("0001-one"): "# 1. One\n", "docs/a.md": f"(decision {1}a)\n"},
        {
            record("0001-one"): "# 1. One\n",
            record("0001a-one"): "# 1a. One\n",
            "docs/a.md": f"(decisions 1 and {1}a)\n",
        },
    ),
    (
        growth.table,
        {
            **GROWTH,
            PARKED: f"{GROWN}struct A {{\n  std::map<int, int> more = {{}};\n}};\n",
        },
        {
            **GROWTH,
            PARKED: f"{GROWN}struct A {{\n  std::map<int, int> more();\n}};\n",
        },
    ),
    (growth.table, {**GROWTH, PARKED: "class Parked {};\n"}, GROWTH),
    (growth.table, {**GROWTH, "native/plan/links/parked_test.cc": ""}, GROWTH),
    (
        growth.table,
        {
            **GROWTH,
            "docs/internals/growth.md": GROWTH["docs/internals/growth.md"].replace(
                "`Parked.DropsTheOldest`", "?"
            ),
        },
        GROWTH,
    ),
    (
        budgets.recorded,
        times(unit=1.26 * budgets.BUDGET_S["unit"]),
        times(unit=1.24 * budgets.BUDGET_S["unit"]),
    ),
    (budgets.recorded, {budgets.RECORDED: '{"steps": {}}'}, times()),
    (
        budgets.recorded,
        {**times(), "tests/new/test_a.py": ""},
        {**times(), "tests/unit/test_a.py": ""},
    ),
]


@pytest.mark.parametrize(
    ("checker", "bad", "good"), CASES, ids=[f"{c[0].__name__}-{i}" for i, c in enumerate(CASES)]
)
def test_checker_fails_on_the_bad_tree_only(
    checker: Checker, bad: Files, good: Files, tmp_path: Path
) -> None:
    assert checker(sample(tmp_path / "bad", bad))
    assert checker(sample(tmp_path / "good", good)) == []


def test_every_checker_has_a_canary() -> None:
    shown = {case[0] for case in CASES}
    assert [name for name, checker in CHECKERS.items() if checker not in shown] == []


@pytest.mark.parametrize(
    "source",
    [
        "#include <chrono>\nauto f() { return std::chrono::steady_clock::now(); }",
        "#include <mutex>\nstd::mutex m; void f() { m.lock(); }",
        "#include <sys/socket.h>\nint f() { return socket(1, 1, 0); }",
        '#include <cstdlib>\nchar* f() { return std::getenv("X"); }',
        "#include <random>\nunsigned f() { return std::random_device{}(); }",
        "#include <thread>\nvoid f() { std::thread([] {}).join(); }",
    ],
    ids=["clock", "lock", "socket", "environment", "randomness", "thread"],
)
def test_impure_archive_is_found(source: str, tmp_path: Path) -> None:
    assert purity.impure(purity.undefined_symbols(_archive(source, tmp_path)))


def test_containers_are_pure(tmp_path: Path) -> None:
    source = (
        "#include <map>\n#include <string>\nvoid f(std::map<int, std::string>& m) { m[1] = {}; }"
    )
    symbols = purity.undefined_symbols(_archive(source, tmp_path))
    assert symbols
    assert purity.impure(symbols) == []


def _archive(source: str, folder: Path) -> Path:
    (folder / "a.cc").write_text(source)
    subprocess.run(["c++", "-std=c++20", "-O1", "-c", "a.cc", "-o", "a.o"], cwd=folder, check=True)
    subprocess.run(["ar", "rcs", "a.a", "a.o"], cwd=folder, check=True)
    return folder / "a.a"


def test_stale_stub_is_found() -> None:
    assert stub.difference("def a() -> int: ...\n", "def a(x: int) -> int: ...\n")
    assert stub.difference("def a() -> int: ...\n", "def a() -> int: ...\n") == []


@pytest.mark.parametrize(
    ("reason", "allowed"),
    [
        ("Skipped: no GPU", True),
        ("Skipped: needs root for network namespaces", True),
        ("flaky", False),
    ],
)
def test_skip_needs_a_reason_on_the_list(reason: str, allowed: bool) -> None:
    assert skip_is_allowed(reason) is allowed


def test_words_are_split() -> None:
    assert words.split("kBlocksInFlightMax") == ["k", "blocks", "in", "flight", "max"]
    assert words.split("HTTPServer_x") == ["http", "server", "x"]
