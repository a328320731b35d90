// Curves of the numbers in logs: a panel for each number, a curve in each panel for each run. dygraphs draws them
// (https://dygraphs.com); this file chooses what is drawn.
//
//   line     an object of episodes.jsonl
//   record   the line of an episode or update; the line of an epoch has numbers of its own, "epoch.NAME"
//   name     of a number of a line: "loss", "eval.mean_reward", "timing.fps"
//   curve    {label, color, points: [[x, y, low, high], ...]}, low and high where there is a spread
//   mark     {x, text}: something that happened

import {count, element, known, moment, short} from "./text.js";

const LINES_MAX = 4096, EVENTS_MAX = 500, TABLE_ROWS = 40, GRID_POINTS = 200, CELLS_MAX = 200000;
const AXES = {number: "episode or update", steps: "steps", time: "time since the start"};
const SPREADS = {"eval.mean_reward": "eval.std_reward"};

// Numbers that say nothing as a curve.
const DULL = /^(episode|update|epoch|epoch\.epoch|epoch\.update|total_timesteps|version|timing\.(unix_s|pid|requests|launches|bytes))$/;

const dark = matchMedia("(prefers-color-scheme: dark)");
const PALETTES = {
  light: ["#1f6feb", "#c2410c", "#15803d", "#9333ea", "#be123c", "#0e7490", "#a16207", "#4d4d4d", "#db2777", "#3f6212"],
  dark: ["#6aa8ff", "#ff9d66", "#62d295", "#c79bff", "#ff8d9d", "#5fd0e0", "#f0bd59", "#c9d1db", "#ff8fc8", "#b8d977"]};
export const colorOf = i => PALETTES[dark.matches ? "dark" : "light"][i % 10];

// ---- the lines of a run ----

function flatten(object, prefix, into) {
  for (const key in object) {
    const value = object[key];
    if (known(value)) into[prefix + key] = value;
    else if (value !== null && typeof value === "object") flatten(value, `${prefix}${key}.`, into); // losses.0 of trainer 0
  }
  return into;
}

// Lines of one kind, by their numbers, with equal distances: memory and drawing stay bounded over days.
class Lines {
  constructor() {
    this.of = [];
    this.distance = 0; // between the numbers of two lines that stay
  }

  // Drops entries with this number or a later one: a resumed run computes them again. The newest line always stays.
  push(entry) {
    while (this.of.length > 0 && this.of[this.of.length - 1].number >= entry.number) this.of.pop();
    const before = this.of[this.of.length - 2];
    if (before && this.of[this.of.length - 1].number - before.number < this.distance) this.of.pop();
    this.of.push(entry);
    if (this.of.length > LINES_MAX) this.#thin();
  }

  #thin() {
    const newest = this.of[this.of.length - 1];
    this.distance = (newest.number - this.of[0].number) / (LINES_MAX / 2);
    let last = -Infinity;
    this.of = this.of.filter(entry => {
      if (entry !== newest && entry.number - last < this.distance) return false;
      last = entry.number;
      return true;
    });
  }
}

const EVALUATION = "eval.mean_reward";

export class Log {
  constructor(document) {
    this.plain = new Lines(); // records without an evaluation
    this.milestones = new Lines(); // records with one
    this.epochLines = new Lines();
    this.events = [];
    this.told = new Set();
    this.take(document);
  }

  // Takes the members of run_history_write.
  take({records, events, checkpoints}) {
    for (const [steps, line] of records) {
      const is_epoch = "epoch" in line, number = line.episode ?? line.update ?? 0;
      const entry = {number, steps, unix_s: line.timing?.unix_s, values: flatten(line, is_epoch ? "epoch." : "", {})};
      if (is_epoch) this.epochLines.push(entry);
      else if (EVALUATION in entry.values) this.milestones.push(entry);
      else this.plain.push(entry);
    }
    for (const [number, line] of events) {
      const key = JSON.stringify(line);
      if (!this.told.has(key)) this.events.push({key, number, line, unix_s: line.timing?.unix_s});
      this.told.add(key);
    }
    if (this.events.length > EVENTS_MAX) {
      this.first ??= this.events[0];
      this.events = this.events.slice(-EVENTS_MAX / 2);
      this.told = new Set(this.events.map(event => event.key));
    }
    this.records = [...this.plain.of, ...this.milestones.of].sort((a, b) => a.number - b.number);
    this.epochs = this.epochLines.of;
    this.checkpoints = checkpoints;
  }

  get unit() {
    return this.records.length > 0 && "episode" in this.records[0].values ? "episode" : "update";
  }

