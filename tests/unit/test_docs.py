"""The documentation as a site: it builds without a warning, and has every public name."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hoplite_ray
from hoplite_ray import serve, worlds

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(60)  # the first test has the site built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path) -> None:
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs).with_suffix(".html")) for page in docs.rglob("*.md")}
    pages = {page.replace("README", "index") for page in pages}  # as MkDocs names them
    assert pages <= {str(page.relative_to(site)) for page in site.rglob("*.html")}
    contents = (site / "index.html").read_text()
    records = (site / "internals/decisions/index.html").read_text()  # they are listed there
    for page in pages - {"index.html"}:
        folder, _, name = page.rpartition("/")
        is_record = folder == "internals/decisions" and name != "index.html"
        assert f'href="{name if is_record else page}"' in (records if is_record else contents), page


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    text = (site / "reference/python-api.html").read_text()
    described = {
        found.rpartition(".")[2] for found in re.findall(r'id="(hoplite_ray[\w.]+)"', text)
    }
    assert {*hoplite_ray.__all__, *worlds.__all__, *serve.__all__} <= described


def test_headings_of_docstrings_begin_lines(site: Path) -> None:
    text = (site / "reference/python-api.html").read_text()
    assert "<br><b>Raises</b>: " in text
    assert not re.search(r"\n(Returns|Raises|Cost):", text)
