"""What ProperDocs needs besides the pages: those above this folder, long pages in parts, and the rows of CSV files."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import fill
from markdown.extensions.toc import slugify
from properdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
IN_PARTS = {
    "CHANGELOG.md": 3,
    **{f"docs/{name}.md": 2 for name in ("architecture", "artifacts", "claims", "deployment")},
    **{f"docs/{name}.md": 2 for name in ("measurement", "privacy", "testing")},
    **{f"docs/{name}.md": 3 for name in ("claims-details", "results")},
}
"""Pages too high for a screen, and the level of the headings that begin a page of the site."""
_HEADING = re.compile(r"^(#+) (.*)$")

Parts = dict[str, str]


def on_files(files: Any, config: Any) -> Any:
    """Add the pages above this folder, and replace long ones by their parts."""
    split = {source: _split(source, level) for source, level in IN_PARTS.items()}
    places = {source: _find_anchors(parts) for source, parts in split.items()}
    for source in {**PAGES, **IN_PARTS}:
        page = _page_of(source)
        if old := files.get_file_from_path(page):
            files.remove(old)
        for part, text in split.get(source, {page: (ROOT / source).read_text(encoding="utf-8")}).items():
            content = _translate(_show_tables(text, source), source, part, places)
            files.append(File.generated(config, part, content=content))
    config.extra["places"] = places
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links to pages above this folder and to parts to where they are, and add all rows of tables."""
    uri = page.file.src_uri
    if page.file.abs_src_path is None:
        return markdown
    return _translate(_show_tables(markdown, f"docs/{uri}"), f"docs/{uri}", uri, config.extra["places"])


def _page_of(source: str) -> str:
    """Return the page of the site of a file of the repository."""
    return PAGES.get(source, source.removeprefix("docs/"))


def _split(source: str, level: int) -> Parts:
    """Return the parts of a page by their paths: the first one begins the page, and leads to the others."""
    page, parts, links = _page_of(source), dict[str, list[str]](), []
    name, is_code = page, False
    first, *_ = lines = (ROOT / source).read_text(encoding="utf-8").splitlines()
    for line in lines:
        is_code ^= line.startswith("```")
        heading = None if is_code else _HEADING.match(line)
        if heading and 2 <= len(heading[1]) <= level:
            name = f"{page.removesuffix('.md')}/{slugify(heading[2], '-')}.md"
            title = re.sub(r"[\[\]]", "", heading[2])
            links.append(f"{'    ' * (len(heading[1]) - 2)}- [{title}](/{name})")
            parts[name] = [f"# {title}", "", f"Part of [{first[2:]}](/{page})."]
        else:
            parts.setdefault(name, []).append(line[level - 1 :] if heading and name != page else line)
    parts[page] += ["", *links, ""]
    return {part: "\n".join(shown) for part, shown in parts.items()}


def _find_anchors(parts: Parts) -> Parts:
    """Return the part that has each anchor."""
    return {
        slugify(heading[2], "-"): part
        for part, text in parts.items()
        for line in text.splitlines()
        if (heading := _HEADING.match(line))
    }


def _show_tables(markdown: str, source: str) -> str:
    """Add, where a line leads to CSV files, their tables, each folded below its name."""
    folder = (ROOT / source).parent

    def show(line: re.Match[str]) -> str:
        parts = []
        for name, path in re.findall(r"\[([^\]]+)\]\(([^)]+)\)", line[1]):
            table = fill.to_markdown(fill.read(folder / path)).replace("\n", "\n    ")
            parts.append(f'??? quote "{name}.csv"\n\n    [Download]({path})\n\n    {table}\n')
        return "\n".join(parts)

    return re.sub(r"^CSV: (.*)$", show, markdown, flags=re.M)


def _translate(text: str, source: str, page: str, places: dict[str, Parts]) -> str:
    """Return a text of a file with links for a page of the site; those to files that it lacks become plain text."""
    folder = f"docs/{posixpath.dirname(page)}"

    def lead(link: re.Match[str]) -> str:
        target, mark, anchor = link["target"].partition("#")
        if "://" in target:
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target)) if target else source
        if target.startswith("/"):
            path = f"docs{target}"
        elif place := places.get(path, {}).get(anchor):
            path = f"docs/{place}"
        elif path in PAGES:
            path = f"docs/{PAGES[path]}"
        elif not path.startswith("docs/"):
            return link["text"]
        return f"[{link['text']}]({posixpath.relpath(path, folder)}{mark}{anchor})"

    return re.sub(r"\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)", lead, text)
