"""Paths to what is in a value: "layers.3.weight", or a tuple of keys."""

from __future__ import annotations

from typing import Any

from hoplite_ray.errors import InvalidArgumentError
from hoplite_ray.values.trees.named import NAMED
from hoplite_ray.values.trees.tree import DICTS, Branch, Node

_KEYS_SHOWN = 5


class PathFinder:
    """Finds what paths lead to in one value's tree; the keys of a container are read once."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        self._children: dict[int, dict[Any, Node]] = {}  # by the identity of a container

    def find(self, path: Any) -> Node:
        """Return the container, the leaf's number, or None that a path leads to.

        Args:    path: a str whose dots stand between keys, fields and positions, where a key may
                 have dots itself; a tuple of them, each as it is; or one key that is no str. The
                 empty str and the empty tuple are the whole value.
        Raises:  InvalidArgumentError naming the path and what there is.
        """
        found: list[Node] = []
        if isinstance(path, tuple):
            found = self._find_keys(path)
        elif isinstance(path, str):
            found = [self._tree] if path == "" else self._find_text(self._tree, path)
        else:
            found = self._find_keys((path,))
        if not found:
            raise InvalidArgumentError(self._explain(path))
        return found[0]

    def _find_keys(self, keys: tuple[Any, ...]) -> list[Node]:
        """Return a list of what the keys lead to; it is empty if they lead nowhere."""
        node = self._tree
        for key in keys:
            children = self._read(node)
            if not _is_hashable(key) or key not in children:
                return []
            node = children[key]
        return [node]

    def _find_text(self, node: Node, text: str) -> list[Node]:
        children = self._read(node)
        end = len(text)
        while end > 0:  # the longest key first: state dicts have names with dots
            head, rest = text[:end], text[end + 1 :]
            for key in (head, int(head) if head.isascii() and head.isdigit() else head):
                if key not in children:
                    continue
                found = self._find_text(children[key], rest) if end < len(text) else [children[key]]
                if found:
                    return found
            end = text.rfind(".", 0, end)
        return []

    def _read(self, node: Node) -> dict[Any, Node]:
        if not isinstance(node, Branch):
            return {}
        known = self._children.get(id(node))
        if known is None:
            has_keys = node.kind in DICTS or node.kind in NAMED
            keys: Any = node.keys if has_keys else range(len(node.children))
            known = self._children[id(node)] = dict(zip(keys, node.children, strict=True))
        return known

    def _explain(self, path: Any) -> str:
        if not isinstance(self._tree, Branch):
            return f"the value has no part {path!r}: it is one leaf; give an index as part"
        node, keys = self._tree, tuple(path) if isinstance(path, tuple) else ()
        for key in keys:
            child = self._read(node).get(key) if _is_hashable(key) else None
            if not isinstance(child, Branch):
                break
            node = child
        names = [repr(key) for key in self._read(node)]
        more = f" and {len(names) - _KEYS_SHOWN} more" if len(names) > _KEYS_SHOWN else ""
        there = ", ".join(names[:_KEYS_SHOWN]) + more
        return f"the value has no part {path!r}; there is {there or 'nothing in it'}"


def _is_hashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True
