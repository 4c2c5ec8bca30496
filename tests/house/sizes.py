"""House-style 6: files of 400 lines (fail at 600), headers 150, functions 70; 100 columns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.house.tree import Tree, without_comments

FILE_LINES_GOOD = 400
FILE_LINES_MAX = 600
HEADER_LINES_MAX = 150
EXAMPLE_LINES_MAX = 80
FUNCTION_LINES_MAX = 70
LINE_COLUMNS_MAX = 100

NO_FUNCTION = re.compile(
    r"^\s*(template\s*<.*?>\s*)?(typedef\s+)?(namespace|class|struct|enum|union|extern)\b", re.S
)


def _build_files(tree: Tree) -> list[str]:
    return tree.matching(r"\.ci/.*|Makefile")


def long_files(tree: Tree, paths: list[str], limit: int) -> list[str]:
    counted = [(len(tree.read(path).splitlines()), path) for path in paths]
    return [f"{path}: {lines} lines (at most {limit})" for lines, path in counted if lines > limit]


def files(tree: Tree) -> list[str]:
    headers = [path for path in tree.cpp if path.endswith(".h") and not path.endswith("_test.h")]
    examples = tree.matching(r"examples/[^/]*\.py")
    found = long_files(tree, tree.cpp + tree.python + _build_files(tree), FILE_LINES_MAX)
    found += long_files(tree, headers, HEADER_LINES_MAX)
    found += long_files(tree, examples, EXAMPLE_LINES_MAX)
    return found


def lines(tree: Tree) -> list[str]:
    found = []
    for path in tree.cpp + tree.python + _build_files(tree):
        for number, line in enumerate(tree.read(path).splitlines(), 1):
            if len(line) > LINE_COLUMNS_MAX:
                found.append(f"{path}:{number}: {len(line)} columns (at most {LINE_COLUMNS_MAX})")
    return found


def functions(tree: Tree) -> list[str]:
    found = []
    for path in tree.cpp:
        found += _too_long(path, cpp_functions(tree.read(path)))
    for path in tree.python:
        found += _too_long(path, python_functions(tree.read(path)))
    return found


def _too_long(path: str, spans: Iterator[tuple[int, int]]) -> list[str]:
    return [
        f"{path}:{first}: a function of {last - first + 1} lines (at most {FUNCTION_LINES_MAX})"
        for first, last in spans
        if last - first + 1 > FUNCTION_LINES_MAX
    ]


def python_functions(code: str) -> Iterator[tuple[int, int]]:
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.lineno, node.end_lineno


def cpp_functions(code: str) -> Iterator[tuple[int, int]]:
    """First and last line of each outermost function body, found by its braces.

    A heuristic: it knows namespaces, types and member initialisers, and needs no compiler.
    """
    code = re.sub(r"^\s*#[^\n]*", "", without_comments(code), flags=re.M)
    head_at = 0  # where the text before the next brace starts
    function_at = -1  # where the current function's head starts; -1 outside
    depth = function_depth = 0
    for match in re.finditer(r"[{};]", code):
        mark, at = match.group(), match.start()
        if mark == "{":
            head = code[head_at:at]
            if function_at < 0 and "(" in head and not NO_FUNCTION.match(head):
                function_at, function_depth = at - len(head.lstrip()), depth
            depth += 1
        elif mark == "}":
            depth -= 1
            if function_at >= 0 and depth == function_depth:
                if re.match(r"\s*[,{]", code[at + 1 :]):  # a member initialiser: `: a_{x}, b_{y} {`
                    head_at, function_at = function_at, -1
                    continue
                yield code[:function_at].count("\n") + 1, code[:at].count("\n") + 1
                function_at = -1
        head_at = at + 1
