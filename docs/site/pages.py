"""The files of the site. It has the layout of the repository, so links lead to the same page.

MkDocs calls the functions `on_...` (https://www.mkdocs.org/dev-guide/plugins/#events).
"""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

import reference

ROOT = Path(__file__).parents[2]
SHOWN = (  # of the files in the folders
    ".md", ".png", ".svg", ".css", ".js", ".html", ".json")
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "profiling/*.md",
           "profiling/results/**/*")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation gets the pages of the reference; a page of a server's is left out."""
    config.theme.static_templates.discard("404.html")
    for section in config.nav or ():
        if isinstance(section, dict) and "Reference" in section:
            section["Reference"] = [{page.title: page.uri} for page in reference.PAGES]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The theme's files, those of the repository at their places in it, and the reference."""
    found = [file for file in files if file.src_dir != config.docs_dir]
    below = [path for pattern in ("docs/**/*", *OUTSIDE) for path in sorted(ROOT.glob(pattern))]
    found += [File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir,
                   config.use_directory_urls)
              for path in below if path.suffix in SHOWN or path.name == "LICENSE"]
    found += [File.generated(config, uri, content=text) for uri, text in reference.pages()]
    return Files(found)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """The table of all ops is wide, and the navigation beside it has no other page.

    What is folded is Markdown, too, as in the repository.
    """
    if page.file.src_uri == "docs/ops.md":
        page.meta["hide"] = ["navigation"]
    return markdown.replace("<details>", "<details markdown>")
