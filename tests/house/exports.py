"""`__all__`, where a module has one: complete, and sorted: constants, classes, functions."""

from __future__ import annotations

import ast

from tests.house.tree import Tree

MUST_EXPORT = "hoplite_ray/__init__.py"


def exports(tree: Tree) -> list[str]:
    found = []
    for path in tree.package:
        module = ast.parse(tree.read(path))
        listed = _listed(module)
        if listed is None:
            if path == MUST_EXPORT:
                found.append(f"{path}: has no __all__")
            continue
        if listed != sorted(set(listed), key=_order):
            found.append(f"{path}: __all__ is not sorted, or names something twice")
        bound = set(_bound(module, imports_too=path.endswith("__init__.py")))
        lazy = (
            "__getattr__" in bound
        )  # its names are resolved at first use; test_tree imports them all
        found += [
            f"{path}: {name} is public, but not in __all__" for name in _public(bound) - {*listed}
        ]
        if not lazy:
            found += [
                f"{path}: __all__ names {name}, which is not there" for name in {*listed} - bound
            ]
    return sorted(found)


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


def _bound(module: ast.Module, *, imports_too: bool) -> list[str]:
    names: list[str] = []
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
        elif imports_too and isinstance(node, ast.ImportFrom) and _is_ours(node):
            names += [alias.asname or alias.name for alias in node.names]
    return names
