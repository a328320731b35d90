// The page of one run. It follows the run by a stream of events, and keeps what it has when the run ends.

import {at, bar, beside, bytes, clock, count, day, done, element, fixed, known, mood, percent, share, time} from "./text.js";
import {Board, Log, colorOf, sortNames, usualNames, wordsOf} from "./curves.js";

const EVENTS_SHOWN = 30;
let log = null, board = null, newest = null; // newest: the status

function showHead(status) {
  document.title = `${status.name} – ${status.state}`;
  at("name").textContent = status.name;
  at("where").textContent = `${status.kind}, process ${status.pid}, ${status.run}`;
  showState(status.state, mood(status.state));
}

function showState(text, feeling) {
  at("state").textContent = text;
  at("state").className = `state ${feeling}`;
}

function showProgress(status) {
  const p = status.progress, part = share(p), words = [done(p), percent(part)];
  if (known(p.eta_s)) words.push(`done in ${clock(p.eta_s)}`);
  at("progress").replaceChildren(...(known(part) ? [bar(part, "done of the run")] : []),
    element("span", words.filter(Boolean).join(" · ")));
}

function showFigures(status) {
  const p = status.progress, rate = p.steps_per_s ?? p.samples_per_s ?? p.tokens_per_s;
  const unit = "steps_per_s" in p ? "Steps/s" : "samples_per_s" in p ? "Samples/s" : "Tokens/s";
  const numbers = log.records[log.records.length - 1]?.values ?? {};
  const evaluated = log.records.findLast(record => "eval.mean_reward" in record.values)?.values ?? {};
  const figures = [
    ["Episode", count(p.episode)], ["Update", count(p.update)], ["Running reward", fixed(p.running_reward, 2)],
    ["Last reward", fixed(p.reward, 2)], ["Goal", fixed(p.goal, 2)], ["Loss", fixed(p.loss, 4)],
    ["Evaluation", known(evaluated["eval.mean_reward"]) ? `${fixed(evaluated["eval.mean_reward"], 2)} ± ${fixed(evaluated["eval.std_reward"], 2)}` : ""],
    ["Learning rate", known(numbers.learning_rate ?? numbers.lr) ? String(Number((numbers.learning_rate ?? numbers.lr).toPrecision(3))) : ""],
    ["Accuracy", fixed(p.accuracy, 4)], ["Perplexity", fixed(p.perplexity, 2)], [unit, count(rate)], ["Running for", time(status.up_s)],
    ["Checkpoint", known(status.checkpoint) ? `${status.checkpoint}, ${time(status.checkpoint_age_s)} old` : "none yet"],
    ["Restarts", count(status.workers.reduce((sum, worker) => sum + worker.restarts, 0))]];
  at("figures").replaceChildren(...figures.filter(([, value]) => value !== "")
    .map(([name, value]) => element("div", undefined, {}, element("dt", name), element("dd", value))));
}

function showCurves() {
  const names = sortNames(log.names());
  if (names.length === 0) names.push("loss");
  board ??= new Board(at("board"), (name, axis) => ({
    curves: [{label: name, color: colorOf(0), points: log.points(name, axis)}], marks: log.marks(axis), unit: log.unit}));
  board.draw(names, usualNames(names));
}

function showEvents() {
  const shown = log.marks("number").concat(log.events.filter(event => event.number === 0 || event.line.event === "message")
    .map(event => ({...event, text: wordsOf(event.line)})))
    .filter(mark => !mark.is_quiet).sort((a, b) => b.unix_s - a.unix_s).slice(0, EVENTS_SHOWN);
  at("events").replaceChildren(...shown.map(mark =>
    element("li", undefined, {}, element("span", `${day(mark.unix_s)}, ${log.unit} ${mark.number}: `, {class: "quiet"}), mark.text)));
}

// ---- histograms ----

const whole = (low, high) => high === null ? `over ${count(low)}` : high - low <= 1 ? count(high) : `${count(low + 1)}–${count(high)}`;
const span = (low, high) => high === null ? `over ${time(low)}` : low === undefined ? `up to ${time(high)}` : `${time(low)} – ${time(high)}`;
const HISTOGRAMS = {batch_rows: ["Rows of a launch", whole, "rows"], wait_s: ["A request's wait for its launch", span, ""],
  round_wait_s: ["A round's wait for its last trainer", span, ""], staleness: ["Versions since a contribution's model", whole, ""]};

