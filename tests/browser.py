"""A headless Chromium for the tests of pages, driven by Chrome's DevTools protocol over pipes.

The browser is that of the npm package `@sparticuz/chromium` (70 MB, unpacked once into
`~/.cache/gtensor/browser`); Node, which decompresses it, is npm's own. The protocol:
https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

VERSION = "147.0.0"
_UNPACK = """
const fs = require("fs"), zlib = require("zlib"), [from, to] = process.argv.slice(1);
fs.writeFileSync(to, zlib.brotliDecompressSync(fs.readFileSync(from)));
"""
_FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/cache</cachedir>
</fontconfig>
"""
_FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
          "--disable-dev-shm-usage", "--disable-background-networking", "--no-zygote",
          "--single-process", "--disable-webgl", "--font-render-hinting=none",
          "--remote-debugging-pipe", "--allow-file-access-from-files",
          "--in-process-gpu")

_SPOILT = """(() => {
  const found = [], seen = [], clips = new Map();
  const clipping = (element) => {  // the boxes that clip what is in an element
    if (!element) return [];
    if (!clips.has(element)) {
      const around = clipping(element.parentElement), kind = getComputedStyle(element).overflowX;
      clips.set(element, kind === "visible" || element === document.body ? around :
                [[kind, element.getBoundingClientRect()], ...around]);
    }
    return clips.get(element);
  };
  const covers = (element) => !/^rgba.*, 0(\\.\\d+)?\\)$/.test(
    getComputedStyle(element).backgroundColor);
  document.head.insertAdjacentHTML(  // elementsFromPoint() tells of these
    "beforeend", "<style>* { pointer-events: auto !important; }</style>");
  const apart = (a, b, nodes) => {  // whether a background lies between two texts
    const stack = document.elementsFromPoint(
      (Math.max(a.left, b.left) + Math.min(a.right, b.right)) / 2,
      (Math.max(a.top, b.top) + Math.min(a.bottom, b.bottom)) / 2);
    const [upper, lower] = nodes.map((node) => stack.indexOf(node.parentElement)).sort(
      (one, other) => one - other);
    return upper < 0 ? lower >= 0 : stack.slice(upper, lower).some(covers);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, range = document.createRange(), parent = node.parentElement;
    if (!node.data.trim() || parent.closest("script, style") ||
        !parent.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    range.selectNodeContents(node);
    for (const {left, right, top, bottom} of range.getClientRects()) {
      const box = {left, right, top, bottom};
      let scrolls = false;
      for (const [kind, clip] of clipping(parent)) {
        scrolls ||= kind === "auto" || kind === "scroll";
        if (!scrolls && box.right > clip.right + 1 && box.left < clip.right && box.right > 0)
          found.push([node.data, "cut"]);
        box.left = Math.max(box.left, clip.left); box.right = Math.min(box.right, clip.right);
        box.top = Math.max(box.top, clip.top); box.bottom = Math.min(box.bottom, clip.bottom);
      }
      if (box.right > 0 && box.right > box.left + 1 && box.bottom > box.top) seen.push([node, box]);
    }
  }
  seen.sort(([, a], [, b]) => a.top - b.top);
  seen.forEach(([node, a], i) => {
    if (a.right > innerWidth + 1) found.push([node.data, "cut"]);
    for (let k = i + 1; k < seen.length && seen[k][1].top < a.bottom - 3; k++) {
      const [other, b] = seen[k];  // 1 and 3: what letters leave of their boxes
      if (other !== node && a.left < b.right - 1 && b.left < a.right - 1 && b.bottom > a.top + 3 &&
          !apart(a, b, [node, other])) found.push([node.data, other.data]);
    }
  });
  document.head.lastElementChild.remove();
  return found;
})()"""

_FAINT = """(() => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const over = (colour, alpha = 1) => {
    pixel.globalAlpha = alpha; pixel.fillStyle = colour; pixel.fillRect(0, 0, 1, 1);
  };
  const luminance = () => {
    const [r, g, b] = [...pixel.getImageData(0, 0, 1, 1).data].map((v) => (v /= 255) <= 0.03928 ?
      v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const behind = (element) => element ?
    [...behind(element.parentElement), getComputedStyle(element).backgroundColor] : ["white"];
  const contrast = (colours, drawing, ink, alpha) => {
    for (const colour of colours) over(colour);
    pixel.globalAlpha = 1;
    if (drawing) pixel.drawImage(...drawing, 1, 1, 0, 0, 1, 1);
    const below = luminance();
    over(ink, alpha);
    const both = [below, luminance()];
    return Math.max(...both) / Math.min(...both);
  };
  const opacity = (element) => element ?
    getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const found = [], known = new Map();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const text = walk.currentNode.data, parent = walk.currentNode.parentElement;
    if (!text.trim() || parent.closest("script, style") ||
        !parent.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
    const colours = [behind(parent), null, getComputedStyle(parent).color, opacity(parent)];
    const key = JSON.stringify(colours);
    if (!known.has(key)) known.set(key, contrast(...colours));
    if (known.get(key) < 4.5) found.push([text, known.get(key)]);
  }
  const kind = CanvasRenderingContext2D.prototype, write = kind.fillText;
  kind.fillText = function (text, x, y) {  // what a drawing has below the first letter
    x -= this.measureText(text).width * ({center: 0.5, right: 1}[this.textAlign] || 0);
    const at = this.getTransform().transformPoint(new DOMPoint(x, y));
    const ratio = contrast(behind(document.querySelector(".plot")), [this.canvas, at.x, at.y],
                           this.fillStyle, this.globalAlpha);
    if (text && ratio < 4.5) found.push([text, ratio]);
    write.apply(this, arguments);
  };
  if (typeof draw === "function") draw();
  kind.fillText = write;
  return found;
})()"""


