"""Every link of the documentation has a target, and every page is in the site's menu."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/atoll/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def prose(path: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S)


def anchors(path: Path) -> Iterator[str]:
    """Anchors of the headings of a page, as GitHub and site generators make them."""
    for title in re.findall(r"^#+ +(.+)$", prose(path), re.M):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):  # brackets in code are no links
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in set(anchors(target)), link


def test_the_menu_has_every_page_once() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    pages = [page for section in menu for items in section.values() for page in items]
    ours = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").glob("*.md")}
    assert len(pages) == len(set(pages))
    assert {Path(page) for page in pages} - ours == {Path("decisions/README.md"), Path("results/README.md")}
    assert ours <= {Path(page) for page in pages}
