// -- data: columns of numbers -------------------------------------------------------------------------
function column(name, type) {
  const bytes = Uint8Array.from(atob(D.columns[name]), c => c.charCodeAt(0));
  return new type(bytes.buffer);
}
const start = column("start", Float64Array), length = column("seconds", Float64Array);
const deviceStart = column("device_start", Float64Array), deviceLength = column("device_seconds", Float64Array);
const own = column("own", Float64Array);
const [name, kind, phase, module, line, thread, stream, link, parent] =
  ["name", "kind", "phase", "module", "source", "thread", "stream", "link", "parent"].map(n => column(n, Int32Array));
const [launches, read, written, flops, blocks, bytes] =
  ["launches", "read", "written", "flops", "allocations", "allocated"].map(n => column(n, Float64Array));
const liveAt = column("live_time", Float64Array), live = column("live", Float64Array);
const N = start.length, OP = D.kinds.indexOf("op"), onGpu = D.streams.length > 0;
const partner = new Int32Array(N).fill(-1);
for (let i = 0; i < N; i++) if (link[i] >= 0) { partner[i] = link[i]; partner[link[i]] = i; }
const T = D.texts, label = i => T[name[i]] + (kind[i] === OP ? ` ${T[phase[i]]}` : "");
const time = i => onGpu && deviceLength[i] >= 0 ? deviceLength[i] : length[i];

// -- tracks: of each thread a lane for each depth, of each stream one ---------------------------------
const lanes = [], depth = new Int32Array(N), lane = new Int32Array(N);
{
  const found = new Map();
  const put = (key, title, i, from, to) => {
    if (!found.has(key)) found.set(key, { title, items: [], gpu: from === deviceStart, from, to });
    found.get(key).items.push(i);
  };
  for (let i = 0; i < N; i++) {
    depth[i] = parent[i] < 0 ? 0 : depth[parent[i]] + 1;
    put(thread[i] * 1000 + Math.min(depth[i], 60), depth[i] ? "" : `thread ${thread[i]}`, i, start, length);
  }
  for (let i = 0; i < N; i++)
    if (stream[i] >= 0 && deviceLength[i] >= 0)
      put(1e9 + stream[i], `stream ${D.streams[stream[i]]}`, i, deviceStart, deviceLength);
  for (const key of [...found.keys()].sort((a, b) => a - b)) lanes.push(found.get(key));
  for (const l of lanes) l.items.sort((a, b) => l.from[a] - l.from[b]);
}
const ROW = 20, GAP = 1, LEFT = 84, RIGHT = 12, TOP = 24;
let end = D.seconds;
for (let i = 0; i < N; i++) end = Math.max(end, start[i] + length[i], deviceStart[i] + deviceLength[i]);

// -- state and drawing ----------------------------------------------------------------------------------
let view = [0, end || 1], hover = null, chosen = -1, hits = null, drag = null, order = "time", group = "op";
const plot = $("plot"), memory = $("memory");
const width = () => Math.max(1, plot.clientWidth - LEFT - RIGHT);
const toPx = t => LEFT + (t - view[0]) / (view[1] - view[0]) * width();
const toTime = px => view[0] + (Math.min(Math.max(px, LEFT), LEFT + width()) - LEFT) / width() * (view[1] - view[0]);
const COLOURS = { forward: "#5b93d1", backward: "#d9822b", update: "#3f9b6b", phase: "#9aa3af", module: "#b9c2cf",
  range: "#a47bcb", data: "#17a2b8", communication: "#dd6d8a", graph: "#8b9b46" }; // dark text is read on all
