"""Pages that open offline: one HTML file with its style, its scripts and its data."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any


def page(package: str, name: str, data: Any) -> bytes:
    """The file of `name`.html and `name`.js of a package, with the data as JSON.

    They share the style and the functions of `page.css` and `page.js`. Nothing in the data ends the
    script that holds it.
    """
    shared, own = files("gtensor.system"), files(package)
    script = (shared / "page.js").read_text("utf-8") + (own / f"{name}.js").read_text("utf-8")
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    html = (own / f"{name}.html").read_text("utf-8")
    for mark, part in (("@STYLE@", (shared / "page.css").read_text("utf-8")), ("@SCRIPT@", script),
                       ("@DATA@", text)):
        html = html.replace(mark, part)
    return html.encode()
