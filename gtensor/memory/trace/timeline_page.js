const C = D.categories.length, N = D.times.length, B = D.size.length;

// -- live bytes after each event; index 0 is before the first ---------------------------------------
const byTime = new Float64Array(N + 1), byEvent = new Float64Array(N + 1);
D.times.forEach((t, k) => { byTime[k + 1] = t * 1e-6; byEvent[k + 1] = k + 1; });
const rows = D.categories.map(() => new Float64Array(N + 1)), total = new Float64Array(N + 1);
for (let b = 0; b < B; b++) {
  const row = rows[D.who[D.maker[b]][2]];
  row[D.made[b] + 1] += D.size[b];
  if (D.freed[b] >= 0) row[D.freed[b] + 1] -= D.size[b];
}
for (const row of rows) for (let k = 1; k <= N; k++) row[k] += row[k - 1];
for (const row of rows) for (let k = 0; k <= N; k++) total[k] += row[k];
let peak = 0;
for (let k = 1; k <= N; k++) if (total[k] > total[peak]) peak = k;

// -- words -----------------------------------------------------------------------------------------
const when = k => k ? `${seconds(byTime[k])}, event ${k.toLocaleString("en")}` : "the start";
const shown = D.categories.map(() => true);
const names = {
  op: w => w[0] || "(no label)",
  module: w => w[1] || "(outside modules)",
  category: w => D.categories[w[2]].name,
  source: w => w[3] || "(not recorded; wanted stacks=True)",
  holder: w => w[4].replace(/, [^,]*$/, ""), // the category stands beside it
  both: w => (w[0] || "(no label)") + (w[1] ? ` in ${w[1]}` : ""),
};

// -- visible range --------------------------------------------------------------------------------
let X = byTime, view = [0, 1], pinned = peak, hover = -1, drag = null, withReserved = false;
const limits = () => [X[0], X[N] > X[0] ? X[N] : X[0] + 1];
function look(from, to) {
  const [low, high] = limits(), least = (high - low) / Math.max(N * 50, 1e4);
  const width = Math.min(Math.max(to - from, least), high - low);
  const start = Math.min(Math.max(from, low), high - width);
  view = [start, start + width];
  draw();
}
function at(x) { // the last event at or before x
  let low = 0, high = N;
  while (low < high) { const m = (low + high + 1) >> 1; X[m] <= x ? low = m : high = m - 1; }
  return low;
}
function liveAt(k) { // blocks alive after event k (as an index of `total`)
  const found = [];
  for (let b = 0; b < B; b++)
    if (D.made[b] < k && (D.freed[b] < 0 || D.freed[b] >= k)) found.push(b);
  return found;
}
function held(k, group) {
  const found = new Map();
  for (const b of liveAt(k)) {
    const w = D.who[D.maker[b]];
    if (!shown[w[2]]) continue;
    const key = group === "block" ? b : names[group](w) + (group === "both" || group === "holder" ? "\0" + w[2] : "");
    const h = found.get(key) || { name: names[group === "block" ? "both" : group](w), size: 0,
      blocks: 0, category: w[2] };
    h.size += D.size[b]; h.blocks++;
    found.set(key, h);
  }
  return [...found.values()].sort((a, b) => b.size - a.size);
}