def chromium() -> Path:
    """The folder of the browser, made at the first call by whichever process comes first."""
    base = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gtensor" / "browser"
    folder = base / VERSION
    if not folder.exists():
        base.mkdir(parents=True, exist_ok=True)
        with open(base / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _fetch(base, folder)
    return folder


def _fetch(base: Path, folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=base) as name:
        place = Path(name)
        subprocess.run(["npm", "pack", "--silent", f"@sparticuz/chromium@{VERSION}"], cwd=place,
                       check=True, capture_output=True, timeout=900)
        (archive,) = place.glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")
        made = place / "made"
        made.mkdir()
        for what in ("chromium", "al2023.tar", "fonts.tar"):
            subprocess.run(["node", "-e", _UNPACK, place / "package/bin" / f"{what}.br",
                            made / what], check=True, timeout=900)
            if what.endswith(".tar"):
                with tarfile.open(made / what) as tar:
                    tar.extractall(made, filter="data")
                (made / what).unlink()
        (made / "fonts.conf").write_text(_FONTS.format(folder=folder))
        (made / "chromium").chmod(0o755)
        os.replace(made, folder)


class Page:
    """A page in the browser; `errors` are what its console and its scripts complained about."""

    def __init__(self, sent: Any, received: Any) -> None:
        self._sent, self._received = sent, received
        self._number = 0
        self._read = b""
        self._session: str | None = None
        self.errors: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A method of the protocol, and its result; events that come meanwhile are read."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        self._sent.write(json.dumps(message).encode() + b"\0")
        self._sent.flush()
        while True:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                result: dict[str, Any] = found["result"]
                return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = self._received.read1(1 << 16)
            if not more:
                raise RuntimeError("the browser has ended")
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        params = found.get("params", {})
        if found.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif found.get("method") == "Runtime.consoleAPICalled" and params["type"] in (
                "error", "warning", "assert"):
            self.errors.append(str([arg.get("value") for arg in params["args"]]))
        elif found.get("method") == "Log.entryAdded" and params["entry"]["level"] in (
                "error", "warning"):
            self.errors.append(params["entry"]["text"])
        return found

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file, until its scripts have run, for a reader who prefers dark pages or light.
        """
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target,
                                  flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.call("Storage.clearDataForOrigin", origin="file://", storageTypes="local_storage")
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.run("new Promise(r => document.readyState === 'complete' ? r() : "
                 "addEventListener('load', () => r()))")

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True,
                          returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description"))
        return found["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """An event of the mouse at a point of the window: "Pressed", "Moved", "Wheel" ..."""
        self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        """Press and release the left button."""
        for kind in ("Pressed", "Released"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def picture(self, path: Path) -> None:
        """Write a screenshot (PNG)."""
        import base64

        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))


def spoilt_texts(page: Page) -> list[list[str]]:
    """The texts of a page that lie over another one, with it, or are cut at the window's edge."""
    found: list[list[str]] = page.run(_SPOILT)
    return found


def faint_texts(page: Page) -> list[tuple[str, float]]:
    """The texts, also of drawings, with a contrast of less than 4.5 with what is below them (WCAG
    2.2, https://www.w3.org/TR/WCAG22/#contrast-minimum); each with its contrast."""
    return [(text, contrast) for text, contrast in page.run(_FAINT)]


@contextmanager
def browser() -> Iterator[Page]:
    """A new browser with one page; it ends with the block."""
    folder = chromium()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        to_browser, our_end = os.pipe(), os.pipe()
        environment = {**os.environ, "HOME": home, "TMPDIR": home, "FONTCONFIG_PATH": str(folder),
                       "LD_LIBRARY_PATH": f"{folder}/lib:{os.environ.get('LD_LIBRARY_PATH', '')}"}

        def place_pipes() -> None:  # the protocol's descriptors are 3 and 4
            read, write = os.dup(to_browser[0]), os.dup(our_end[1])
            high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (read, write)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        process = subprocess.Popen(
            [folder / "chromium", *_FLAGS, f"--user-data-dir={home}/profile"], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=place_pipes, close_fds=False)
        os.close(to_browser[0])
        os.close(our_end[1])
        with os.fdopen(to_browser[1], "wb") as sent, os.fdopen(our_end[0], "rb") as received:
            page = Page(sent, received)
            try:
                yield page
            finally:
                with suppress(OSError, RuntimeError):
                    page._session = None
                    page.call("Browser.close")
                try:
                    process.wait(600)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
