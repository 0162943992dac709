// report.html and who draws it: see run_log.h.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "llmc/host/base/error.h"
#include "llmc/host/base/text.h"
#include "llmc/host/files/file_io.h"
#include "llmc/host/files/json.h"
#include "llmc/host/log/run_log.h"
#include "llmc/host/options/table.h"

namespace llmc {

// ---- what the page shows ------------------------------------------------------------------------

namespace {

constexpr size_t kMostPoints = 1000, kMostValidations = 500, kMostSamples = 50, kMostEvents = 200;
constexpr size_t kMostTextBytes = 2000;  // of a sample, an event's text, an option
constexpr size_t kMostOptions = 100, kMostPlanBytes = 8000;

std::string cut(std::string text, size_t most) {
    if (text.size() <= most) { return text; }
    text.resize(most);
    text.resize(most - utf8_unfinished(text));  // a character stays whole
    return text + " ...";
}

// six digits are enough for a curve; null = unknown
JsonValue number(double x) { return std::isfinite(x) ? JsonValue(to_digits(x, 6)) : JsonValue(); }

// what a line has of this name, if it is of the right kind
double number_of(const JsonValue& line, const char* name) {
    const JsonValue* value = json_find(&line, name);
    return value != nullptr && value->is_number() ? value->get<double>() : NAN;
}
int64_t count_of(const JsonValue& line, const char* name) {
    const double x = number_of(line, name);
    return x >= 0 && x < 9e18 ? (int64_t)x : 0;
}
std::string text_of(const JsonValue& line, const char* name, size_t most = kMostTextBytes) {
    const auto* value = json_get<std::string>(line, name);
    return value == nullptr ? "" : cut(*value, most);
}

// every second one goes, but not the last
void halve(std::vector<std::string>* rows) {
    std::vector<std::string> kept;
    for (size_t i = (rows->size() + 1) % 2; i < rows->size(); i += 2) { kept.push_back((*rows)[i]); }
    *rows = std::move(kept);
}

void add_row(std::vector<std::string>* rows, const JsonValue& row, size_t most) {
    rows->push_back(json_line(row));
    if (rows->size() > most) { halve(rows); }
}

JsonValue all_of(const std::vector<std::string>& rows) {
    JsonValue all = JsonValue::array();
    for (const std::string& row : rows) { all.push_back(JsonValue::parse(row)); }
    return all;
}

}  // namespace

RunHistory::RunHistory(std::string name) : name_(std::move(name)) { add_start(JsonValue::object()); }

RunHistory RunHistory::read(const std::string& path) {
    const std::string log = is_folder(path) ? path + "/log.jsonl" : path;
    const auto text = read_whole(log);
    if (!text) { throw Error(kExitBadInput, path + ": no run: there is no " + log + ". Name a run folder."); }
    RunHistory history(path);
    history.add(*text);
    throw_if(history.points_.empty() && history.events_.empty(), kExitBadInput,
             "{}: not a log of a run: found no line of a step or a start", log);
    return history;
}

void RunHistory::add(std::string_view lines) {
    for_each_log_line(lines, [&](std::string_view, const JsonValue& line) {
        if (!line.is_object()) { return; }
        if (const double time = number_of(line, "time"); time > 0) { time_ = time; }
        if (line.contains("train_loss")) {
            add_step(line);
        } else if (line.contains("val_loss")) {
            add_row(&validations_,
                    {count_of(line, "step"), number(seconds_), number(number_of(line, "val_loss"))},
                    kMostValidations);
        } else if (line.contains("event") || line.contains("line")) {
            add_event(line);
        }
    });
}

void RunHistory::add_step(const JsonValue& line) {
    const double loss = number_of(line, "train_loss"), norm = number_of(line, "grad_norm");
    const double ms = std::max(0.0, number_of(line, "ms"));
    seconds_ += ms / 1e3;
    Point p = {.step = count_of(line, "step"),
               .seconds = seconds_,
               .lr = number_of(line, "lr"),
               .ms = ms,
               .new_tokens = number_of(line, "tokens_per_s") * ms / 1e3};
    if (std::isfinite(loss) && std::isfinite(norm)) {
        p.finite = 1;
        p.loss = p.low = p.high = loss;
        p.norm = norm;
    }
    add_point(p);
    if (points_.size() > kMostPoints) { join_points(); }
}

void RunHistory::add_point(const Point& later) {
    if (points_.empty() || (points_.back().step - 1) / width_ != (later.step - 1) / width_) {
        points_.push_back(later);
        return;
    }
    Point& p = points_.back();
    p.step = later.step;
    p.seconds = later.seconds;
    p.lr = later.lr;
    p.steps += later.steps;
    p.finite += later.finite;
    p.low = std::fmin(p.low, later.low);
    p.high = std::fmax(p.high, later.high);
    p.loss += later.loss;
    p.norm += later.norm;
    p.ms += later.ms;
    p.new_tokens += later.new_tokens;
}

// points of twice as many steps
void RunHistory::join_points() {
    width_ *= 2;
    for (const Point& p : std::exchange(points_, {})) { add_point(p); }
}

void RunHistory::add_start(const JsonValue& line) {
    JsonValue start = {{"name", name_},
                       {"plan", text_of(line, "plan", kMostPlanBytes)},
                       {"steps", count_of(line, "steps")},
                       {"parameters", count_of(line, "parameters")},
                       {"entropy", number(number_of(line, "source_entropy"))}};
    std::map<std::string, std::string> texts;
    if (const auto* options = json_get<JsonValue::object_t>(line, "options")) {
        for (const auto& [key, value] : *options) {
            if (texts.size() == kMostOptions) { break; }
            const std::string text = value.is_string()         ? value.get<std::string>()
                                     : value.is_number_float() ? number(value.get<double>()).dump()
                                                               : value.dump();
            texts[cut(key, 100)] = cut(text, kMostTextBytes);
        }
    }
    start["options"] = texts;
    start_ = json_line(start);
}

void RunHistory::add_event(const JsonValue& line) {
    const int64_t step = count_of(line, "step");
    std::string kind = text_of(line, "event", 100), text = text_of(line, "text");
    if (kind == "sample") { return add_row(&samples_, {step, text}, kMostSamples); }
    if (line.contains("line")) {
        if (line.contains("version")) { add_start(line); }
        kind = kind.empty() ? "start" : kind;
        text = text_of(line, "version") + (line.contains("device") ? " on " : "") + text_of(line, "device");
    }
    const double time = number_of(line, "time");
    add_row(&events_, {std::isfinite(time) ? JsonValue(time) : JsonValue(), step, kind, text}, kMostEvents);
}

void RunHistory::thin() {
    if (points_.size() > 1) { join_points(); }
    for (auto* rows : {&validations_, &samples_, &events_}) { halve(rows); }
}

std::string RunHistory::to_json() const {
    JsonValue run = JsonValue::parse(start_), points = JsonValue::array();
    double tokens = 0, steps = 0;
    for (const Point& p : points_) {
        tokens += p.new_tokens;
        steps += (double)p.steps;
        points.push_back({p.step, number(p.seconds), number(p.loss / (double)p.finite), number(p.low),
                          number(p.high), number(p.norm / (double)p.finite), number(p.lr),
                          number(p.new_tokens / p.ms * 1e3)});
    }
    run["tokensPerStep"] = number(std::round(tokens / std::max(1.0, steps)));
    run["time"] = time_;
    run["points"] = points;
    run["validation"] = all_of(validations_);
    run["samples"] = all_of(samples_);
    run["events"] = all_of(events_);
    return json_line(run);
}

// ---- the page -----------------------------------------------------------------------------------

namespace {

// What stands before the data, and the script that draws them. It puts texts of the run into text nodes only, so that no
// text can become part of the page; the policy in the head keeps the browser from asking any network.
constexpr std::string_view kReportHead = R"html(<!DOCTYPE html>
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
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --box: #1e2226; --text: #eceff2; --faint: #a3adb8; --line: #343a41;
    --c0: #74b0ff; --c1: #ff9d66; --c2: #6bd67f; --c3: #e199f5; --c4: #62d4e6; --c5: #fb9fc0; --c6: #b69cff;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 16px; max-width: 1200px; background: var(--page); color: var(--text);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", sans-serif;
}
h1 { font-size: 22px; margin: 0 0 4px; overflow-wrap: anywhere; }
h2, summary { font-size: 16px; font-weight: 600; margin: 26px 0 8px; }
p, label { color: var(--faint); margin: 10px 20px 0 0; display: inline-block; }
select, input { font: inherit; color: inherit; }
.charts {
  display: grid; gap: 0 28px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 360px), 1fr));
}
.charts > :first-child { grid-column: 1 / -1; }
.charts > :first-child svg { height: 380px; }
.plot { position: relative; }
svg { display: block; width: 100%; height: 240px; touch-action: pan-y; }
svg text { font-size: 12px; fill: var(--faint); }
svg .end { font: 600 12px monospace; paint-order: stroke; stroke: var(--page); stroke-width: 4px; }
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
td { overflow-wrap: anywhere; min-width: 75px; }
th { color: var(--faint); font-weight: 500; white-space: nowrap; }
pre {
  white-space: pre-wrap; overflow-wrap: anywhere; margin: 4px 0 14px; padding: 8px 14px;
  background: var(--box); border-radius: 8px;
}
summary { cursor: pointer; }
</style>
</head>
<body>
<noscript>This page draws its curves by a script of its own: allow scripts to see them.</noscript>
<main></main>
<script type="application/json" id="data">)html";