const colour = i => COLOURS[kind[i] === OP ? T[phase[i]] : D.kinds[kind[i]]] || "#9aa3af";
function look(from, to) {
  const least = Math.max(end, 1e-6) * 1e-7, wide = Math.min(Math.max(to - from, least), end || 1);
  const low = Math.min(Math.max(from, 0), (end || 1) - wide);
  view = [low, low + wide];
  draw();
}
function first(l, t) { // the first item of a lane that ends after t; items of a lane do not overlap
  let low = 0, high = l.items.length;
  while (low < high) {
    const m = (low + high) >> 1, i = l.items[m];
    if (l.from[i] + l.to[i] <= t) low = m + 1; else high = m;
  }
  return low;
}
function draw() {
  plot.style.height = `${TOP + lanes.length * (ROW + GAP) + 6}px`;
  const g = cleared(plot, plot);
  g.font = "11px system-ui, DejaVu Sans, sans-serif";
  g.textBaseline = "middle";
  axis(g);
  lanes.forEach((l, n) => {
    const y = TOP + n * (ROW + GAP);
    g.fillStyle = css("--soft"); g.textAlign = "left"; g.fillText(l.title, 4, y + ROW / 2);
    drawLane(g, l, y);
  });
  if (chosen >= 0) arrow(g);
  if (drag && drag.select) {
    g.globalAlpha = .15; g.fillStyle = css("--accent");
    g.fillRect(Math.min(drag.x0, drag.x1), TOP, Math.abs(drag.x1 - drag.x0), plot.clientHeight); g.globalAlpha = 1;
  }
  drawMemory();
}
function fitting(g, title, room) { // the title, or as much of it as has room
  for (let n = title.length; n > 0; n--) {
    const text = n < title.length ? title.slice(0, n) + "…" : title;
    if (g.measureText(text).width <= room) return text;
  }
  return "";
}
function drawLane(g, l, y) {
  const px = width() / (view[1] - view[0]);
  let filled = -1; // up to which pixel narrow items have painted: one each is enough
  for (let k = first(l, view[0]); k < l.items.length; k++) {
    const i = l.items[k], from = l.from[i];
    if (from > view[1]) break;
    const x0 = Math.max(LEFT, LEFT + (from - view[0]) * px), x1 = Math.min(LEFT + width(), LEFT + (from + l.to[i] - view[0]) * px);
    const hit = !hits || hits[i], wide = x1 - x0;
    if (wide < 1 && Math.floor(x0) === filled && !(hits && hit)) continue;
    g.globalAlpha = hit ? 1 : .18;
    g.fillStyle = colour(i);
    g.fillRect(x0, y, Math.max(wide - (wide > 3 ? .5 : 0), 1), ROW);
    if (wide < 1) filled = Math.floor(x0);
    if (wide > 34) {
      g.fillStyle = "#20242a"; g.textAlign = "left";
      g.fillText(fitting(g, label(i), wide - 8), x0 + 4, y + ROW / 2);
    }
    if (i === chosen || hover && hover.i === i) {
      g.globalAlpha = 1; g.strokeStyle = css("--ink"); g.lineWidth = i === chosen ? 2 : 1;
      g.strokeRect(x0 + .5, y + .5, Math.max(wide - 1, 1), ROW - 1);
    }
  }
  g.globalAlpha = 1;
}
function axis(g) {
  g.textAlign = "center"; g.fillStyle = css("--soft");
  for (const t of ticks(view[0], view[1], Math.max(2, width() / 130))) {
    g.fillStyle = css("--grid"); g.fillRect(Math.round(toPx(t)), TOP - 4, 1, plot.clientHeight);
    g.fillStyle = css("--soft"); if (toPx(t) < LEFT + width() - 20) g.fillText(exact(t), toPx(t), 9);
  }
}
function exact(t) {
  const span = view[1] - view[0];
  return span < 2e-3 ? `${Number((t * 1e6).toFixed(1))} us` : span < 2 ? `${Number((t * 1e3).toFixed(3))} ms` : `${Number(t.toFixed(3))} s`;
}
function middle(i) {
  const n = lanes.findIndex(l => !l.gpu && l.items.length && thread[l.items[0]] === thread[i] && depth[l.items[0]] === depth[i]);
  return [toPx(start[i] + length[i] / 2), TOP + n * (ROW + GAP) + ROW / 2];
}
function arrow(g) { // from the chosen op to its partner
  if (partner[chosen] < 0) return;
  const [x0, y0] = middle(chosen), [x1, y1] = middle(partner[chosen]);
  g.save(); g.beginPath(); g.rect(LEFT, 0, width(), plot.clientHeight); g.clip();
  g.strokeStyle = css("--mark"); g.lineWidth = 1.5; g.beginPath(); g.moveTo(x0, y0);
  g.bezierCurveTo(x0 + (x1 - x0) / 3, TOP - 14, x0 + 2 * (x1 - x0) / 3, TOP - 14, x1, y1); g.stroke();
  g.restore();
}
function drawMemory() {
  const g = cleared(memory, memory), h = memory.clientHeight, most = live.reduce((a, b) => Math.max(a, b), 0);
  g.font = "11px system-ui, DejaVu Sans, sans-serif"; g.fillStyle = css("--soft"); g.textBaseline = "top";
  g.fillText(most ? size(most) : "no blocks", 4, 2);
  if (!most) return;
  const step = Math.max(1, Math.floor(live.length / 200000));
  g.beginPath();
  let x = LEFT, y = h, peakOf = -1, peak = 0;
  for (let k = 0; k < live.length; k += step) {
    const px = Math.floor(toPx(liveAt[k]));
    if (px < LEFT) { y = h - (h - 4) * live[k] / most; continue; }
    if (px > LEFT + width()) break;
    if (x === LEFT) g.moveTo(x, y);
    g.lineTo(px, y);
    y = h - (h - 4) * live[k] / most; g.lineTo(px, y); x = px;
  }
  if (x === LEFT) g.moveTo(LEFT, y);
  g.lineTo(LEFT + width(), y);
  g.strokeStyle = css("--accent"); g.lineWidth = 1.3; g.stroke();
}