  get begin() {
    return (this.first ?? this.events[0])?.unix_s ?? this.records[0]?.unix_s;
  }

  // All names with a curve to show.
  names() {
    const names = new Set();
    for (const list of [this.records.slice(-64), this.milestones.of.slice(-1), this.epochs.slice(-4)])
      for (const entry of list)
        for (const name in entry.values)
          if (!DULL.test(name)) names.add(name);
    return names;
  }

  // The x of a record, or of an event.
  x(entry, axis) {
    if (axis === "time") return entry.unix_s - this.begin;
    if (axis === "number") return entry.number;
    return entry.steps ?? this.#steps(entry.number);
  }

  #steps(number) {
    const next = this.records.find(record => record.number >= number) ?? this.records[this.records.length - 1];
    return next ? next.steps : 0;
  }

  points(name, axis) {
    const points = [], spread = SPREADS[name];
    for (const entry of name.startsWith("epoch.") ? this.epochs : this.records) {
      const y = entry.values[name], x = this.x(entry, axis), around = entry.values[spread] ?? 0;
      if (known(y) && known(x)) points.push([x, y, y - around, y + around]);
    }
    return points;
  }

  // What happened, as marks. The daemon's own warning says more than the log's line of the same death.
  marks(axis) {
    const warnings = this.events.filter(event => event.line.event === "warning").map(event => event.line.text);
    const shown = this.events.filter(event => event.number > 0 && event.line.event !== "message" &&
      !warnings.some(text => event.line.reason && text.startsWith(event.line.reason)));
    return shown.map(event => ({x: this.x(event, axis), unix_s: event.unix_s, number: event.number, text: wordsOf(event.line)}))
      .concat(this.checkpoints.map(([number, unix_s]) => ({x: this.x({number, unix_s}, axis), is_quiet: true, number, text: `checkpoint ${number}`})));
  }
}

// An event in words.
export function wordsOf(line) {
  const what = {start: "started", resumed: "went on from a checkpoint", restarted: "a worker was started again"};
  const text = line.text ?? what[line.event] ?? line.event;
  return line.reason ? `${text}: ${line.reason}` : text;
}

// ---- what is drawn ----

// An exponential mean, without the pull of its start, as TensorBoard has it.
function smoothed(points, weight) {
  let sum = 0, of = 0;
  return weight === 0 ? points : points.map(([x, y, low, high]) => {
    sum = weight * sum + (1 - weight) * y;
    of = weight * of + 1 - weight;
    return [x, sum / of, sum / of + low - y, sum / of + high - y];
  });
}

function valueAt(points, x) {
  if (points.length === 0 || x < points[0][0] || x > points[points.length - 1][0]) return undefined;
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  const [x1, y1] = points[low], [x0, y0] = points[Math.max(0, low - 1)];
  return x1 === x0 ? y1 : y0 + (y1 - y0) * (x - x0) / (x1 - x0);
}

// One curve for several runs that differ in the seed: the median, and from the least to the most.
export function medianOf(label, color, all) {
  const runs = all.filter(points => points.length > 0), points = [];
  const first = Math.min(...runs.map(run => run[0][0])), last = Math.max(...runs.map(run => run[run.length - 1][0]));
  for (let i = 0; runs.length > 0 && i < GRID_POINTS; i++) {
    const x = first + (last - first) * i / (GRID_POINTS - 1);
    const ys = runs.map(run => valueAt(run, x)).filter(known).sort((a, b) => a - b);
    if (ys.length === 0) continue;
    const middle = (ys[(ys.length - 1) >> 1] + ys[ys.length >> 1]) / 2;
    points.push([x, middle, ys[0], ys[ys.length - 1]]);
  }
  return {label, color, points};
}

// Many curves with no x in common would make a table of rows times curves: they are drawn at equal distances.
function onGrid(curves) {
  const all = curves.filter(({points}) => points.length > 0), cells = curves.length * curves.reduce((sum, {points}) => sum + points.length, 0);
  if (cells <= CELLS_MAX) return curves;
  const first = Math.min(...all.map(({points}) => points[0][0])), last = Math.max(...all.map(({points}) => points[points.length - 1][0]));
  const xs = Array.from({length: GRID_POINTS}, (_, i) => first + (last - first) * i / (GRID_POINTS - 1));
  return curves.map(curve => ({...curve, points: xs.map(x => [x, valueAt(curve.points, x)]).filter(([, y]) => known(y)).map(([x, y]) => [x, y, y, y])}));
}

// The rows of dygraphs: one for each x of any curve.
function rowsOf(curves, is_log) {
  const rows = new Map();
  onGrid(curves).forEach(({points}, i) => {
    for (const [x, y, low, high] of points) {
      if (is_log && y <= 0) continue;
      if (!rows.has(x)) rows.set(x, [x, ...curves.map(() => [null, null, null])]);
      rows.get(x)[1 + i] = [is_log && low <= 0 ? y : low, y, high];
    }
  });
  return [...rows.values()].sort((a, b) => a[0] - b[0]);
}

// Round times: 0:15, 0:30 ...
function timeTicks(from, to, pixels) {
  const steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 604800];
  const least = (to - from) * 80 / pixels, step = steps.find(step => step >= least) ?? Math.ceil(least / 604800) * 604800;
  const ticks = [];
  if (!(to - from < 1e9)) return ticks;
  for (let i = Math.ceil(from / step); i * step <= to; i++) ticks.push({v: i * step, label: moment(i * step)});
  return ticks;
}

// Its own legend writes styles that the page's policy refuses; showValues is the legend.
const PLUGINS = Dygraph.PLUGINS.filter(plugin => new plugin().toString() !== "Legend Plugin");

class Panel {
  constructor(board, name) {
    this.board = board;
    this.name = name;
    this.title = element("h3", name);
    this.values = element("div", undefined, {class: "values"});
    this.plot = element("div", undefined, {class: "plot", role: "img"});
    this.host = element("figure", undefined, {class: "panel"}, element("figcaption", undefined, {}, this.title, this.values), this.plot);
  }

  draw(curves, marks, {axis, is_log, unit}) {
    const style = getComputedStyle(document.body), rows = rowsOf(curves, is_log), panel = this;
    this.curves = curves;
    this.marks = marks;
    this.axis = axis;
    this.plot.classList.toggle("empty", rows.length === 0);
    this.plot.setAttribute("aria-label", `${this.name} by ${axis === "number" ? unit : AXES[axis]}: ${curves.length} curves; a table of values is below`);
    if (rows.length === 0) {
      this.graph?.destroy();
      this.graph = null;
      this.plot.replaceChildren(element("p", is_log ? "nothing above 0" : "nothing yet", {class: "quiet"}));
      this.showValues();
      return;
    }
    const options = {
      labels: ["x", ...curves.map((curve, i) => `${i} ${curve.label}`)], colors: curves.map(curve => curve.color),
      customBars: true, connectSeparatedPoints: true, legend: "never", strokeWidth: 1.6, fillAlpha: 0.18, logscale: is_log,
      axisLabelFontSize: 12, axisLineColor: style.getPropertyValue("--line"), gridLineColor: style.getPropertyValue("--line"),
      drawPoints: rows.length === 1, pointSize: 3, highlightCircleSize: 4, includeZero: false, yRangePad: 8, xRangePad: 4,
      axes: {y: {axisLabelFormatter: short, axisLabelWidth: 60},
        x: {axisLabelFormatter: axis === "time" ? moment : count, pixelsPerLabel: 70,
          ...(axis === "time" ? {ticker: (from, to, pixels) => timeTicks(from, to, pixels)} : {ticker: Dygraph.numericLinearTicks})}},
      underlayCallback: (canvas, area, graph) => panel.#drawMarks(canvas, area, graph, style.getPropertyValue("--mark")),
      highlightCallback: (event, x) => panel.board.point(x), unhighlightCallback: () => panel.board.point(undefined),
      zoomCallback: (from, to) => panel.board.zoom([from, to]),
      drawCallback: (graph, is_first) => { if (!is_first && graph.isZoomed("x")) panel.board.zoom(graph.xAxisRange()); }};
    if (!this.graph) {
      this.plot.replaceChildren();
      Dygraph.PLUGINS = PLUGINS;
      this.graph = new Dygraph(this.plot, rows, options);
    } else {
      this.graph.updateOptions({file: rows, ...options});
      this.graph.resize(); // another panel may have come beside this one
    }
    this.showValues(this.board.x);
  }