constexpr std::string_view kReportScript = R"html(</script>
<script>
"use strict";
const runs = JSON.parse(document.getElementById("data").textContent), one = runs.length == 1;
const main = document.querySelector("main");
const columns = (names, rows) => Object.fromEntries(names.map((name, i) => [name, rows.map(row => row[i])]));
for (const run of runs) {
  run.points = columns(["step", "seconds", "loss", "low", "high", "norm", "lr", "speed"], run.points);
  run.validation = columns(["step", "seconds", "loss"], run.validation);
}
// names of runs without the folders that all of them are in
const parts = runs[0].name.split("/").slice(0, -1);
const shared = parts.findIndex((p, i) => runs.some(run => run.name.split("/")[i] != p));
for (const run of runs) run.label = run.name.split("/").slice(shared < 0 ? parts.length : shared).join("/");

// ---- small tools
function add(parent, name, text, attributes) {
  const svg = name == "svg" || parent.namespaceURI.endsWith("svg");
  const e = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const key in attributes) e.setAttribute(key, attributes[key]);
  e.textContent = text;
  return parent.appendChild(e);
}
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 5 });
const short = x => Number.isFinite(x) ? compact.format(x) : "n/a";
const duration = s => Math.floor(s / 3600) + new Date(s * 1000).toISOString().slice(13, 19);  // 27:46:40
const when = t => t ? new Date(t * 1000).toLocaleString() : "";
const finite = list => list.filter(Number.isFinite);
const letter = 7.3;  // the width of one in a label
const cut = (text, most) => text.length > most ? text.slice(0, Math.max(2, most - 1)) + "…" : text;

