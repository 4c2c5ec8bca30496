"""What a program asks of functions that it names: calls that their signatures refuse."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Set
from typing import Any

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def refused_calls(tree: ast.AST, names: Mapping[str, Any], ours: Set[str]) -> Iterator[str]:
    """Find what a module's code asks of the packages `ours` in vain: attributes and calls.

    `names` is what the module has. Names that a function binds itself are left out: what they are
    shows only when it runs.
    """
    yield from _refused(tree, names, ours, frozenset())


def _refused(
    node: ast.AST, names: Mapping[str, Any], ours: Set[str], bound: frozenset[str]
) -> Iterator[str]:
    if isinstance(node, _Function | _Comprehension):
        bound |= _bound_in(node)
    if isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute):
            _, missing = _resolved(node, names, ours, bound)
            if missing:
                yield f"line {node.lineno}: {missing}"
        elif why := _why_refused(node, names, ours, bound):
            yield f"line {node.lineno}: {ast.unparse(node.func)}: {why}"
    for child in ast.iter_child_nodes(node):
        yield from _refused(child, names, ours, bound)


def _bound_in(function: ast.AST) -> frozenset[str]:
    nodes = list(ast.walk(function))
    stored = {
        each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }
    arguments = {each.arg for each in nodes if isinstance(each, ast.arg)}
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for each in nodes
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }
    defined = {
        each.name
        for each in nodes
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and each is not function
    }
    caught = {each.name for each in nodes if isinstance(each, ast.ExceptHandler) and each.name}
    return frozenset(stored | arguments | imported | defined | caught)


def _resolved(
    node: ast.expr, names: Mapping[str, Any], ours: Set[str], bound: frozenset[str]
) -> tuple[Any, str | None]:
    """What a dotted name stands for, None where that shows only later; and what a module lacks."""
    if isinstance(node, ast.Name):
        return (None if node.id in bound else names.get(node.id)), None
    if not isinstance(node, ast.Attribute):
        return None, None
    owner, _ = _resolved(node.value, names, ours, bound)
    is_ours = inspect.ismodule(owner) and owner.__name__.partition(".")[0] in ours
    if is_ours and isinstance(node.ctx, ast.Load) and not hasattr(owner, node.attr):
        return None, f"{owner.__name__} has no {node.attr}"
    if inspect.ismodule(owner) or inspect.isclass(owner):
        return getattr(owner, node.attr, None), None
    return None, None


def _why_refused(
    call: ast.Call, names: Mapping[str, Any], ours: Set[str], bound: frozenset[str]
) -> str | None:
    called, _ = _resolved(call.func, names, ours, bound)
    is_method = isinstance(call.func, ast.Attribute) and inspect.isclass(
        _resolved(call.func.value, names, ours, bound)[0]
    )
    if is_method and not inspect.ismethod(called):
        return None  # a function of a class, whose self shows only later
    is_known = inspect.isroutine(called) or inspect.isclass(called)
    if not is_known or (getattr(called, "__module__", "") or "").partition(".")[0] not in ours:
        return None
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # of the native module, or an enum
        return None
    keywords = {each.arg: None for each in call.keywords if each.arg is not None}
    is_whole = len(keywords) == len(call.keywords) and not any(
        isinstance(each, ast.Starred) for each in call.args
    )
    positional = [None for each in call.args if not isinstance(each, ast.Starred)]
    try:
        if is_whole:
            signature.bind(*positional, **keywords)
        else:
            signature.bind_partial(**keywords)
    except TypeError as error:
        return str(error)
    return None
