"""Check the built site: every link leads somewhere, and no page loads anything from elsewhere.

python docs/check_site.py docs/_build/html
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

LOADING = {"script", "img", "link", "iframe", "source"}


class Links(HTMLParser):
    """What a page links to, what it loads, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif name in ("href", "src") and value:
                (self.loaded if tag in LOADING else self.links).add(value)


@cache
def links_of(page: Path) -> Links:
    return Links(page.read_text(encoding="utf-8"))


def problems(page: Path) -> list[str]:
    """What is wrong with the links of a page."""
    found = links_of(page)
    wrong = [f"loads {link}" for link in found.loaded if urlsplit(link).scheme in ("http", "https")]
    for link in found.links | found.loaded:
        address, place = urldefrag(link)
        if urlsplit(link).scheme or link == "#":
            continue
        target = page.parent / unquote(address.partition("?")[0]) if address else page
        if not target.exists():
            wrong.append(f"links to {link}, which is not there")
        elif place and target.suffix == ".html" and unquote(place) not in links_of(target.resolve()).places:
            wrong.append(f"links to {link}, which has no such place")
    return wrong


def main() -> None:
    """Print what is wrong, and exit with status 1 if there is something."""
    site = Path(sys.argv[1]).resolve()
    pages = [page for page in sorted(site.rglob("*.html")) if "_modules" not in page.parts]  # Sphinx's own
    wrong = [f"{page.relative_to(site)} {problem}" for page in pages for problem in problems(page)]
    print(*wrong, sep="\n", end="\n" if wrong else "")
    print(f"{len(pages)} pages, {len(wrong)} problems")
    sys.exit(1 if wrong or not pages else 0)


if __name__ == "__main__":
    main()
