// The page of many runs: which there are, how each stands, and their curves in comparison. It asks every few seconds.

import {at, bar, beside, bytes, clock, count, day, done, element, fixed, known, mood, share} from "./text.js";
import {Board, Log, colorOf, medianOf, sortNames, usualNames} from "./curves.js";

const PERIOD_MS = 4000, CHOSEN_AT_FIRST = 10, EVENTS_SHOWN = 40;
// As scripts/coalesced_curves.py has it: what a job says of its logs, files and processes changes nothing that is learned.
const BESIDE_TRAINING = /^\/(log|metrics|supervise|checkpoint|device|name)(\/|$)/;

let runs = [], chosen = null, board = null, filter = "", grouped = false, is_lost = false;
const problems = new Map(); // by a run's id: why its log cannot be shown
const logs = new Map(); // by a run's id: {log, job, read}; read: the newest line that it has

// ---- which is best ----

// The figure that runs are compared by, and whether more of it is better.
function figureOf(run) {
  const p = run.progress ?? {};
  if (known(p.evaluation)) return {name: "evaluation", value: p.evaluation, sign: 1};
  if (!known(p.value)) return undefined;
  return {name: p.figure, value: p.value, sign: ["loss", "perplexity"].includes(p.figure) ? -1 : 1};
}

// The best of the runs of each job, by the job's name; a job with one run has none. Evaluations count more than rewards.
function bestOf(list) {
  const jobs = new Map(), best = new Map();
  for (const run of list) {
    const figure = figureOf(run), others = jobs.get(run.name) ?? [];
    if (!figure) continue;
    if (others.length === 0 || (figure.name === "evaluation" && others[0].figure.name !== "evaluation")) jobs.set(run.name, [{run, figure}]);
    else if (others[0].figure.name === figure.name) others.push({run, figure});
  }
  for (const [name, all] of jobs)
    if (list.filter(run => run.name === name).length > 1)
      best.set(name, all.reduce((first, one) => one.figure.sign * one.figure.value > first.figure.sign * first.figure.value ? one : first));
  return best;
}

// ---- the table ----

const shown = () => runs.filter(run => `${run.run} ${run.state}`.includes(filter));
const labelOf = run => run.label;

// The shortest ends of the paths that tell the runs apart.
function nameRuns() {
  for (let parts = 1; parts < 12; parts++) {
    for (const run of runs) run.label = run.run.split("/").slice(-parts).join("/");
    if (new Set(runs.map(labelOf)).size === runs.length) return;
  }
}

function figureText(run) {
  const p = run.progress ?? {}, parts = [];
  if (known(p.value)) parts.push(`${p.figure} ${fixed(p.value, ["loss", "perplexity"].includes(p.figure) ? 4 : 2)}`);
  if (known(p.evaluation) && p.figure !== "evaluation") parts.push(`evaluation ${fixed(p.evaluation, 2)} ± ${fixed(p.evaluation_std, 2)}`);
  return parts.join(", ");
}

function whenText(run) {
  if (run.state !== "running") return day(run.ended_unix_s);
  return known(run.progress?.eta_s) ? `done in ${clock(run.progress.eta_s)}` : "";
}

const COLUMNS = ["", "Run", "State", "Progress", "Figures", "Ends", "Why", "Size"];

function rowOf(run, best) {
  const box = element("input", undefined, {type: "checkbox", "aria-label": `show ${labelOf(run)}`});
  box.checked = chosen.has(run.id);
  box.addEventListener("change", () => {
    if (box.checked) chosen.add(run.id);
    else chosen.delete(run.id);
    showChosen();
  });
  const only = element("button", labelOf(run), {type: "button", class: "name", title: `${run.run}: show this run alone`});
  only.addEventListener("click", () => { chosen = new Set([run.id]); showChosen(); });
  const color = element("span", undefined, {class: "color"}), part = share(run.progress);
  if (chosen.has(run.id)) color.style.background = colorOf(numberOf(run));
  const cells = [[color, box], [only, best.get(run.name)?.run === run ? element("strong", "best", {class: "tag good"}) : ""], [element("span", run.state, {class: mood(run.state)})],
    [known(part) ? bar(part, "done of the run") : "", element("span", ` ${done(run.progress)}`)], [figureText(run)], [whenText(run)],
    [problems.get(run.id) ?? run.reason ?? (run.resumable ? "--resume goes on" : "")], [bytes(run.bytes)]];
  return element("tr", undefined, {"data-run": run.label}, ...cells.map((cell, i) => element("td", undefined, {"data-name": COLUMNS[i]}, ...cell)));
}

const numberOf = run => shown().filter(one => chosen.has(one.id)).indexOf(run);

function showTable() {
  const list = shown(), best = bestOf(list);
  at("titles").replaceChildren(...COLUMNS.map(name => element("th", name, {scope: "col"})));
  at("runs").replaceChildren(...list.map(run => rowOf(run, best)));
  const counts = new Map();
  for (const run of list) counts.set(run.state, (counts.get(run.state) ?? 0) + 1);
  const last = Math.max(...list.filter(run => run.state === "running").map(run => run.progress?.eta_s ?? NaN).filter(known));
  const words = [`${list.length} runs`, ...[...counts].map(([state, number]) => `${number} ${state}`)];
  if (known(last)) words.push(`the last one is done in ${clock(last)}`);
  for (const [name, {run, figure}] of [...best].slice(0, 3))
    words.push(`best ${best.size > 1 ? `${name}` : ""}: ${labelOf(run)}, ${figure.name} ${fixed(figure.value, figure.sign < 0 ? 4 : 2)}`.replace(" :", ":"));
  at("state").textContent = words.join(" · ");
  at("state").className = `state ${counts.has("died") || counts.has("failed") ? "wait" : "good"}`;
}

