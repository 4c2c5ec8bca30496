"""writing.md: what people read is short sentences whose subjects are roles.

Old files have complaints left. `prose.json` says how many each may have: a file without an entry
may have none, and an entry is lowered when its file gets better, so that the table only shrinks.
`python -m tests.house.prose` prints every complaint; with a path, those of that file or folder;
with --keep, it writes the table anew, and refuses to raise a number.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from tests.house.tree import ROOT, Tree, repository

DEBT = "tests/house/prose.json"
PAGE_COLUMNS_MAX = 100
PARAGRAPH_WORDS_MAX = 120
SENTENCE_WORDS_MAX = 28  # of nine sentences of ten
SENTENCES_MIN = 10  # fewer say nothing about a tenth

# Text that is written for people: pages, and what README and its neighbours are.
PAGES = r"(docs/.*|README|CONTRIBUTING|CHANGELOG|SECURITY)\.md"
CODE = r"(native|hoplite_ray|serve_integration|examples|benchmarks)/.*\.(h|cc|py)"
PERSONS = re.compile(
    r"\b(who|whom|whoever|whomever|nobody|somebody|everybody|anybody|he|him|his|she|her)\b",
    re.I,
)
OF_PEOPLE = re.compile(
    r"\b(people|persons?|users?|developers?|operators?|maintainers?|readers?|authors?) who\b", re.I
)
OPENERS = re.compile(r"(Who|Whom|Whoever|What|Whatever|Which|Those|As|Of|Or)\b(?!-)")
HISTORY = re.compile(
    r"\b(?:instead of|rather than|now|before|was|were|took) (?:it )?(?:only )?"
    r"\d[\d.,]*\s?(?:x|%|ms|us|s|GB|MiB)\b"
    r"|\b\d[\d.,]*\s?(?:x|%|ms|us|s|GB|MiB) (?:before|instead of|as before|until now)\b"
    r"|\bat (?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7}\b"
    r"|\bload \d"
)
FENCE = re.compile(r"^([ \t]*)(```|~~~).*?^\1\2[ \t]*$", re.S | re.M)
SENTENCE_END = re.compile(r"(?<=[.!?])[)\"*_]*\s+(?=[A-Z`\"*\[(])")
NO_PROSE = re.compile(r"\s*(\||#|<|!\[|!!!|\?\?\?|:::|\[[^\]]+\]:|---|===)")
ITEM = re.compile(r"\s*([*+-]|\d+\.)\s+")


def pages(tree: Tree) -> list[str]:
    return _over(tree, ((path, list(_of_page(tree.read(path)))) for path in tree.matching(PAGES)))


def comments(tree: Tree) -> list[str]:
    paths = tree.matching(
        r"(native|hoplite_ray|serve_integration|examples|benchmarks)/.*\.(h|cc|py)"
    )
    return _over(tree, ((path, list(_of_code(path, tree.read(path)))) for path in paths))


def _over(tree: Tree, complaints: Iterator[tuple[str, list[str]]]) -> list[str]:
    """All complaints of files with more than the table allows, and entries that say too many."""
    allowed: dict[str, int] = json.loads(tree.read(DEBT)) if tree.exists(DEBT) else {}
    found = []
    for path, said in complaints:
        limit = allowed.get(path, 0)
        if len(said) > limit:
            found += [f"{path}: {each}" for each in said]
            found += [f"{path}: {len(said)} complaints, {limit} allowed"] if limit else []
        elif len(said) < limit:
            found.append(f"{path}: lower its number in {DEBT} from {limit} to {len(said)}")
    return found


def _of_page(text: str) -> Iterator[str]:
    prose = FENCE.sub(lambda match: "\n" * match.group().count("\n"), text)
    for number, line in enumerate(prose.split("\n"), 1):
        longest = max((len(word) for word in line.split()), default=0)
        if len(line) > PAGE_COLUMNS_MAX and not NO_PROSE.match(line) and longest < 60:
            yield f"{number}: {len(line)} columns (at most {PAGE_COLUMNS_MAX})"
    lengths = []
    for number, paragraph in _paragraphs(prose):
        words = len(paragraph.split())
        if words > PARAGRAPH_WORDS_MAX:
            yield f"{number}: a paragraph of {words} words (at most {PARAGRAPH_WORDS_MAX})"
        for sentence in SENTENCE_END.split(paragraph):
            lengths.append(len(sentence.split()))
            yield from _wording(number, sentence)
    if len(lengths) >= SENTENCES_MIN:
        long = sorted(lengths)[int(len(lengths) * 0.9)]
        if long > SENTENCE_WORDS_MAX:
            yield f"a tenth of its sentences has {long} words (at most {SENTENCE_WORDS_MAX})"


def _paragraphs(prose: str) -> Iterator[tuple[int, str]]:
    """Each paragraph or item of a list as one line, with the number of its first line."""
    kept: list[str] = []
    first = 0
    for number, line in enumerate(chain(prose.split("\n"), [""]), 1):
        ends = not line.strip() or NO_PROSE.match(line) or ITEM.match(line)
        if ends and kept:
            yield first, " ".join(kept)
            kept = []
        if line.strip() and not NO_PROSE.match(line):
            first = first if kept else number
            kept.append(ITEM.sub("", line).strip() if ITEM.match(line) else line.strip())


def _wording(number: int, sentence: str) -> Iterator[str]:
    plain = OF_PEOPLE.sub("x", re.sub(r"`[^`]*`|\"[^\"]*\"", "x", sentence))
    if match := PERSONS.search(plain):
        yield f"{number}: {match[0]!r} in: {_short(sentence)}"
    if OPENERS.match(plain) and not sentence.rstrip().endswith("?"):
        yield f"{number}: begins so: {_short(sentence)}"


def _short(sentence: str) -> str:
    return sentence if len(sentence) <= 70 else f"{sentence[:67]}..."


def _of_code(path: str, text: str) -> Iterator[str]:
    blocks = _cpp_comments(text) if path.endswith((".h", ".cc")) else _python_comments(text)
    for number, block in blocks:
        for sentence in SENTENCE_END.split(block):
            yield from _wording(number, sentence)
            if match := HISTORY.search(sentence):
                yield f"{number}: history ({match[0]!r}) in: {_short(sentence)}"


def _cpp_comments(text: str) -> Iterator[tuple[int, str]]:
    kept: list[str] = []
    first = 0
    for number, line in enumerate(chain(text.split("\n"), [""]), 1):
        match = re.match(r"(.*?)(?<!:)//+ ?(.*)", line)
        alone = match is not None and not match[1].strip()
        if kept and not alone:
            yield first, " ".join(kept)
            kept = []
        if match and alone:
            first = first if kept else number
            kept.append(match[2])
        elif match and match[1].count('"') % 2 == 0:
            yield number, match[2]


def _python_comments(text: str) -> Iterator[tuple[int, str]]:
    kept: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        number, column = token.start
        alone = not token.line[:column].strip()
        if kept and not (alone and number == last + 1):
            yield first, " ".join(kept)
            kept = []
        first = first if kept else number
        last = number
        kept.append(token.string.lstrip("#").strip())
        if not alone:
            yield first, " ".join(kept)
            kept = []
    if kept:
        yield first, " ".join(kept)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if docstring := ast.get_docstring(node):
                line = node.body[0].lineno
                for offset, paragraph in _paragraphs(docstring):
                    yield line + offset - 1, paragraph


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)


def main(arguments: list[str]) -> int:
    tree = repository()
    found = {path: list(_of_page(tree.read(path))) for path in tree.matching(PAGES)}
    found |= {path: list(_of_code(path, tree.read(path))) for path in tree.matching(CODE)}
    counts = {path: len(said) for path, said in sorted(found.items()) if said}
    if arguments == ["--keep"]:
        table = Path(ROOT / DEBT)
        allowed = json.loads(table.read_text()) if table.exists() else None
        if allowed is not None:
            worse = [path for path, count in counts.items() if count > allowed.get(path, 0)]
            if worse:
                _say(f"not written, for these have more than before: {', '.join(worse)}")
                return 1
        table.write_text(json.dumps(counts, indent=0) + "\n")
        return 0
    for path, said in found.items():
        if not arguments or any(path.startswith(each) for each in arguments):
            _say("".join(f"{path}:{each}\n" for each in said), end="")
    _say(f"{sum(counts.values())} complaints in {len(counts)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