// ---- curves: name, color, points x and y, their range (low, high), dots at them, a label at the end
const axes = { step: "step", tokens: "tokens", hours: "hours of training" };
function along(run, part) {
  if (axis.value == "hours") return part.seconds.map(s => s / 3600);
  return axis.value == "tokens" ? part.step.map(s => s * run.tokensPerStep) : part.step;
}
const curve = (run, color, part, member, name, more) => ({
  name: one ? name : run.label, color: `var(--c${color % 7})`, x: along(run, part), y: part[member],
  label: true, ...more });
const simple = (member, name) => () => runs.map((run, k) => curve(run, k, run.points, member, name));
function losses() {
  const curves = runs.flatMap((run, k) => {
    const p = run.points, v = run.validation, label = one || !finite(v.loss).length;
    return [curve(run, k, p, "loss", "training", { low: p.low, high: p.high, kind: " training", label }),
            curve(run, one ? 1 : k, v, "loss", "validation", { dots: true, kind: " validation" })];
  });
  const x = curves.flatMap(c => c.x).sort((a, b) => a - b);
  for (const e of new Set(runs.map(run => run.entropy).filter(e => e > 0)))
    curves.push({ name: "entropy", color: "var(--faint)", x, y: x.map(() => e), dashed: true, label: true });
  return curves;
}

