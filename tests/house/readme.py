"""The pages keep their promises: two set-up commands, code that parses, paths, decisions."""

from __future__ import annotations

import ast
import re
from string import ascii_lowercase

from tests.house.tree import Tree

SET_UP = ["make demo", "make test"]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.S | re.M)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
RECORD = re.compile(r"docs/internals/decisions/(\d{4})([a-z]?)-[a-z0-9-]+\.md")
RECORD_HEADING = re.compile(r"# (\d+)([a-z]?)\. \S")
NAMED_DECISIONS = re.compile(r"\bdecisions? ((?:\d+[a-z]?(?:, | and )?)+)\b")
IN_BACKTICKS = re.compile(r"`([\w./-]+)`")
TEST_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FOLDERS = re.compile(r"(docs|native|hoplite_ray|tests|examples|benchmarks|serve_integration|\.ci)/")


def set_up(tree: Tree) -> list[str]:
    """The section 'Set up' consists of exactly the two commands, and the Makefile knows them."""
    text = tree.read("README.md")
    section = re.search(r"^## Set up\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    if section is None:
        return ["README.md: has no section 'Set up'"]
    blocks = [body for language, body in BLOCK.findall(section[1]) if language == "sh"]
    commands = [
        line.split("#")[0].strip() for body in blocks for line in body.splitlines() if line.strip()
    ]
    found = []
    if commands != SET_UP:
        found.append(f"README.md: the set-up commands are {commands}, not {SET_UP}")
    targets = set(re.findall(r"^([\w-]+):", tree.read("Makefile"), re.M))
    mentioned = re.findall(r"\bmake ([\w-]+)", "".join(body for _, body in BLOCK.findall(text)))
    unknown = [target for target in mentioned if target not in targets]
    return found + [f"README.md: the Makefile has no target {target}" for target in unknown]


def code(tree: Tree) -> list[str]:
    found = []
    for page in ["README.md", *tree.matching(r"docs/.*\.md")]:
        for language, body in BLOCK.findall(tree.read(page)):
            if language != "python":
                continue
            try:
                compile(body, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as error:
                found.append(f"{page}: a code block does not parse: {error}")
    return found


def paths(tree: Tree) -> list[str]:
    found = []
    for page in ["README.md", *tree.matching(r"docs/.*\.md")]:
        text = tree.read(page)
        folder = page.rpartition("/")[0]
        linked = [f"{folder}/{target}" if folder else target for target in LINK.findall(text)]
        named = [name for name in IN_BACKTICKS.findall(BLOCK.sub("", text)) if FOLDERS.match(name)]
        gone = [target for target in linked if not tree.exists(target)]
        gone += [name for name in named if not _exists_as_file_or_unit(tree, name)]
        gone += [
            f"{file}::{test}"
            for file, test in TEST_NAMED.findall(text)
            if not tree.exists(file) or f"def {test}(" not in tree.read(file)
        ]
        found += [f"{page}: names {name}, which does not exist" for name in gone]
    return found


def decisions(tree: Tree) -> list[str]:
    """Records are 1 to N, or lettered parts of one, and every citation is of one that exists."""
    found = []
    records: list[tuple[int, str]] = []
    for path in tree.matching(r"docs/internals/decisions/\d.*"):
        name, heading = RECORD.fullmatch(path), RECORD_HEADING.match(tree.read(path))
        if name is None or heading is None or _record(name) != _record(heading):
            found.append(f"{path}: its name and its heading are of no decision, or of two")
        else:
            records.append(_record(name))
    numbers = [number for number, letter in records if not letter]
    if numbers != list(range(1, len(numbers) + 1)):
        found.append(f"docs/internals/decisions: the decisions are numbered {numbers}")
    for number in sorted({number for number, _ in records}):
        letters = "".join(letter for each, letter in records if each == number)
        if number not in numbers or letters != ascii_lowercase[: len(letters)]:
            found.append(f"docs/internals/decisions: the parts of {number} are '{letters}'")
    known = {f"{number}{letter}" for number, letter in records}
    for path in [*tree.cpp, *tree.python, *tree.matching(r"(docs/.*|README)\.md")]:
        for named in NAMED_DECISIONS.findall(tree.read(path)):
            unknown = [each for each in re.findall(r"\d+[a-z]?", named) if each not in known]
            found += [f"{path}: there is no design decision {each}" for each in unknown]
    return found


def _record(match: re.Match[str]) -> tuple[int, str]:
    return int(match[1]), match[2]


def _exists_as_file_or_unit(tree: Tree, name: str) -> bool:
    """`native/plan/broadcast/pull` stands for pull.h and pull.cc."""
    return any(tree.exists(name.rstrip("/") + ending) for ending in ("", ".h", ".cc", ".py"))
