// The page of report.h, but for its data: what stands before them, and the script that draws them. The script
// puts texts of the run into text nodes only, so that no text can become part of the page; the policy in the
// head keeps the browser from asking any network.
#pragma once
#include <string_view>

namespace llmc {

inline constexpr std::string_view kReportHead = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>plumb</title>
<style>
:root {
  --page: #ffffff; --box: #f6f7f9; --text: #16191d; --faint: #5b6470; --line: #dfe3e8;
  --c0: #1763c6; --c1: #c2410c; --c2: #237a36; --c3: #8b2fa8; --c4: #0b6f83; --c5: #b3174f; --c6: #5536b5;
  --c7: #7a5a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --box: #1e2226; --text: #eceff2; --faint: #a3adb8; --line: #343a41;
    --c0: #74b0ff; --c1: #ff9d66; --c2: #6bd67f; --c3: #e199f5; --c4: #62d4e6; --c5: #fb9fc0; --c6: #b69cff;
    --c7: #f2cd4e;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 16px; max-width: 1200px; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 28px 0 8px; }
p, label { color: var(--faint); margin: 10px 0 0; }
select, input { font: inherit; color: inherit; }
nav { display: flex; flex-wrap: wrap; gap: 0 20px; }
.tiles { display: flex; flex-wrap: wrap; gap: 10px; margin-top: 12px; }
.tiles div { background: var(--box); border-radius: 8px; padding: 8px 14px; }
.tiles b { display: block; font-size: 20px; font-weight: 600; }
.tiles span { color: var(--faint); font-size: 13px; }
.charts {
  display: grid; gap: 0 28px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr));
}
.charts > :first-child { grid-column: 1 / -1; }
.plot { position: relative; }
svg { display: block; width: 100%; touch-action: pan-y; }
svg text { font-size: 12px; fill: var(--faint); }
svg .end { font-weight: 600; paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
.tip {
  position: absolute; top: 8px; pointer-events: none; background: var(--box); border: 1px solid var(--line);
  border-radius: 6px; padding: 4px 9px; font-size: 13px; white-space: nowrap; z-index: 1;
}
.tip div { display: flex; gap: 12px; justify-content: space-between; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 14px; }
td, th {
  text-align: left; vertical-align: top; padding: 3px 16px 3px 0; border-bottom: 1px solid var(--line);
}
td { overflow-wrap: anywhere; min-width: 60px; }
th { color: var(--faint); font-weight: 500; white-space: nowrap; }
pre {
  white-space: pre-wrap; overflow-wrap: anywhere; background: var(--box); border-radius: 8px;
  padding: 10px 14px; margin: 4px 0 14px;
}
summary { cursor: pointer; font-weight: 600; margin: 24px 0 8px; }
</style>
</head>
<body>
<noscript>This page draws its curves by a script of its own: allow scripts to see them.</noscript>
<main></main>
<script type="application/json" id="data">)html";

inline constexpr std::string_view kReportScript = R"html(</script>
<script>
"use strict";
const runs = JSON.parse(document.getElementById("data").textContent), one = runs.length == 1;
const main = document.querySelector("main");
const axes = { step: "step", tokens: "tokens", hours: "hours of training" };
let axis = "step";
// names of runs without the folders that all of them are in
const parts = runs[0].name.split("/").slice(0, -1);
const shared = one ? 0 : parts.findIndex((p, i) => runs.some(run => run.name.split("/")[i] != p));
for (const run of runs) run.label = run.name.split("/").slice(shared < 0 ? parts.length : shared).join("/");
const redraws = [];

// ---- small tools
function add(parent, name, text, attributes) {
  const svg = name == "svg" || parent.namespaceURI.endsWith("svg");
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  if (text !== undefined && text !== null) e.textContent = text;
  return parent.appendChild(e);
}
function short(x, digits = 4) {
  if (x === null || x === undefined || !isFinite(x)) return "n/a";
  const size = Math.abs(x), rounded = +x.toPrecision(digits);
  for (const [unit, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]])
    if (size >= unit) return +(x / (letter == "k" ? 1e3 : unit)).toPrecision(4) + letter;
  return size != 0 && size < 1e-4 ? rounded.toExponential() : String(rounded);
}
function duration(s) {
  if (s < 60) return s.toFixed(0) + " s";
  return s < 3600 ? (s / 60).toFixed(1) + " min" : (s / 3600).toFixed(1) + " h";
}
const when = t => t ? new Date(t * 1000).toLocaleString() : "";
const last = list => list.length ? list[list.length - 1] : null;
const finite = list => list.filter(x => x !== null && isFinite(x));