// ---- the chosen runs ----

async function read(run) {
  const have = logs.get(run.id);
  if (have && have.read === run.ended_unix_s) return;
  problems.delete(run.id);
  let document;
  try {
    const answer = await fetch(beside(`run.json?id=${run.id}`));
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    document = await answer.json();
  } catch (problem) {
    problems.set(run.id, `the log cannot be shown: ${problem.message}`);
    return;
  }
  logs.set(run.id, {log: new Log(document), job: keysOf(document.job ?? {}, "", new Map()), read: run.ended_unix_s});
}

function keysOf(value, pointer, into) {
  if (value !== null && typeof value === "object" && !Array.isArray(value))
    for (const key in value) keysOf(value[key], `${pointer}/${key}`, into);
  else into.set(pointer, JSON.stringify(value));
  return into;
}

const read_runs = () => shown().filter(run => chosen.has(run.id) && logs.has(run.id));

// The keys in which the jobs of these runs differ.
function differing(list) {
  const pointers = new Set(list.flatMap(run => [...logs.get(run.id).job.keys()]));
  return [...pointers].filter(pointer => !BESIDE_TRAINING.test(pointer) &&
    new Set(list.map(run => logs.get(run.id).job.get(pointer))).size > 1).sort();
}

const valuesOf = (run, pointers) => pointers.map(pointer => `${pointer.split("/").pop()}=${logs.get(run.id).job.get(pointer) ?? "-"}`).join(" ");

// Runs that differ in the seed alone are a group.
function groupsOf(list) {
  const pointers = differing(list).filter(pointer => pointer !== "/seed"), groups = new Map();
  for (const run of list) {
    const label = valuesOf(run, pointers);
    groups.set(label, [...(groups.get(label) ?? []), run]);
  }
  return [...groups].map(([label, members]) => ({members, label: `${label || members[0].label} (${members.length} runs)`}));
}

function curvesOf(name, axis) {
  const list = read_runs(), points = run => logs.get(run.id).log.points(name, axis);
  const marks = list.length === 1 ? logs.get(list[0].id).log.marks(axis) : [];
  const curves = grouped ? groupsOf(list).map((group, i) => medianOf(group.label, colorOf(i), group.members.map(points)))
    : list.map(run => ({label: run.label, color: colorOf(numberOf(run)), points: points(run)}));
  return {curves, marks, unit: list.length > 0 ? logs.get(list[0].id).log.unit : "update"};
}

function showKeys(list) {
  const pointers = differing(list);
  at("keys").replaceChildren(element("th", "Run", {scope: "col"}), ...pointers.map(pointer => element("th", pointer, {scope: "col"})));
  at("values").replaceChildren(...(pointers.length === 0 ? [] : list).map(run => element("tr", undefined, {}, element("th", run.label, {scope: "row"}),
    ...pointers.map(pointer => element("td", logs.get(run.id).job.get(pointer) ?? "–")))));
}

function showEvents(list) {
  const all = list.flatMap(run => logs.get(run.id).log.marks("number").filter(mark => !mark.is_quiet).map(mark => ({...mark, run})));
  at("events").replaceChildren(...all.sort((a, b) => b.unix_s - a.unix_s).slice(0, EVENTS_SHOWN).map(mark =>
    element("li", undefined, {}, element("span", `${day(mark.unix_s)}, ${list.length > 1 ? `${mark.run.label}, ` : ""}${mark.number}: `, {class: "quiet"}), mark.text)));
}

async function showChosen() {
  for (const id of [...logs.keys()])
    if (!chosen.has(id)) logs.delete(id);
  showTable();
  await Promise.all(shown().filter(run => chosen.has(run.id)).map(read));
  if (problems.size > 0) showTable();
  const list = read_runs(), names = sortNames(new Set(list.flatMap(run => [...logs.get(run.id).log.names()])));
  board ??= new Board(at("board"), curvesOf);
  board.draw(names.length > 0 ? names : ["loss"], usualNames(names));
  showKeys(list);
  showEvents(list);
}

// ---- the reader's choice ----

function build() {
  const find = element("input", undefined, {type: "search", placeholder: "part of a path, or a state", "aria-label": "which runs"});
  find.addEventListener("input", () => { filter = find.value; showChosen(); });
  const group = element("input", undefined, {type: "checkbox"});
  group.addEventListener("change", () => { grouped = group.checked; showChosen(); });
  const all = element("button", "all", {type: "button"}), none = element("button", "none", {type: "button"});
  all.addEventListener("click", () => { shown().forEach(run => chosen.add(run.id)); showChosen(); });
  none.addEventListener("click", () => { chosen.clear(); showChosen(); });
  at("choice").append(find, element("span", undefined, {class: "buttons"}, all, none), element("label", undefined, {}, group, " median over seeds"));
}

async function ask() {
  try {
    const answer = await fetch(beside("runs.json"));
    if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
    const before = JSON.stringify(runs);
    runs = (await answer.json()).runs.sort((a, b) => (b.state === "running") - (a.state === "running") || (b.ended_unix_s ?? 0) - (a.ended_unix_s ?? 0));
    chosen ??= new Set(runs.filter(run => !run.previous).slice(0, CHOSEN_AT_FIRST).map(run => run.id));
    nameRuns();
    if (JSON.stringify(runs) !== before || is_lost) await showChosen();
    is_lost = false;
  } catch (problem) {
    is_lost = true;
    at("state").textContent = `no answer: ${problem.message}`;
    at("state").className = "state bad";
  }
  setTimeout(ask, PERIOD_MS);
}

build();
ask();