// ---- a chart
function ticks(low, high, most, log) {
  if (log && high / low > 8) {
    const factors = high / low > 1e4 ? [1] : high / low > 50 ? [1, 3] : [1, 2, 5], all = [];
    for (let unit = 10 ** Math.floor(Math.log10(low)); unit <= high; unit *= 10)
      all.push(...factors.map(f => f * unit));
    return all.filter(t => t >= low && t <= high);
  }
  const raw = (high - low) / most, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find(m => m * unit >= raw), first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, k) => (first + k) * step);
}
function scale(low, high, from, to, log) {
  const f = log ? Math.log : x => x;
  return v => from + (to - from) * (f(v) - f(low)) / (f(high) - f(low));
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
function chart(parent, title, make, wide) {  // one closure: its functions share the scales, the curves and the tip
  const section = add(parent, "section");
  add(section, "h2", title);
  const plot = add(section, "div", "", { class: "plot" });
  const svg = add(plot, "svg", "", { role: "img", "aria-label": title });
  const tip = add(plot, "div", "", { class: "tip", hidden: "" });
  let curves, box, X, Y;

  function drawAxes(width, height) {
    const values = finite(curves.flatMap(c => [...c.y, ...c.low || []]));
    let low = Math.min(...values), high = Math.max(...values);
    const log = logarithmic.checked ? low > 0 : wide && low > 0 && high / low > 30;
    const pad = (high - low || Math.abs(high) || 1) * 0.05;
    low = log ? low / 1.05 : low >= 0 ? Math.max(0, low - pad) : low - pad;
    high = log ? high * 1.05 : high + pad;
    const xs = finite(curves.flatMap(c => c.x)), above = xs.filter(x => x > 0);
    const logX = logarithmic.checked && above.length > 0;
    const from = logX ? Math.min(...above) : 0, to = Math.max(...xs, from + 1e-9);
    X = scale(from, to, box.left, box.right, logX);
    Y = scale(low, high, box.bottom, box.top, log);
    for (const t of ticks(low, high, 6, log)) {
      add(svg, "line", "", { x1: box.left, x2: box.right, y1: Y(t), y2: Y(t), stroke: "var(--line)" });
      add(svg, "text", short(t), { x: box.left - 6, y: Y(t) + 4, "text-anchor": "end" });
    }
    for (const t of ticks(from, to, Math.max(2, width / 110), logX))
      add(svg, "text", short(t), { x: X(t), y: height - 8, "text-anchor": "middle" });
    add(svg, "text", axes[axis.value], { x: width - 2, y: height - 8, "text-anchor": "end" });
  }
  function drawCurve(c) {
    if (c.high) {
      const back = path([...c.x].reverse(), [...c.low].reverse(), X, Y).replace("M", "L");
      add(svg, "path", "", { d: path(c.x, c.high, X, Y) + back + "Z", fill: c.color, opacity: 0.13 });
    }
    add(svg, "path", "", { d: path(c.x, c.y, X, Y), fill: "none", stroke: c.color,
                           "stroke-width": c.dots ? 2.2 : 1.3, "stroke-dasharray": c.dashed ? "5 4" : "none",
                           class: c.dashed ? "" : "curve" });
    if (!c.dots || c.y.length > 60) return;
    c.y.forEach((y, i) => {
      if (y !== null) add(svg, "circle", "", { cx: X(c.x[i]), cy: Y(y), r: 3, fill: c.color });
    });
  }
  function draw() {
    const width = plot.clientWidth, height = plot.clientHeight;
    svg.replaceChildren();
    tip.hidden = true;
    curves = make().filter(c => finite(c.y).length);
    if (!curves.length) return add(svg, "text", "nothing yet", { x: 54, y: height / 2 });
    const labels = curves.filter(c => c.label).map(c => {
      const end = finite(c.y).at(-1);
      return { name: c.name, value: " " + short(end), end, color: c.color };
    });
    const longest = Math.max(...labels.map(l => (l.name + l.value).length));
    const room = Math.min(width * 0.42, (longest + 1) * letter);
    box = { left: 54, right: width - room, top: 10, bottom: height - 26 };
    drawAxes(width, height);
    curves.forEach(drawCurve);
    // labels stand where their curves end, moved apart
    labels.sort((a, b) => b.end - a.end);
    labels.forEach((l, i) => { l.y = Math.max(Y(l.end), i ? labels[i - 1].y + 14 : box.top); });
    labels.reverse().forEach((l, i) => { l.y = Math.min(l.y, i ? labels[i - 1].y - 14 : box.bottom); });
    for (const l of labels)
      add(svg, "text", cut(l.name, room / letter - l.value.length) + l.value,
          { x: box.right + 6, y: l.y + 4, class: "end", style: "fill:" + l.color });
  }
  const nearest = (c, at) => c.x.reduce((best, x, i) => {
    const nearer = best < 0 || Math.abs(X(x) - at) < Math.abs(X(c.x[best]) - at);
    return c.y[i] !== null && nearer ? i : best;
  }, -1);
  // the values beside the pointer: at a point of the curve that has most of them
  function point(event) {
    svg.querySelectorAll(".cursor").forEach(e => e.remove());
    tip.hidden = !curves.length || event.type == "pointerleave";
    if (tip.hidden) return;
    const densest = curves.reduce((a, b) => b.x.length > a.x.length ? b : a);
    const here = densest.x[nearest(densest, event.clientX - svg.getBoundingClientRect().left)], x = X(here);
    add(svg, "line", "", { x1: x, x2: x, y1: box.top, y2: box.bottom, stroke: "var(--faint)",
                           class: "cursor" });
    tip.replaceChildren();
    add(tip, "b", axes[axis.value] + " " + short(here));
    for (const c of curves) {
      const i = nearest(c, x), row = add(tip, "div");
      add(row, "span", cut(c.name, 22) + (!one && c.kind || ""), { style: "color:" + c.color });
      add(row, "span", short(c.y[i]) + (c.x[i] != here ? " at " + short(c.x[i]) : ""));
    }
    tip.style.left = Math.max(0, Math.min(x + 12, plot.clientWidth - tip.offsetWidth)) + "px";
  }
  for (const kind of ["pointermove", "pointerdown", "pointerleave"]) svg.addEventListener(kind, point);
  for (const control of [axis, logarithmic]) control.addEventListener("change", draw);
  addEventListener("resize", draw);
  draw();
}

// ---- the page
function table(parent, rows, head) {
  const t = add(add(parent, "div", "", { class: "scroll" }), "table");
  for (const row of head ? [head, ...rows] : rows) {
    const tr = add(t, "tr");
    row.forEach((cell, i) => add(tr, row === head || i == 0 ? "th" : "td", cell));
  }
}
function fold(title, open) {
  const box = add(main, "details", "", open ? { open: "" } : {});
  add(box, "summary", title);
  return box;
}
function facts(run) {
  const p = run.points, v = finite(run.validation.loss), step = p.step.at(-1) || 0;
  const ends = { end: "finished", stop: "stopped", error: "ended by an error" };
  return { "parameters": short(run.parameters), "steps": `${short(step)} of ${short(run.steps)}`,
           "tokens": short(step * run.tokensPerStep), "training loss": short(finite(p.loss).at(-1)),
           "validation loss": short(v.at(-1)), "best": short(Math.min(...v)),
           "tokens a second": short(finite(p.speed).at(-1)), "of training": duration(p.seconds.at(-1) || 0),
           "state": ends[run.events.at(-1)?.[2]] || "last heard of " + when(run.time) };
}
document.title = (one ? runs[0].name : runs.length + " runs") + " - plumb";
add(main, "h1", one ? runs[0].name : runs.length + " runs");
const names = Object.keys(facts(runs[0]));
table(main, runs.map(run => [run.label, ...Object.values(facts(run))]), ["run", ...names]);
const axis = add(add(main, "label", "along "), "select");
for (const key in axes) add(axis, "option", axes[key], { value: key });
const logarithmic = add(add(main, "label", "logarithmic "), "input", "", { type: "checkbox" });
const charts = add(main, "div", "", { class: "charts" });
// what a point of a curve stands for; steps of their own need no word
const steps = runs[0].points.step, each = steps.at(-1) - (steps.at(-2) || 0);
const mean = one && each > 1 ? `; training, mean of ${short(each)} steps` : "";
chart(charts, "Loss, nats a token" + mean, losses);
chart(charts, "Gradient norm", simple("norm", "norm"), true);
chart(charts, "Learning rate", simple("lr", "rate"));
chart(charts, "Tokens a second", simple("speed", "tokens/s"));

const of = run => one ? "" : " of " + run.label;
for (const run of runs.filter(run => run.samples.length)) {
  const box = fold("Samples" + of(run) + ", newest first", one);
  for (const [step, text] of run.samples.reverse()) {
    add(box, "p", "step " + step);
    add(box, "pre", text);
  }
}
const keys = [...new Set(runs.flatMap(run => Object.keys(run.options)))];
const differ = keys.filter(key => one || new Set(runs.map(run => run.options[key])).size > 1);
const rows = differ.map(key => [key, ...runs.map(run => run.options[key] ?? "")]);
table(fold(one ? "Options" : "Options that differ", !one), rows, ["", ...runs.map(run => run.label)]);
for (const run of runs) {
  const plan = run.plan.split("\n").filter(line => line).map(line => line.split("|"));
  table(fold("Machine, model, data" + of(run), one), plan.map(([name, ...rest]) => [name, rest.join("|")]));
  table(fold("Events" + of(run), false),
        run.events.reverse().map(([time, step, ...what]) => [when(time), "step " + step, ...what]));
}
</script>
</body>
</html>
)html";