// ---- curves: name, color, points x and y, their range (low, high), dots at them, a label at the end
function along(run, part) {
  if (axis == "hours") return part.seconds.map(s => s / 3600);
  return axis == "tokens" ? part.step.map(s => s * run.tokensPerStep) : part.step;
}
const color = k => `var(--c${k % 8})`;
function losses() {
  const curves = [];
  runs.forEach((run, k) => {
    const p = run.points, v = run.validation, validated = finite(v.loss).length > 0;
    curves.push({ name: one ? "training" : run.label, kind: one ? "" : " training", color: color(k),
                  x: along(run, p), y: p.loss, low: p.low, high: p.high, thin: true,
                  label: one || !validated });
    if (validated)
      curves.push({ name: one ? "validation" : run.label, kind: one ? "" : " validation",
                    color: color(one ? 1 : k), x: along(run, v), y: v.loss, dots: true, label: true });
  });
  return curves;
}
const simple = (member, name) => () => runs.map((run, k) => (
  { name: one ? name : run.label, color: color(k), label: true, thin: member != "lr",
    x: along(run, run.points), y: run.points[member] }));
const entropies = () => [...new Set(runs.map(run => run.entropy).filter(e => e > 0))];

// ---- a chart
function ticks(low, high, most, log) {
  const out = [];
  if (log && high / low > 8) {
    const steps = high / low > 1e4 ? [1] : high / low > 50 ? [1, 3] : [1, 2, 5];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++)
      for (const m of steps) if (m * 10 ** e >= low && m * 10 ** e <= high) out.push(m * 10 ** e);
    return out;
  }
  const raw = (high - low) / most, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find(m => m * unit >= raw);
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) out.push(k * step);
  return out;
}
function scale(low, high, from, to, log) {
  if (log) return v => from + (to - from) * Math.log(v / low) / Math.log(high / low);
  return v => from + (to - from) * (v - low) / (high - low);
}
function path(xs, ys, X, Y) {
  let d = "", pen = "M";
  ys.forEach((y, i) => {
    const drawn = y !== null && isFinite(X(xs[i])) && isFinite(Y(y));
    if (drawn) d += pen + X(xs[i]).toFixed(1) + " " + Y(y).toFixed(1);
    pen = drawn ? "L" : "M";
  });
  return d;
}
function band(c, X, Y) {
  const up = path(c.x, c.high, X, Y), down = path([...c.x].reverse(), [...c.low].reverse(), X, Y);
  return up && down ? up + down.replace("M", "L") + "Z" : "";
}
const pen = document.createElement("canvas").getContext("2d");
pen.font = "600 12px " + getComputedStyle(document.body).fontFamily;
const widthOf = text => pen.measureText(text).width;
function fit(text, room) {
  if (widthOf(text) <= room) return text;
  while (text.length > 2 && widthOf(text + "…") > room) text = text.slice(0, -1);
  return text + "…";
}
// the texts where curves end; those at the right edge are moved apart
function endLabels(svg, labels, box) {
  const edge = labels.filter(l => l.x > box.right - 40).sort((a, b) => a.y - b.y);
  edge.forEach((l, i) => { l.y = Math.max(l.y, i ? edge[i - 1].y + 14 : box.top); });
  let limit = box.bottom;
  for (const l of edge.reverse()) {
    l.y = Math.min(l.y, limit);
    limit = l.y - 14;
  }
  for (const l of labels) {
    const y = l.y + (l.x > box.right - 40 ? 4 : -6);
    add(svg, "text", l.text, { x: l.x + 6, y, class: "end", style: "fill:" + l.color });
  }
}
function chart(parent, title, make, options = {}) {
  const section = add(parent, "section");
  add(section, "h2", title);
  const plot = add(section, "div", null, { class: "plot" });
  const svg = add(plot, "svg", null, { role: "img", "aria-label": title });
  const tip = add(plot, "div", null, { class: "tip", hidden: "" });
  const digits = options.digits || 4;
  let curves = [], X = null, box = null;
  const endOf = c => c.y.findLastIndex(y => y !== null), valueOf = c => " " + short(c.y[endOf(c)], digits);

  function ranges(width, height) {
    const ys = finite(curves.flatMap(c => c.low ? [...c.y, ...c.low] : c.y)).concat(options.lines || []);
    let low = Math.min(...ys), high = Math.max(...ys);
    const log = logarithmic.checked ? low > 0 : options.log && low > 0 && high / low > 30;
    const pad = log ? 0 : (high - low || Math.abs(high) || 1) * 0.05;
    low = log ? low / 1.05 : low >= 0 ? Math.max(0, low - pad) : low - pad;
    high = log ? high * 1.05 : high + pad;
    const widths = curves.filter(c => c.label).map(c => widthOf(c.name + valueOf(c)));
    for (const e of options.lines || []) widths.push(widthOf("entropy " + short(e, digits - 1)));
    const room = Math.min(width * 0.42, Math.max(...widths) + 10);
    box = { left: 54, right: width - room, top: 10, bottom: height - 26, room };
    const xs = finite(curves.flatMap(c => c.x)), above = xs.filter(x => x > 0);
    const logX = logarithmic.checked && above.length > 0;
    const from = logX ? Math.min(...above) : 0, to = Math.max(...xs, from + 1e-9);
    X = scale(from, to, box.left, box.right, logX);
    return { Y: scale(low, high, box.bottom, box.top, log), low, high, log, from, to, logX };
  }
  function drawAxes(r, width, height) {
    for (const t of ticks(r.low, r.high, 6, r.log)) {
      const y = r.Y(t);
      add(svg, "line", null, { x1: box.left, x2: box.right, y1: y, y2: y, stroke: "var(--line)" });
      add(svg, "text", short(t), { x: box.left - 6, y: y + 4, "text-anchor": "end" });
    }
    for (const t of ticks(r.from, r.to, Math.max(2, width / 110), r.logX))
      add(svg, "text", short(t), { x: X(t), y: height - 8, "text-anchor": "middle" });
    add(svg, "text", axes[axis], { x: width - 2, y: height - 8, "text-anchor": "end" });
  }
  function drawCurve(c, Y) {
    const ranged = c.high ? band(c, X, Y) : "";
    if (ranged) add(svg, "path", null, { d: ranged, fill: c.color, opacity: 0.13 });
    add(svg, "path", null, { d: path(c.x, c.y, X, Y), fill: "none", stroke: c.color, class: "curve",
                             "stroke-width": c.thin ? 1.2 : 2.2, "stroke-linejoin": "round" });
    if (!c.dots || c.y.length > 60) return;
    c.y.forEach((y, i) => {
      if (y !== null) add(svg, "circle", null, { cx: X(c.x[i]), cy: Y(y), r: 3, fill: c.color });
    });
  }
  function draw() {
    const width = plot.clientWidth, height = options.tall ? 380 : 240, labels = [];
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    tip.hidden = true;
    curves = make().filter(c => finite(c.y).length);
    if (!curves.length) return add(svg, "text", "nothing yet", { x: 54, y: height / 2 });
    const r = ranges(width, height);
    drawAxes(r, width, height);
    for (const e of options.lines || []) {
      add(svg, "line", null, { x1: box.left, x2: box.right, y1: r.Y(e), y2: r.Y(e), stroke: "var(--faint)",
                               "stroke-dasharray": "5 4" });
      const text = fit("entropy " + short(e, digits - 1), box.room - 10);
      labels.push({ x: box.right, y: r.Y(e), color: "var(--faint)", text });
    }
    for (const c of curves) {
      drawCurve(c, r.Y);
      const end = endOf(c), value = valueOf(c);
      const text = fit(c.name, box.room - 10 - widthOf(value)) + value;
      if (c.label) labels.push({ x: X(c.x[end]), y: r.Y(c.y[end]), color: c.color, text });
    }
    endLabels(svg, labels, box);
  }
  function nearest(c, at) {
    let best = -1;
    c.x.forEach((x, i) => {
      if (c.y[i] !== null && (best < 0 || Math.abs(X(x) - at) < Math.abs(X(c.x[best]) - at))) best = i;
    });
    return best;
  }
  // the values beside the pointer: at a point of the curve that has most of them
  function point(event) {
    svg.querySelectorAll(".cursor").forEach(e => e.remove());
    tip.hidden = true;
    if (!curves.length || event.type == "pointerleave") return;
    const densest = curves.reduce((a, b) => b.x.length > a.x.length ? b : a);
    const here = densest.x[nearest(densest, event.clientX - svg.getBoundingClientRect().left)], x = X(here);
    add(svg, "line", null, { class: "cursor", x1: x, x2: x, y1: box.top, y2: box.bottom,
                             stroke: "var(--faint)" });
    tip.replaceChildren();
    add(tip, "b", axes[axis] + " " + short(here));
    for (const c of curves) {
      const i = nearest(c, x), row = add(tip, "div");
      add(row, "span", fit(c.name, 150) + (c.kind || ""), { style: "color:" + c.color });
      add(row, "span", short(c.y[i], digits) + (c.x[i] != here ? " at " + short(c.x[i]) : ""));
    }
    tip.hidden = false;
    const right = x + 12 + tip.offsetWidth > plot.clientWidth;
    tip.style.left = Math.max(0, right ? x - 12 - tip.offsetWidth : x + 12) + "px";
  }
  for (const kind of ["pointermove", "pointerdown", "pointerleave"]) svg.addEventListener(kind, point);
  redraws.push(draw);
}

// ---- the page
function table(parent, rows, head) {
  const t = add(add(parent, "div", null, { class: "scroll" }), "table");
  for (const row of head ? [head, ...rows] : rows) {
    const tr = add(t, "tr");
    row.forEach((cell, i) => add(tr, row === head || i == 0 ? "th" : "td", cell));
  }
}
function fold(title, open) {
  const box = add(main, "details", null, open ? { open: "" } : {});
  add(box, "summary", title);
  return box;
}
// what a point of a curve stands for
function means(run) {
  const steps = run.points.step, each = last(steps) - (steps[steps.length - 2] || 0);
  return each > 1 ? `, mean of ${short(each)} steps` : "";
}
function results(run) {
  const p = run.points, v = finite(run.validation.loss);
  return { step: last(p.step) || 0, train: last(finite(p.loss)), val: last(v), speed: last(finite(p.speed)),
           best: v.length ? Math.min(...v) : null, time: last(p.seconds) || 0 };
}
function tiles(run) {
  const r = results(run), box = add(main, "div", null, { class: "tiles" });
  const tile = (name, value) => {
    const t = add(box, "div");
    add(t, "b", value);
    add(t, "span", name);
  };
  tile("of " + short(run.steps) + " steps", short(r.step));
  tile("training loss" + means(run), short(r.train, 5));
  const best = r.best < r.val ? ", best " + short(r.best, 5) : "";
  if (r.val !== null) tile("validation loss" + best, short(r.val, 5));
  if (run.entropy) tile("entropy of the source", short(run.entropy));
  tile("tokens a second", short(r.speed));
  tile("of training", duration(r.time));
  const end = last(run.events), ends = { end: "finished", stop: "stopped", error: "ended by an error" };
  add(main, "p", `${run.version}, ${end && ends[end[2]] || "last heard of"} ${when(run.time)}`);
}
const title = one ? runs[0].name : runs.length + " runs";
document.title = title + " - plumb";
add(main, "h1", title);
if (one) {
  tiles(runs[0]);
} else {
  const head = ["parameters", "steps", "tokens", "training loss", "validation", "best", "tokens/s", "time"];
  table(main, runs.map(run => {
    const r = results(run);
    return [run.label, short(run.parameters), short(r.step), short(r.step * run.tokensPerStep),
            short(r.train, 5), short(r.val, 5), short(r.best, 5), short(r.speed), duration(r.time)];
  }), ["run", ...head]);
}
const nav = add(main, "nav"), select = add(add(nav, "label", "along "), "select");
for (const key in axes) add(select, "option", axes[key], { value: key });
const logLabel = add(nav, "label"), logarithmic = add(logLabel, "input", null, { type: "checkbox" });
add(logLabel, "span", " logarithmic");
const charts = add(main, "div", null, { class: "charts" });
const each = one && means(runs[0]);  // "" for steps of their own
chart(charts, "Loss, nats a token" + (each ? "; training" + each : ""), losses,
      { tall: true, digits: 5, lines: entropies() });