// -- drawing ----------------------------------------------------------------------------------------
const plot = $("plot"), map = $("map"), pads = { left: 64, right: 12, top: 22, bottom: 24 };
// Of each pixel column: the events with the most and the least bytes. Beside them, the top in view.
function columns(from, to, width) {
  const most = new Int32Array(width), least = new Int32Array(width);
  let top = 0, k = at(from);
  for (let px = 0; px < width; px++) {
    const end = from + (to - from) * (px + 1) / width;
    let high = k, low = k;
    while (k < N && X[k + 1] < end) {
      k++;
      if (value(k) > value(high)) high = k;
      if (value(k) < value(low)) low = k;
    }
    most[px] = high; least[px] = low;
    top = Math.max(top, value(high));
  }
  return { most, least, top };
}
let value = k => total[k];
function stack(g, picked, left, width, y, alpha) {
  const base = new Float64Array(width), floor = new Float64Array(width).fill(snap(y(0)));
  g.globalAlpha = alpha;
  D.categories.forEach((category, c) => {
    if (!shown[c]) return;
    g.fillStyle = category.color;
    let start = 0, top = 0, bottom = 0; // columns from `start` on that look alike are one rectangle
    for (let px = 0; px <= width; px++) {
      let t = 0, b = 0;
      if (px < width) {
        base[px] += rows[c][picked[px]];
        t = snap(y(base[px])); b = floor[px]; floor[px] = t;
      }
      if (px < width && t === top && b === bottom) continue;
      if (bottom > top) g.fillRect(left + start, top, px - start, bottom - top);
      start = px; top = t; bottom = b;
    }
  });
  g.globalAlpha = 1;
}
function snap(v) { // to a pixel of the screen, so that neighbours leave no seam
  const ratio = window.devicePixelRatio || 1;
  return Math.round(v * ratio) / ratio;
}
function byteTicks(top) {
  let unit = 1;
  while (top / unit >= 2048) unit *= 1024;
  return ticks(0, top / unit, 5).map(v => v * unit);
}
const reservedAt = k => D.reserved.reduce((a, r) => r[0] < k ? r[1] : a, 0);
function reservedTop(from, to) {
  let most = 0;
  D.reserved.forEach(([event, bytes], n) => {
    const start = X[event + 1 < 0 ? 0 : Math.min(event + 1, N)];
    const next = D.reserved[n + 1], end = next ? X[Math.min(next[0] + 1, N)] : Infinity;
    if (start <= to && end >= from) most = Math.max(most, bytes);
  });
  return most;
}
// The curves are painted once per view, onto layers; what follows the pointer, over them.
const curves = document.createElement("canvas"), overview = document.createElement("canvas");
let scale = null, overviewOf = "";
function draw() {
  drawCurves(cleared(curves, plot), plot.clientWidth, plot.clientHeight);
  const wanted = [X === byTime, shown, map.clientWidth].join();
  if (wanted !== overviewOf) drawOverview(cleared(overview, map), map.clientWidth, map.clientHeight);
  overviewOf = wanted;
  paint();
}
function layered(canvas, layer) {
  const g = cleared(canvas, canvas);
  g.drawImage(layer, 0, 0, canvas.clientWidth, canvas.clientHeight);
  return g;
}
function drawCurves(g, w, h) {
  const { left, right, top, bottom } = pads;
  const width = Math.max(1, Math.floor(w - left - right)), height = h - top - bottom;
  const [from, to] = view, picked = columns(from, to, width);
  const most = Math.max(picked.top, withReserved ? reservedTop(from, to) : 0) * 1.08 || 1;
  const x = v => left + (v - from) / (to - from) * width, y = v => top + height * (1 - v / most);
  g.font = "12px system-ui, DejaVu Sans, sans-serif";
  g.textBaseline = "middle"; g.textAlign = "right";
  for (const v of byteTicks(most)) {
    g.fillStyle = css("--grid"); g.fillRect(left, Math.round(y(v)), width, 1);
    g.fillStyle = css("--soft"); g.fillText(size(v), left - 8, y(v));
  }
  stack(g, picked.most, left, width, y, .42);
  stack(g, picked.least, left, width, y, 1);
  g.textBaseline = "top"; g.textAlign = "center";
  const span = to - from;
  for (const v of ticks(from, to, Math.max(2, width / 130))) {
    if (x(v) > left + width - 24) continue;
    g.fillStyle = css("--soft"); g.fillRect(Math.round(x(v)), top + height, 1, 4);
    g.fillText(X === byTime ? (span < 1e-3 ? `${Number((v * 1e6).toFixed(2))} us` : span < 2
      ? `${Number((v * 1e3).toFixed(3))} ms` : `${Number(v.toFixed(3))} s`)
      : v.toLocaleString("en"), x(v), top + height + 7);
  }
  if (X === byEvent) { g.textAlign = "right"; g.fillText("event", left + width, top + height + 7); }
  if (withReserved) drawReserved(g, x, y, left, width);
  drawMarks(g, x, left, width, top, height);
  scale = { x, y, from, to, left, width, top, height };
}
function paint() {
  const { x, y, from, to, left, width, top, height } = scale, g = layered(plot, curves);
  const moment = (k, colour, dash, label) => {
    if (X[k] < from || X[k] > to) return;
    const px = x(X[k]);
    g.strokeStyle = g.fillStyle = colour; g.lineWidth = 1; g.setLineDash(dash);
    g.beginPath(); g.moveTo(px, top); g.lineTo(px, top + height); g.stroke(); g.setLineDash([]);
    g.beginPath(); g.arc(px, y(value(k)), 3.5, 0, 7); g.fill();
    if (label) {
      const flip = px > left + width - 130;
      g.textAlign = flip ? "right" : "left"; g.textBaseline = "bottom";
      g.font = "600 12px system-ui, DejaVu Sans, sans-serif";
      g.fillText(label, px + (flip ? -7 : 7), Math.max(y(value(k)) - 4, top + 13));
    }
  };
  moment(peak, css("--ink"), [2, 3], `peak ${size(value(peak))}`);
  if (pinned !== peak) moment(pinned, css("--accent"), [], "");
  if (hover >= 0) moment(hover, css("--soft"), [], "");
  if (drag && drag.select) {
    g.fillStyle = css("--accent"); g.globalAlpha = .15;
    g.fillRect(Math.min(drag.x0, drag.x1), top, Math.abs(drag.x1 - drag.x0), height);
    g.globalAlpha = 1;
  }
  drawMap();
}
function drawReserved(g, x, y, left, width) {
  g.save(); g.beginPath(); g.rect(left, 0, width, 1e4); g.clip();
  g.strokeStyle = css("--ink"); g.lineWidth = 1.3; g.setLineDash([6, 4]); g.beginPath();
  D.reserved.forEach(([event, bytes], n) => {
    const px = n ? x(X[Math.min(event + 1, N)]) : left;
    if (n) g.lineTo(px, y(D.reserved[n - 1][1])); else g.moveTo(px, y(bytes));
    g.lineTo(px, y(bytes));
  });
  g.lineTo(left + width, y(D.reserved[D.reserved.length - 1][1]));
  g.stroke(); g.restore();
}
const place = mark => X === byTime ? mark.time * 1e-6 : mark.event;
function drawMarks(g, x, left, width, top, height) {
  const open = {}, named = [];  // a narrow band that follows another at once is named with it
  g.textBaseline = "middle"; g.textAlign = "center";
  g.font = "12px system-ui, DejaVu Sans, sans-serif";
  for (const mark of D.marks) {
    const px = Math.min(Math.max(x(place(mark)), left), left + width);
    if (mark.name === "out of memory") {
      if (x(place(mark)) !== px) continue;
      g.fillStyle = css("--mark"); g.fillRect(px, 4, 1.5, top + height - 4);
      g.textAlign = px > left + width / 2 ? "right" : "left";
      g.fillText(`out of memory: ${size(mark.nbytes)} wanted`, px + (g.textAlign === "left" ? 6 : -6),
        top + 4);
      g.textAlign = "center";
    } else if (mark.begins) open[mark.name] = px;
    else if (mark.name in open) {
      const start = open[mark.name], w = px - start;
      delete open[mark.name];
      if (w <= 0) continue;
      g.fillStyle = css("--soft"); g.globalAlpha = .22;
      g.fillRect(start, 3, Math.max(w - 1, .5), 15); g.globalAlpha = 1;
      const fits = (name, from) => g.measureText(name).width < px - from - 6;
      const before = named[named.length - 1];
      if (fits(mark.name, start)) named.push([start, px, mark.name]);
      else if (before && start - before[1] < 8 && fits(`${before[2]}, ${mark.name}`, before[0]))
        named[named.length - 1] = [before[0], px, `${before[2]}, ${mark.name}`];
    }
  }
  g.fillStyle = css("--ink");
  for (const [from, to, name] of named) g.fillText(name, (from + to) / 2, 11);
}
function drawOverview(g, w, h) {
  const left = pads.left, width = Math.max(1, Math.floor(w - left - pads.right));
  const [low, high] = limits(), picked = columns(low, high, width);
  stack(g, picked.most, left, width, v => h - (h - 4) * v / (picked.top || 1), .55);
}
function drawMap() {
  const g = layered(map, overview), w = map.clientWidth, h = map.clientHeight, [low, high] = limits();
  const left = pads.left, width = Math.max(1, Math.floor(w - left - pads.right));
  const x = v => left + (v - low) / (high - low) * width;
  g.fillStyle = css("--ground"); g.globalAlpha = .72;
  g.fillRect(left, 0, x(view[0]) - left, h); g.fillRect(x(view[1]), 0, left + width - x(view[1]), h);
  g.globalAlpha = 1; g.strokeStyle = css("--soft"); g.lineWidth = 1;
  g.strokeRect(x(view[0]) + .5, .5, Math.max(2, x(view[1]) - x(view[0]) - 1), h - 1);
}