// A text of the run must not end the element that holds the data, nor begin another.
std::string inside_html(std::string json) {
    for (size_t at = 0; (at = json.find('<', at)) != std::string::npos;) { json.replace(at, 1, "\\u003c"); }
    return json;
}

// A page takes the place of an earlier one only: a log, a model or a config file of a run would be lost.
void require_page(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) { return; }
    std::ifstream file(path, std::ios::binary);
    std::string begin(kReportHead.find("<title>"), '\0');
    file.read(begin.data(), (std::streamsize)begin.size());
    begin.resize((size_t)file.gcount());
    throw_if(!file.is_open() || !kReportHead.starts_with(begin), kExitUsage,
             "{}: found a file that is no page of a run and would be lost. Expected such a page or a free "
             "name: choose another --out.",
             path);
}

}  // namespace

std::string report_page(std::vector<RunHistory> runs) {
    constexpr int kMostHalvings = 12;  // by then a curve has a point or two
    for (int halvings = 0; halvings <= kMostHalvings; halvings++) {
        std::string page(kReportHead), between = "[";
        for (const RunHistory& run : runs) {
            page += std::exchange(between, ",\n") + inside_html(run.to_json());
        }
        page += "]" + std::string(kReportScript);
        if (page.size() <= kMostReportBytes) { return page; }
        for (RunHistory& run : runs) { run.thin(); }
    }
    throw Error(kExitUsage, "{} runs do not fit on a page of {} bytes. Name fewer.", runs.size(),
                kMostReportBytes);
}

