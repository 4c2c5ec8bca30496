"""House-style 1: the arrows between the folders go down only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import Tree, without_comments

# Folder of native/ -> folders it may include besides itself.
# wire and io may include only messages.h of plan.
MAY_INCLUDE = {
    "base": set(),
    "plan": {"base"},
    "wire": {"base"},
    "delta": {"base", "wire"},
    "io": {"base", "wire"},
    "node": {"base", "plan", "wire", "delta", "io"},
    "client": {"base", "plan", "wire", "io"},
    "world": {"base", "wire", "io"},
    "sim": {"base", "plan", "wire"},
    "bindings": {"base", "plan", "wire", "delta", "io", "node", "client", "world"},
}
BORDER = "plan/messages.h"
SEES_THE_BORDER = {"wire", "io"}

# Headers that a pure folder may not include; the linker proves the rest (purity.py).
PURE = {"plan", "wire", "delta"}
IMPURE_HEADER = re.compile(
    r"(sys|netinet|arpa|linux)/.*|(unistd|fcntl|pthread|poll|signal|time|stdlib)\.h"
    r"|thread|mutex|shared_mutex|condition_variable|future|atomic|random|chrono|ctime"
    r"|iostream|fstream|unordered_map|unordered_set"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

# Things no code of these folders may say: (folders, pattern, why).
WORDINGS = (
    ({"plan"}, re.compile(r"\bvirtual\b|\bstd::function\b"), "no callbacks, no virtuals in plan"),
    ({"plan"}, re.compile(r"\bunordered_(map|set)\b"), "iteration order is not part of our inputs"),
    (
        {"plan", "wire", "delta", "io"},
        re.compile(r"\bshared_ptr\b"),
        "values and ids, not shared pointers",
    ),
    (
        {"plan", "wire", "delta", "io"},
        re.compile(r"(?<!operator )\bnew\b(?! *\()|\bdelete\b(?! *;)"),
        "owning by hand",
    ),
    ({"plan", "wire", "delta"}, re.compile(r"\bthrow\b|\btry\s*\{"), "operating errors are values"),
)

MAY_IMPORT_RAY = re.compile(
    r"hoplite_ray/(plugin|integrations)/|serve_integration/|examples/|benchmarks/|tests/"
)


def includes(tree: Tree) -> list[str]:
    found = []
    for_tests = set(_test_support(tree))
    for path in tree.cpp:
        folder = path.split("/")[1]
        allowed = MAY_INCLUDE.get(folder)
        if allowed is None:
            found.append(f"{path}: native/{folder} is not on the map")
            continue
        for bracket, name in INCLUDE.findall(tree.read(path)):
            if bracket == "<":
                found += _system_include(path, folder, name, test=path in for_tests)
                continue
            target = name.split("/")[0]
            border = name == BORDER and folder in SEES_THE_BORDER
            if target != folder and target not in allowed and not border:
                found.append(f"{path}: {folder} may not include {name}")
            elif not tree.exists(f"native/{name}"):
                found.append(f"{path}: {name} does not exist below native/")
    return found


def _test_support(tree: Tree) -> Iterator[str]:
    """Tests, and headers that only tests include."""
    for path in tree.cpp:
        line = f'#include "{path.removeprefix("native/")}"'
        users = [user for user in tree.cpp if line in tree.read(user)]
        tests = [user for user in users if user.endswith("_test.cc")]
        if path.endswith(("_test.cc", "_test.h")) or (users and users == tests):
            yield path


def _system_include(path: str, folder: str, name: str, *, test: bool) -> list[str]:
    if (name.startswith("nanobind/") or name == "Python.h") and folder != "bindings":
        return [f"{path}: only bindings knows Python, not <{name}>"]
    if folder in PURE and not test and IMPURE_HEADER.fullmatch(name):
        return [f"{path}: {folder} is pure, <{name}> is not"]
    return []


def own_header_first(tree: Tree) -> list[str]:
    """x.cc includes x.h before anything else, which proves that x.h stands on its own feet."""
    found = []
    for path in tree.cpp:
        header = path.removesuffix(".cc") + ".h"
        if not path.endswith(".cc") or path.endswith("_test.cc") or not tree.exists(header):
            continue
        first = INCLUDE.search(tree.read(path))
        if first is None or f"native/{first[2]}" != header:
            found.append(f"{path}: its first include must be {header.removeprefix('native/')}")
    return found


def wordings(tree: Tree) -> list[str]:
    found = []
    for path in tree.cpp:
        folder = path.split("/")[1]
        if path.endswith(("_test.cc", "_test.h")):
            continue
        for number, line in enumerate(without_comments(tree.read(path)).split("\n"), 1):
            for folders, pattern, why in WORDINGS:
                if folder in folders and pattern.search(line):
                    found.append(f"{path}:{number}: {why}: {line.strip()}")
    return found


def imports(tree: Tree) -> list[str]:
    found = []
    for path in tree.python:
        for node in ast.walk(ast.parse(tree.read(path))):
            for name in _imported(node):
                top = name.split(".")[0]
                if top == "ray" and not MAY_IMPORT_RAY.match(path):
                    found.append(
                        f"{path}: only hoplite_ray/plugin, hoplite_ray/integrations and "
                        "serve_integration import ray"
                    )
                if path.startswith("hoplite_ray/") and top in {"serve_integration", "tests"}:
                    found.append(f"{path}: hoplite_ray stands below {top}")
                if path.startswith("serve_integration/") and name.startswith("hoplite_ray._"):
                    found.append(f"{path}: serve_integration uses public names only, not {name}")
    return found


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []
