"""No file without a reader: every source has a target, every header, module and page a user."""

from __future__ import annotations

import ast
import json
import re

from tests.house.tree import Tree

COMPILE_COMMANDS = "build/editable/compile_commands.json"
ENTRY_POINT = re.compile(r"^if __name__ == ", re.M)


def cpp_sources(tree: Tree) -> list[str]:
    """Sources that no target compiles, judged by the build itself."""
    compiled = {entry["file"] for entry in json.loads(tree.read(COMPILE_COMMANDS))}
    sources = [path for path in tree.cpp if path.endswith(".cc")]
    return [
        f"{path}: no target compiles it"
        for path in sources
        if str(tree.root / path) not in compiled
    ]


def headers(tree: Tree) -> list[str]:
    """Headers that only their own source and test include."""
    found = []
    for path in tree.cpp:
        if not path.endswith(".h"):
            continue
        own = re.compile(re.escape(path.removesuffix(".h")) + r"(_test)?\.cc")
        if path.endswith("_test.h"):
            own = re.compile("")  # shared by tests, that of its own name included
        line = f'#include "{path.removeprefix("native/")}"'
        if not any(line in tree.read(user) for user in tree.cpp if not own.fullmatch(user)):
            found.append(f"{path}: nobody but its own source includes it")
    return found


def python_modules(tree: Tree) -> list[str]:
    """Modules of the package that no module imports and that are no program."""
    used = {name for path in tree.python for name in imported(tree, path)}
    settings = tree.read("pyproject.toml") if tree.exists("pyproject.toml") else ""
    found = []
    for path in tree.package:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        runs = ENTRY_POINT.search(tree.read(path)) or module in settings
        if module != "hoplite_ray" and module not in used and not runs:
            found.append(f"{path}: nobody imports it")
    return found


def imported(tree: Tree, path: str) -> set[str]:
    """Every module that `path` may mean by its imports; a use of a module uses its package."""
    package = path.split("/")[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(tree.read(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(
                re.findall(r"\bhoplite_ray(?:\.\w+)+", node.value)
            )  # `python -m`, importlib
    return names | {".".join(name.split(".")[:end]) for name in names for end in range(1, 5)}


def pages(tree: Tree) -> list[str]:
    """Pages that neither the README nor another page names."""
    texts = {path: tree.read(path) for path in tree.matching(r"(docs/.*|README)\.md")}
    return [
        f"{page}: no other page names it"
        for page in texts
        if page != "README.md"
        and not any(page.split("/")[-1] in text for path, text in texts.items() if path != page)
    ]
