"""What mkdocs needs besides the pages: those above this folder, and the rows of CSV files to which pages lead."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import fill
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md", "SECURITY.md": "security.md"}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; links in them, which begin at the top of the repository, lead to pages of the site."""
    for source, page in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=_translate(text, "")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to pages above the folder of the site to their copies in it, and add all rows of tables."""
    folder = Path(page.file.abs_src_path).parent if page.file.abs_src_path else ROOT / "docs"
    if page.file.src_uri not in PAGES.values():
        markdown = _translate(markdown, posixpath.join("docs", posixpath.dirname(page.file.src_uri)))
    return re.sub(r"^CSV: (.*)$", lambda line: _show_tables(line[1], folder), markdown, flags=re.M)


def _show_tables(links: str, folder: Path) -> str:
    """Return the tables of CSV files to which links lead, each folded below its name."""
    parts = []
    for name, path in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", links):
        table = fill.to_markdown(fill.read(folder / path)).replace("\n", "\n    ")
        parts.append(f'??? quote "{name}.csv"\n\n    [Download]({path})\n\n    {table}\n')
    return "\n".join(parts)


def _translate(text: str, folder: str) -> str:
    """Return a text of the repository's ``folder`` with links for the site; those to other files become plain text."""

    def lead(link: re.Match[str]) -> str:
        target, mark, anchor = link["target"].partition("#")
        path = posixpath.normpath(posixpath.join(folder, target))
        if "://" in target or not target:
            return link[0]
        if path in PAGES:
            path = f"docs/{PAGES[path]}"
        elif not path.startswith("docs/"):
            return link["text"]
        return f"[{link['text']}]({posixpath.relpath(path, folder or 'docs')}{mark}{anchor})"

    return re.sub(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)", lead, text)