// -- descriptions ---------------------------------------------------------------------------------
function tell() {
  const group = $("group").value, all = value(pinned), found = held(pinned, group);
  $("moment").textContent = `${size(all)} live at ${pinned === peak ? "the peak, " : ""}${when(pinned)}`;
  $("peak").hidden = pinned === peak;
  $("named").textContent = $("group").selectedOptions[0].textContent;
  const most = found.length ? found[0].size : 1, kept = found.slice(0, 100);
  $("rows").innerHTML = kept.map(f => {
    const category = D.categories[f.category];
    const mixed = group === "op" || group === "module" || group === "source";
    const colour = mixed ? "var(--soft)" : category.color;
    const note = mixed || f.name.startsWith(category.name) ? ""
      : group === "category" ? category.doc : category.name;
    return `<tr><td class="name">${text(f.name)} <span class="soft">${text(note)}</span></td><td class="share"><i style="width:${
      100 * f.size / most}%;background:${colour}"></i></td><td class="n">${size(f.size)}</td>
      <td class="n">${(100 * f.size / (all || 1)).toFixed(1)} %</td><td class="n">${
      f.blocks.toLocaleString("en")}</td></tr>`;
  }).join("") + (found.length > kept.length ? `<tr><td class="soft" colspan="5">${
    (found.length - kept.length).toLocaleString("en")} smaller ones</td></tr>` : "")
    + (found.length ? "" : '<tr><td class="soft" colspan="5">nothing was live</td></tr>');
}
function tip(px, py) {
  const box = $("tip");
  if (hover < 0) { box.style.display = "none"; return; }
  const line = (name, n, colour) => `<tr><td>${colour ? `<i style="display:inline-block;width:9px;
    height:9px;border-radius:2px;background:${colour}"></i> ` : ""}${text(name)}</td>
    <td class="n">${size(n)}</td></tr>`;
  const parts = D.categories.map((c, n) => [c.name, rows[n][hover], c.color, n])
    .filter(p => p[1] && shown[p[3]]).reverse();
  const largest = held(hover, "block").slice(0, 4);
  box.innerHTML = `<b>${size(value(hover))}</b> <span class="soft">${when(hover)}</span><table>${
    parts.map(p => line(p[0], p[1], p[2])).join("")}${withReserved
      ? line("(reserved)", reservedAt(hover)) : ""}</table><hr><span class="soft">largest blocks</span>
    <table>${largest.map(f => line(f.name, f.size, D.categories[f.category].color)).join("")}</table>`;
  box.style.display = "block";
  const flip = px > plot.clientWidth / 2;
  box.style.left = flip ? "auto" : `${px + 14}px`;
  box.style.right = flip ? `${plot.clientWidth - px + 14}px` : "auto";
  box.style.top = `${Math.max(0, Math.min(py, plot.clientHeight - box.offsetHeight - 4))}px`;
}

// -- pointer and keys -----------------------------------------------------------------------------
const inPlot = e => { const r = plot.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
const inside = px => Math.min(Math.max(px, pads.left), plot.clientWidth - pads.right);
const toX = px => view[0] + (inside(px) - pads.left) / (plot.clientWidth - pads.left - pads.right)
  * (view[1] - view[0]);
let due = 0;
const soon = job => { cancelAnimationFrame(due); due = requestAnimationFrame(job); };
plot.addEventListener("pointermove", e => soon(() => {
  const [px, py] = inPlot(e);
  if (drag) { drag.x1 = inside(px); drag.select = Math.abs(drag.x1 - drag.x0) > 4; }
  hover = at(toX(px));
  paint(); tip(px, py);
}));
plot.addEventListener("pointerleave", () => soon(() => { hover = -1; tip(); paint(); }));
plot.addEventListener("pointerdown", e => {
  plot.setPointerCapture(e.pointerId);
  const [px] = inPlot(e);
  drag = { x0: inside(px), x1: inside(px), select: false };
});
plot.addEventListener("pointerup", e => {
  const done = drag; drag = null;
  if (done && done.select) look(toX(Math.min(done.x0, done.x1)), toX(Math.max(done.x0, done.x1)));
  else { pinned = at(toX(inPlot(e)[0])); tell(); paint(); }
});
plot.addEventListener("pointercancel", () => { drag = null; paint(); });
plot.addEventListener("dblclick", () => look(...limits()));
plot.addEventListener("wheel", e => {
  e.preventDefault();
  const [from, to] = view, width = to - from;
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) {
    look(from + width * e.deltaX / 800, to + width * e.deltaX / 800); return;
  }
  const x = toX(inPlot(e)[0]), factor = Math.exp(Math.max(-60, Math.min(60, e.deltaY)) / 200);
  soon(() => look(x - (x - from) * factor, x + (to - x) * factor));
}, { passive: false });
plot.addEventListener("keydown", e => {
  const [from, to] = view, step = (to - from) / 5, middle = (from + to) / 2;
  const jobs = { ArrowLeft: [from - step, to - step], ArrowRight: [from + step, to + step],
    "+": [(from + middle) / 2, (to + middle) / 2], "=": [(from + middle) / 2, (to + middle) / 2],
    "-": [2 * from - middle, 2 * to - middle], Escape: limits(), "0": limits() };
  if (e.key in jobs) { e.preventDefault(); look(...jobs[e.key]); }
});
const mapTo = e => {
  const r = map.getBoundingClientRect(), [low, high] = limits();
  const x = low + (e.clientX - r.left - pads.left) / (r.width - pads.left - pads.right) * (high - low);
  soon(() => look(x - (view[1] - view[0]) / 2, x + (view[1] - view[0]) / 2));
};
map.addEventListener("pointerdown", e => { map.setPointerCapture(e.pointerId); mapTo(e); });
map.addEventListener("pointermove", e => { if (e.buttons) mapTo(e); });
$("out").onclick = () => look(...limits());
$("peak").onclick = () => { pinned = peak; tell(); paint(); };
$("group").onchange = tell;
$("axis").onclick = () => {
  const k = [at(view[0]), at(view[1])];
  const whole = view[0] <= limits()[0] && view[1] >= limits()[1];
  X = X === byTime ? byEvent : byTime;
  $("axis").textContent = X === byTime ? "By event" : "By time";
  whole ? look(...limits()) : look(X[k[0]], X[k[1]]);
};
$("reserved").onclick = () => setReserved(!withReserved);
function setReserved(on) {
  withReserved = on;
  $("reserved").setAttribute("aria-pressed", on);
  draw();
}

// -- the page ---------------------------------------------------------------------------------------
function choose() { // categories were switched on or off: the curve is that of the rest
  if (shown.every(Boolean)) value = k => total[k];
  else {
    const sum = new Float64Array(N + 1);
    rows.forEach((row, c) => { if (shown[c]) for (let k = 0; k <= N; k++) sum[k] += row[k]; });
    value = k => sum[k];
  }
  const atPeak = pinned === peak;
  peak = 0;
  for (let k = 1; k <= N; k++) if (value(k) > value(peak)) peak = k;
  if (atPeak) pinned = peak;
  tell(); draw();
}
$("keys").replaceChildren(...D.categories.map((category, c) => {
  const key = document.createElement("button");
  key.className = "key"; key.type = "button"; key.title = category.doc;
  key.setAttribute("aria-pressed", "true");
  key.innerHTML = `<i style="background:${category.color}"></i>${text(category.name)}`;
  key.onclick = () => {
    shown[c] = !shown[c]; key.setAttribute("aria-pressed", shown[c]); choose();
  };
  return key;
}));
const highest = D.reserved.reduce((a, r) => Math.max(a, r[1]), 0);
$("title").textContent = document.title = `Memory of ${D.device}`;
$("subtitle").textContent = `${N.toLocaleString("en")} events in ${seconds(byTime[N] - byTime[0])}`;
$("facts").innerHTML = [["live at the peak", size(total[peak])],
  ["reserved at most", highest ? size(highest) : "-"],
  ["reserved / live, of the peaks", highest ? (highest / total[peak]).toFixed(3) : "-"],
  ["fragmentation at the end", D.fragmentation],
  ["blocks made", D.made.reduce((a, m) => a + (m >= 0), 0).toLocaleString("en")]]
  .map(([name, fact]) => `<div><span>${name}</span><b>${text(fact)}</b></div>`).join("");
plot.setAttribute("aria-label", `Live bytes over time by category; the peak is ${size(total[peak])} at ${
  when(peak)}. The table below says who held it.`);
window.addEventListener("resize", () => soon(draw));
look(...limits());
setReserved(highest > 0 && highest <= 2 * total[peak]);
chooseTheme();
tell();