chart(charts, "Gradient norm", simple("norm", "norm"), { log: true });
chart(charts, "Learning rate", simple("lr", "rate"));
chart(charts, "Tokens a second", simple("speed", "tokens/s"));
const redraw = () => redraws.forEach(draw => draw());
select.addEventListener("change", () => { axis = select.value; redraw(); });
logarithmic.addEventListener("change", redraw);
addEventListener("resize", redraw);
redraw();

const of = run => one ? "" : " of " + run.label;
for (const run of runs.filter(run => run.samples.length)) {
  const box = fold("Samples" + of(run) + ", newest first", one);
  for (const [step, text] of [...run.samples].reverse()) {
    add(box, "p", "step " + step);
    add(box, "pre", text);
  }
}
if (one) {
  const lines = runs[0].plan.split("\n").filter(l => l).map(l => l.split("|"));
  table(fold("Machine, model, data", true), lines.map(([name, ...rest]) => [name, rest.join("|")]));
  table(fold("Options", false), Object.entries(runs[0].options));
} else {
  const keys = [...new Set(runs.flatMap(run => Object.keys(run.options)))];
  const differ = keys.filter(key => new Set(runs.map(run => run.options[key])).size > 1);
  add(main, "h2", "Options that differ");
  table(main, differ.map(key => [key, ...runs.map(run => run.options[key] ?? "")]),
        ["", ...runs.map(run => run.label)]);
}
for (const run of runs)
  table(fold("Events" + of(run), false),
        [...run.events].reverse().map(([time, step, ...what]) => [when(time), "step " + step, ...what]));
</script>
</body>
</html>
)html";

}  // namespace llmc
