"""`__all__`, where a module has one: complete, and sorted: constants, classes, functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house.tree import Tree

MUST_EXPORT = "hoplite_ray/__init__.py"
ERRORS = "hoplite_ray/errors.py"
# Besides errors and awaitable twins, which are learned with their verbs: more than that is not
# learned by reading.
TOP_NAMES_MAX = 30


def exports(tree: Tree) -> list[str]:
    found = []
    for path in tree.package:
        module = ast.parse(tree.read(path))
        listed = _listed(module)
        if listed is not None:
            found += [f"{path}: {what}" for what in _complaints(module, listed, path)]
        elif path == MUST_EXPORT:
            found.append(f"{path}: has no __all__")
    return sorted(found)


def top_names(tree: Tree) -> list[str]:
    """The names of the package's top level are few enough to be learned."""
    listed = _listed(ast.parse(tree.read(MUST_EXPORT))) or []
    errors = _defined(ast.parse(tree.read(ERRORS)))
    twins = {f"{name}_async" for name in listed}
    count = len([name for name in listed if name not in errors and name not in twins])
    if count <= TOP_NAMES_MAX:
        return []
    return [
        f"{MUST_EXPORT}: __all__ has {count} names besides errors and twins, at most "
        f"{TOP_NAMES_MAX}: let the new ones stay in their own modules"
    ]


def _complaints(module: ast.Module, listed: list[str], path: str) -> Iterator[str]:
    if listed != sorted(set(listed), key=_order):
        yield "__all__ is not sorted, or names something twice"
    defined, imported = _defined(module), _imported(module)
    offered = defined | imported if path.endswith("__init__.py") else defined
    for name in _public(offered) - {*listed}:
        yield f"{name} is public, but not in __all__"
    if "__getattr__" not in defined:  # else resolved at first use; test_tree does it for all
        for name in {*listed} - defined - imported:
            yield f"__all__ names {name}, which is not there"


def _order(name: str) -> tuple[int, str]:
    if name.isupper():
        return 0, name
    return (1 if name[0].isupper() else 2), name


def _public(names: set[str]) -> set[str]:
    return {name for name in names if not name.startswith("_") and name != "annotations"}


def _listed(module: ast.Module) -> list[str] | None:
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            return list(ast.literal_eval(node.value))
    return None


def _is_ours(node: ast.ImportFrom) -> bool:
    return node.level > 0 or (node.module or "").startswith("hoplite_ray")


def _defined(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def _imported(module: ast.Module) -> set[str]:
    ours = [node for node in module.body if isinstance(node, ast.ImportFrom) and _is_ours(node)]
    return {alias.asname or alias.name for node in ours for alias in node.names}