  #drawMarks(canvas, area, graph, color) {
    canvas.save();
    canvas.strokeStyle = color;
    for (const mark of this.marks) {
      const x = graph.toDomXCoord(mark.x);
      if (!(x >= area.x && x <= area.x + area.w)) continue;
      canvas.globalAlpha = mark.is_quiet ? 0.35 : 0.9;
      canvas.setLineDash(mark.is_quiet ? [1, 4] : [4, 3]);
      canvas.beginPath();
      canvas.moveTo(x, area.y);
      canvas.lineTo(x, area.y + area.h);
      canvas.stroke();
    }
    canvas.restore();
  }

  // The values at x, or the newest ones.
  showValues(x) {
    const parts = [];
    if (known(x)) parts.push(element("span", this.axis === "time" ? moment(x) : count(x), {class: "quiet"}));
    for (const {label, color, points} of this.curves) {
      const point = known(x) ? nearest(points, x) : points[points.length - 1];
      if (!point) continue;
      const low = short(point[2]), high = short(point[3]), spread = low === high ? "" : ` (${low} to ${high})`;
      const value = element("span", `${this.curves.length > 1 ? `${label} ` : ""}${short(point[1])}${spread}`);
      value.style.color = color;
      parts.push(value);
    }
    const mark = known(x) && this.graph && this.marks.find(mark => Math.abs(this.graph.toDomXCoord(mark.x) - this.graph.toDomXCoord(x)) < 5);
    if (mark) parts.push(element("span", mark.text, {class: "bad"}));
    this.values.replaceChildren(...parts);
  }

  remove() {
    this.graph?.destroy();
    this.host.remove();
  }
}

function nearest(points, x) {
  let best;
  for (const point of points)
    if (!best || Math.abs(point[0] - x) < Math.abs(best[0] - x)) best = point;
  return best;
}

// ---- the board: panels, and what the reader chooses ----

// `show(name, axis)` gives {curves, marks, unit} of a number. The choice is in the page's address, so it can be sent on.
export class Board {
  constructor(host, show) {
    const chosen = new URLSearchParams(location.hash.slice(1));
    this.show = show;
    this.panels = new Map();
    this.names = [];
    this.chosen = chosen.get("y")?.split(",").filter(Boolean) ?? null;
    this.axis = chosen.get("x") in AXES ? chosen.get("x") : "number";
    this.is_log = chosen.has("log");
    this.weight = Math.min(0.99, Math.max(0, Number(chosen.get("smooth")) || 0));
    this.window = null;
    this.#build(host);
    dark.addEventListener("change", () => this.draw());
  }

