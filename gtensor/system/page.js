// What all pages share: words, ticks, canvases, the theme. A page defines draw().
const D = JSON.parse(document.getElementById("data").textContent);
const $ = id => document.getElementById(id);
function size(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let u = 0;
  while (Math.abs(n) >= 1024 && u < 4) { n /= 1024; u++; }
  return `${u ? Number(n.toPrecision(4)) : n} ${units[u]}`;
}
const seconds = t => Math.abs(t) < 1e-3 ? `${(t * 1e6).toFixed(0)} us`
  : Math.abs(t) < 1 ? `${Number((t * 1e3).toPrecision(4))} ms` : `${Number(t.toPrecision(5))} s`;
const text = s => s.replace(/[&<>"]/g, c => `&#${c.charCodeAt(0)};`);
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
function cleared(canvas, like) { // a context in the pixels of the page, empty
  const ratio = window.devicePixelRatio || 1, g = canvas.getContext("2d");
  const w = Math.round(like.clientWidth * ratio), h = Math.round(like.clientHeight * ratio);
  if (canvas.width !== w || canvas.height !== h) { canvas.width = w; canvas.height = h; }
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, w, h);
  return g;
}
function ticks(low, high, about) {
  const raw = (high - low) / about, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(v);
  return found;
}
function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = dark ? "Light" : "Dark";
  draw();
}
$("theme").onclick = () => setTheme(document.documentElement.dataset.theme !== "dark");
function chooseTheme() { // that of the address (#theme=dark), else the system's
  const asked = new URLSearchParams(location.hash.slice(1));
  setTheme(asked.has("theme") ? asked.get("theme") === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches);
}