int report_command(int argc, const char* const* argv) {
    const std::string name = std::string(argv[0]) + " report";
    std::vector<std::string> runs;
    std::string out;
    Table t(name, "Draws the curves of runs on one page for a browser, which needs nothing else.",
            "A run writes its own page at validations, at saves and at its end.\n\nExample:\n"
            "  PROGRAM runs/a runs/b --out compare.html\n");
    t.add("RUN", &runs, {.required = true, .repeats = true}, "folders of runs, or their log.jsonl");
    t.add("--out FILE", &out, "the page; default: RUN/report.html for one run, report.html for several");
    if (!t.parse(argc, argv, 2)) { return kExitDone; }
    std::vector<RunHistory> histories;
    std::ranges::transform(runs, std::back_inserter(histories), RunHistory::read);
    const bool named = !out.empty(), folder = runs.size() == 1 && is_folder(runs[0]);
    if (!named) { out = folder ? runs[0] + "/report.html" : "report.html"; }
    require_page(out);
    try {
        write_text_file(out, report_page(histories));
    } catch (const Error& e) {
        throw Error(e.exit_code, "{}{}", e.what(), named ? "" : " --out FILE writes it elsewhere.");
    }
    put_text(stdout, "wrote " + out + "\n");
    require_printed();
    return kExitDone;
}

std::string RunJournal::write_report(bool now) {
    constexpr int kPartOfTime = 50;  // validations that follow each other fast do not wait for the page
    const auto begin = std::chrono::steady_clock::now();
    if (!now && begin < next_report_) { return ""; }
    std::string problem;
    try {
        write_text_file(folder_ + "/report.html", report_page({history_}));
    } catch (const Error& e) {
        if (!std::exchange(report_failed_, true)) {
            problem = fmt::format("the page of the run is not written: {}\n", e.what());
        }
    }
    const auto end = std::chrono::steady_clock::now();
    next_report_ = end + kPartOfTime * (end - begin);
    return problem;
}

}  // namespace llmc