// `exact`: the one value of all; otherwise buckets have a range each.
function histogram([title, label, unit], buckets, exact) {
  const all = Math.max(1, buckets.reduce((sum, bucket) => sum + bucket[1], 0)), rows = [];
  buckets.forEach(([limit, number], i) => {
    if (number === 0) return;
    const low = i > 0 ? buckets[i - 1][0] : label === whole ? limit - 1 : undefined;
    const name = known(exact) ? count(exact) : label(low, limit), part = number / all;
    rows.push(element("tr", undefined, {}, element("th", `${name} ${unit}`.trim(), {scope: "row"}),
      element("td", undefined, {}, bar(part, name)), element("td", part < 0.1 ? `${(100 * part).toFixed(1)} %` : percent(part))));
  });
  return element("section", undefined, {}, element("h2", title), element("table", undefined, {class: "histogram"}, ...rows));
}

function showHistograms(status) {
  const there = Object.keys(HISTOGRAMS).filter(name => status.histograms[name]);
  at("histograms").replaceChildren(...there.map(name =>
    histogram(HISTOGRAMS[name], status.histograms[name], name === "batch_rows" ? status.progress.batch_rows : undefined)));
}

// ---- workers ----

const COLUMNS = [["Worker", w => `${w.role} ${w.worker}`], ["State", w => w.state], ["Host", w => w.host_name],
  ["Process", w => known(w.pid) ? String(w.pid) : ""], ["Restarts", w => count(w.restarts)], ["Per s", w => count(w.work_per_s)],
  ["Queue", w => count(w.queue)], ["Wait", w => time(w.wait_s)], ["Stale", w => count(w.staleness)],
  ["CPU", w => percent(w.cores)], ["Memory", w => bytes(w.resident_bytes)]];

function showWorkers(status) {
  const shown = COLUMNS.filter(([, value]) => status.workers.some(worker => value(worker) !== ""));
  at("titles").replaceChildren(...shown.map(([name]) => element("th", name, {scope: "col"})));
  at("workers").replaceChildren(...status.workers.map(worker => element("tr", undefined, {"data-worker": worker.worker},
    ...shown.map(([name, value]) => element("td", value(worker),
      name === "State" ? {"data-name": name, class: worker.state === "running" ? "good" : "wait"} : {"data-name": name})))));
}

// ---- the stream ----

function show(event) {
  newest = event.status;
  showHead(event.status);
  showProgress(event.status);
  showFigures(event.status);
  showCurves();
  showWorkers(event.status);
  showHistograms(event.status);
  showEvents();
  at("log").textContent = event.lines.join("\n");
  at("orders").hidden = !event.orders;
}

const GOOD_ENDS = {solved: "The run has reached its goal.", finished: "The run has finished.", stopped: "The run was stopped; --resume goes on."};

function showEnd({state, reason, sum}, listen) {
  const again = element("button", "Look again", {type: "button"});
  again.addEventListener("click", () => { at("end").hidden = true; listen(); });
  showState(state, mood(state));
  showProgress({...newest, progress: {...newest.progress, eta_s: null}});
  document.title = document.title.replace(/ – .*/, ` – ${state}`);
  const words = GOOD_ENDS[state] ?? "The run has failed.";
  at("end").replaceChildren(element("strong", words, {class: mood(state)}), ` ${sum}${reason ? ` — ${reason}` : ""} `, again);
  at("end").hidden = false;
  at("orders").hidden = true;
}

function listen() {
  const stream = new EventSource(beside("events"));
  stream.addEventListener("begin", message => {
    const event = JSON.parse(message.data);
    log = new Log(event);
    at("job").textContent = JSON.stringify(event.job, null, 2);
    show(event);
  });
  stream.addEventListener("tick", message => {
    const event = JSON.parse(message.data);
    log.take(event);
    show(event);
  });
  stream.addEventListener("end", message => {
    stream.close();
    showEnd(JSON.parse(message.data), listen);
  });
  stream.onerror = () => {
    showState("no answer: the run was killed, or cannot be reached", "bad");
    if (stream.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
  };
}

// ---- orders ----

function offer(id, question) {
  at(id).addEventListener("click", async () => {
    if (!confirm(question)) return;
    at(id).disabled = true;
    try {
      const answer = await fetch(beside(id), {method: "POST"});
      if (!answer.ok) alert(`${answer.status}: ${await answer.text()}`);
    } catch (problem) {
      alert(`no answer: ${problem.message}`);
    }
    at(id).disabled = false;
  });
}

offer("stop", "Stop the run? It finishes its round, and --resume goes on from there.");
offer("checkpoint", "Take a checkpoint now?");
listen();