// -- words: an op's facts, the table ----------------------------------------------------------------
const rate = (n, t) => t > 0 && n ? n / t : 0;
function prefixed(n) {
  for (const [p, s] of [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (n >= s) return `${Number((n / s).toPrecision(3))} ${p}`;
  return `${Number(n.toPrecision(3))} `;
}
const of = (n, ceiling) => ceiling ? ` (${(100 * n / ceiling).toFixed(0)} % of this machine's)` : "";
function facts(i) {
  const moved = read[i] + written[i], t = time(i), c = D.ceilings;
  return [["module", T[module[i]] || "(outside modules)"], ["line", T[line[i]] || "(unknown)"],
    ["host", seconds(length[i])], ...(deviceLength[i] >= 0 ? [["GPU", seconds(deviceLength[i])]] : []),
    ...(launches[i] ? [["launches", launches[i]]] : []),
    ...(moved ? [["read, written", `${size(read[i])}, ${size(written[i])}: ${prefixed(rate(moved, t))}B/s${of(rate(moved, t), c.bytes_per_second)}`]] : []),
    ...(flops[i] ? [["operations", `${prefixed(flops[i])}FLOP: ${prefixed(rate(flops[i], t))}FLOP/s${of(rate(flops[i], t), c.flops_per_second)}`]] : []),
    ...(blocks[i] ? [["allocated", `${size(bytes[i])} in ${blocks[i]} block${blocks[i] > 1 ? "s" : ""}`]] : [])];
}
function choose(i) {
  chosen = i;
  $("chosen").hidden = i < 0;
  if (i >= 0) {
    $("name").textContent = label(i);
    $("details").innerHTML = facts(i).map(([k, v]) => `<dt>${k}</dt><dd>${text(String(v))}</dd>`).join("");
    $("partner").hidden = partner[i] < 0;
    $("partner").textContent = partner[i] > i ? "Its backward" : "Its forward";
  }
  draw();
}
const HEADS = { name: "", calls: "calls", time: onGpu ? "GPU" : "host", share: "%", launches: "launches", moved: "moved", rate: "B/s", work: "FLOP/s", blocks: "blocks" };
const KEYS = { op: i => label(i), phase: i => T[phase[i]], module: i => T[module[i]] || "(outside modules)", line: i => T[line[i]] || "(unknown)" };
let table = [];
function gather() {
  const found = new Map(), key = KEYS[group];
  for (let i = 0; i < N; i++) {
    if (kind[i] !== OP) continue;
    const k = key(i);
    let r = found.get(k);
    if (!r) found.set(k, r = { name: k, calls: 0, time: 0, launches: 0, moved: 0, flops: 0, blocks: 0, item: i });
    r.calls++; r.time += own[i]; r.launches += launches[i]; r.moved += read[i] + written[i]; r.flops += flops[i]; r.blocks += blocks[i];
    if (time(i) > time(r.item)) r.item = i;
  }
  const all = [...found.values()].reduce((a, r) => a + r.time, 0) || 1;
  table = [...found.values()];
  for (const r of table) { r.share = 100 * r.time / all; r.rate = rate(r.moved, r.time); r.work = rate(r.flops, r.time); }
  $("heading").textContent = `${table.reduce((a, r) => a + r.calls, 0).toLocaleString("en")} ops, ${seconds(all)}`;
  tell();
}
function tell() {
  const wanted = $("search").value.toLowerCase();
  table.sort((a, b) => order === "name" ? (a.name < b.name ? -1 : 1) : b[order] - a[order]);
  $("heads").innerHTML = Object.entries(HEADS).map(([k, h]) => `<th class="${k === "name" ? "" : "n"}"${
    k === order ? ' aria-sort="descending"' : ""}><button type="button" data-key="${k}">${h || group}</button></th>`).join("");
  const kept = table.filter(r => r.name.toLowerCase().includes(wanted)).slice(0, 200);
  $("rows").innerHTML = kept.map(r => `<tr data-item="${r.item}"><td class="name">${text(r.name)}</td><td class="n">${
    r.calls.toLocaleString("en")}</td><td class="n">${seconds(r.time)}</td><td class="n">${r.share.toFixed(1)}</td><td class="n">${
    r.launches || "-"}</td><td class="n">${r.moved ? size(r.moved) : "-"}</td><td class="n">${r.rate ? prefixed(r.rate) : "-"}</td><td class="n">${
    r.work ? prefixed(r.work) : "-"}</td><td class="n">${r.blocks || "-"}</td></tr>`).join("")
    || '<tr><td class="soft" colspan="9">nothing was recorded, or found</td></tr>';
}
function find() {
  const wanted = $("search").value.toLowerCase();
  if (!wanted) { hits = null; $("hits").textContent = ""; tell(); draw(); return; }
  const match = T.map(t => t.toLowerCase().includes(wanted));
  hits = new Uint8Array(N);
  let count = 0;
  for (let i = 0; i < N; i++) if (match[name[i]] || match[module[i]] || match[line[i]] || label(i).toLowerCase().includes(wanted)) { hits[i] = 1; count++; }
  $("hits").textContent = `${count.toLocaleString("en")} found`;
  tell(); draw();
}

// -- pointer and keys ---------------------------------------------------------------------------------
const at = e => { const r = plot.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
function under(px, py) {
  const l = lanes[Math.floor((py - TOP) / (ROW + GAP))];
  if (!l || px < LEFT) return null;
  const t = toTime(px), slack = (view[1] - view[0]) / width();
  for (let k = first(l, t - slack); k < l.items.length && l.from[l.items[k]] <= t + slack; k++)
    return { i: l.items[k] };
  return null;
}
function tip(px, py) {
  const box = $("tip");
  if (!hover) { box.style.display = "none"; return; }
  box.innerHTML = `<b>${text(label(hover.i))}</b><table>${facts(hover.i).map(([k, v]) =>
    `<tr><td class="soft">${k}</td><td>${text(String(v))}</td></tr>`).join("")}</table>`;
  box.style.display = "block";
  const flip = px > plot.clientWidth / 2;
  box.style.left = flip ? "auto" : `${px + 14}px`; box.style.right = flip ? `${plot.clientWidth - px + 14}px` : "auto";
  box.style.top = `${py + 16}px`;
}
let due = 0;
const soon = job => { cancelAnimationFrame(due); due = requestAnimationFrame(job); };
plot.addEventListener("pointermove", e => soon(() => {
  const [px, py] = at(e);
  if (drag) { drag.x1 = px; drag.select = Math.abs(drag.x1 - drag.x0) > 4; }
  hover = under(px, py); draw(); tip(px, py);
}));
plot.addEventListener("pointerleave", () => soon(() => { hover = null; tip(); draw(); }));
plot.addEventListener("pointerdown", e => { plot.setPointerCapture(e.pointerId); drag = { x0: at(e)[0], x1: at(e)[0], select: false }; });
plot.addEventListener("pointerup", e => {
  const [px, py] = at(e), done = drag; drag = null;
  if (done && Math.abs(px - done.x0) > 4) look(toTime(Math.min(done.x0, px)), toTime(Math.max(done.x0, px)));
  else { const found = under(px, py); choose(found ? found.i : -1); }
});
plot.addEventListener("pointercancel", () => { drag = null; draw(); });
plot.addEventListener("dblclick", () => look(0, end));
plot.addEventListener("wheel", e => {
  e.preventDefault();
  const [from, to] = view, t = toTime(at(e)[0]);
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) { const d = (to - from) * e.deltaX / 800; look(from + d, to + d); return; }
  const factor = Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 200);
  soon(() => look(t - (t - from) * factor, t + (to - t) * factor));
}, { passive: false });
plot.addEventListener("keydown", e => {
  const [from, to] = view, step = (to - from) / 5, mid = (from + to) / 2;
  const jobs = { ArrowLeft: [from - step, to - step], ArrowRight: [from + step, to + step], "+": [(from + mid) / 2, (to + mid) / 2],
    "=": [(from + mid) / 2, (to + mid) / 2], "-": [2 * from - mid, 2 * to - mid], Escape: [0, end], 0: [0, end] };
  if (e.key in jobs) { e.preventDefault(); look(...jobs[e.key]); }
});
const zoomTo = i => look(start[i] - 2 * length[i], start[i] + 3 * length[i]);
$("out").onclick = () => look(0, end);
$("search").oninput = find;
$("group").onchange = () => { group = $("group").value; gather(); };
$("heads").onclick = e => { const b = e.target.closest("button"); if (b) { order = b.dataset.key; tell(); } };
$("rows").onclick = e => { const r = e.target.closest("tr"); if (r && r.dataset.item) { choose(Number(r.dataset.item)); zoomTo(chosen); } };
$("partner").onclick = () => { choose(partner[chosen]); zoomTo(chosen); };
$("zoom").onclick = () => zoomTo(chosen);
window.addEventListener("resize", () => soon(draw));

// -- the page -------------------------------------------------------------------------------------------
document.title = $("title").textContent = `Profile on ${D.machine.device || "?"}`;
$("subtitle").textContent = `${D.machine.name || ""}, a block of ${seconds(D.seconds)}`;
{
  const sum = a => a.reduce((x, y) => x + y, 0), busy = lanes.filter(l => l.gpu).map(l => l.items.reduce((a, i) => a + deviceLength[i], 0));
  const entries = [["ops", kind.reduce((a, k) => a + (k === OP), 0).toLocaleString("en")],
    ...(onGpu ? [["GPU busy with ops", seconds(sum(busy))], ["launches", sum(launches).toLocaleString("en")]] : []),
    ["blocks allocated", sum(blocks).toLocaleString("en")], ["live at most", live.length ? size(live.reduce((a, b) => Math.max(a, b), 0)) : "-"]];
  $("facts").innerHTML = entries.map(([n, f]) => `<div><span>${n}</span><b>${text(String(f))}</b></div>`).join("");
  const there = new Set(); for (let i = 0; i < N; i++) there.add(kind[i] === OP ? T[phase[i]] : D.kinds[kind[i]]);
  $("keys").innerHTML = Object.entries(COLOURS).filter(([n]) => there.has(n)).map(([n, c]) => `<span class="key"><i style="background:${c}"></i>${n}</span>`).join("");
}
chooseTheme();
gather();