  #build(host) {
    const axis = element("select", undefined, {"aria-label": "x axis"});
    for (const name in AXES) axis.append(element("option", AXES[name], {value: name}));
    axis.value = this.axis;
    axis.addEventListener("change", () => { this.axis = axis.value; this.#changed(true); });
    const smooth = element("input", undefined, {type: "range", min: 0, max: 0.99, step: 0.01, "aria-label": "smoothing"});
    smooth.value = this.weight;
    smooth.addEventListener("input", () => { this.weight = Number(smooth.value); this.#changed(false); });
    const log = element("input", undefined, {type: "checkbox"});
    log.checked = this.is_log;
    log.addEventListener("change", () => { this.is_log = log.checked; this.#changed(false); });
    const buttons = [["\u2212", "zoom out", 0, 2], ["+", "zoom in", 0, 0.5], ["\u25c0", "to the left", -0.5, 1], ["\u25b6", "to the right", 0.5, 1]]
      .map(([sign, label, move, scale]) => {
        const button = element("button", sign, {type: "button", "aria-label": label, title: label});
        button.addEventListener("click", () => this.#look(move, scale));
        return button;
      });
    const all = element("button", "all", {type: "button", title: "the whole curve"});
    all.addEventListener("click", () => this.zoom(null));
    this.list = element("div", undefined, {class: "names"});
    this.chooser = element("details", undefined, {class: "chooser"}, element("summary", "Numbers"), this.list);
    this.place = element("div", undefined, {class: "panels"});
    this.table = element("details", undefined, {class: "table"}, element("summary", "Values as a table"));
    this.table.addEventListener("toggle", () => this.#drawTable());
    host.append(element("div", undefined, {class: "tools"}, this.chooser, element("label", "x ", {}, axis),
      element("label", "smooth ", {}, smooth), element("label", "", {}, log, " log"),
      element("span", undefined, {class: "buttons", title: "drag to zoom, shift and drag to move"}, ...buttons, all)), this.place, this.table);
  }

  #changed(is_other_axis) {
    const choice = new URLSearchParams();
    if (this.chosen) choice.set("y", this.chosen.join(","));
    if (this.axis !== "number") choice.set("x", this.axis);
    if (this.is_log) choice.set("log", "1");
    if (this.weight > 0) choice.set("smooth", String(this.weight));
    history.replaceState(null, "", `#${choice}`);
    if (is_other_axis) this.zoom(null);
    this.draw();
  }

  // Takes the names that there are, and shows the chosen ones, or else `usual`.
  draw(names = this.names, usual = this.usual) {
    this.usual = usual;
    if (names.join() !== this.names.join()) this.#list(names);
    this.names = names;
    const wanted = (this.chosen ?? usual).filter(name => names.includes(name));
    if (wanted.length === 0) wanted.push(usual[0]);
    for (const [name, panel] of this.panels)
      if (!wanted.includes(name)) {
        panel.remove();
        this.panels.delete(name);
      }
    for (const name of wanted) {
      if (!this.panels.has(name)) this.panels.set(name, new Panel(this, name));
    }
    const hosts = wanted.map(name => this.panels.get(name).host);
    if (hosts.some((host, i) => host !== this.place.children[i])) this.place.replaceChildren(...hosts);
    this.place.classList.toggle("single", wanted.length === 1);
    for (const name of wanted) {
      const panel = this.panels.get(name), {curves, marks, unit} = this.show(name, this.axis);
      panel.draw(curves.map(curve => ({...curve, points: smoothed(curve.points, this.weight)})), marks, {axis: this.axis, is_log: this.is_log, unit});
      if (this.window) panel.graph?.updateOptions({dateWindow: this.window});
    }
    this.#drawTable();
  }

  #list(names) {
    this.list.replaceChildren(...names.map(name => {
      const box = element("input", undefined, {type: "checkbox", value: name});
      box.checked = (this.chosen ?? this.usual).includes(name);
      box.addEventListener("change", () => {
        this.chosen = [...this.list.querySelectorAll("input")].filter(box => box.checked).map(box => box.value);
        this.#changed(false);
      });
      return element("label", undefined, {}, box, ` ${name}`);
    }));
  }

  // All panels show the same part of the x axis. null: all of it.
  zoom(window) {
    const same = JSON.stringify(window) === JSON.stringify(this.window);
    this.window = window;
    if (!same)
      for (const panel of this.panels.values()) panel.graph?.updateOptions({dateWindow: window});
  }

  #look(move, scale) {
    const graph = [...this.panels.values()].find(panel => panel.graph)?.graph;
    if (!graph) return;
    const [from, to] = graph.xAxisRange(), [least, most] = graph.xAxisExtremes();
    const half = Math.min((to - from) * scale, most - least) / 2, middle = (from + to) / 2 + move * (to - from);
    const begin = Math.max(least, Math.min(middle - half, most - 2 * half));
    this.zoom(begin <= least && begin + 2 * half >= most ? null : [begin, begin + 2 * half]);
  }

  point(x) {
    this.x = x;
    for (const panel of this.panels.values()) panel.showValues(x);
  }

  // For screen readers, and for all who want figures: some rows of each curve.
  #drawTable() {
    if (!this.table.open) return;
    const columns = [...this.panels.values()].flatMap(panel => panel.curves.map(curve => ({name: panel.name, curve, many: panel.curves.length > 1})));
    const xs = [...new Set(columns.flatMap(({curve}) => curve.points.map(point => point[0])))].sort((a, b) => a - b);
    const every = Math.max(1, Math.ceil(xs.length / TABLE_ROWS));
    const rows = xs.filter((x, i) => i % every === 0 || i === xs.length - 1).map(x => element("tr", undefined, {},
      element("th", this.axis === "time" ? moment(x) : String(Math.round(x)), {scope: "row"}),
      ...columns.map(({curve}) => element("td", short(valueAt(curve.points, x))))));
    const head = element("tr", undefined, {}, element("th", AXES[this.axis], {scope: "col"}),
      ...columns.map(({name, curve, many}) => element("th", many ? `${name}, ${curve.label}` : name, {scope: "col"})));
    const table = element("table", undefined, {class: "numbers"}, element("caption", "Values of the curves"), element("thead", undefined, {}, head), element("tbody", undefined, {}, ...rows));
    this.table.replaceChildren(this.table.firstChild, element("div", undefined, {class: "scrolls", tabindex: 0}, table));
  }
}

// What a run of this kind shows before the reader chooses.
export function usualNames(names) {
  const first = ["ep_rew_mean", "running_reward", "loss"].find(name => names.includes(name)) ?? names[0] ?? "loss";
  const second = ["eval.mean_reward", "epoch.accuracy", "epoch.held_out.perplexity"].find(name => names.includes(name));
  return second ? [first, second] : [first];
}

// The numbers of learning first, then those of the machine.
export function sortNames(names) {
  return [...names].sort((a, b) => a.startsWith("timing.") - b.startsWith("timing.") || (a < b ? -1 : 1));
}
