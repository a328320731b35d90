// Numbers for people, and elements of the page. Text is always set as text: a log may quote anything.

export const known = value => typeof value === "number" && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return "";
  for (const [least, scale, unit] of [[1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
    if (value >= least) return `${(value / scale).toFixed(1)} ${unit}`;
  return value < 10 && value % 1 ? value.toFixed(2) : value.toFixed(0);
}

export function time(seconds) {
  if (!known(seconds)) return "";
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(1)} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${(seconds / 60).toFixed(0)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
}

export function bytes(value) {
  if (!known(value)) return "";
  return value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${(value / 2 ** 20).toFixed(1)} MiB`;
}

export const fixed = (value, digits) => known(value) ? value.toFixed(digits) : "";
export const percent = share => known(share) ? `${(100 * share).toFixed(0)} %` : "";

// With four digits, short enough for an axis.
export function short(value) {
  if (!known(value)) return "";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3).replace("+", "").replace(/\.?0+e/, "e");
  return Number(value.toPrecision(size >= 1000 ? 6 : 4)).toString();
}

// 3661 is "1:01:01".
export function clock(seconds) {
  const whole = Math.round(Math.abs(seconds)), two = part => String(part).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return (hours > 0 ? `${hours}:${two(minutes)}` : `${minutes}`) + `:${two(whole % 60)}`;
}

// A time since a beginning.
export const moment = seconds => seconds < 120 ? `${Number(seconds.toFixed(1))} s` : clock(seconds);

export function day(unix_s) {
  if (!known(unix_s)) return "";
  const at = new Date(unix_s * 1000), two = part => String(part).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}`;
}

// How much of /stop is done; "" where it is not known. `p`: unit, done, total.
export function done(p) {
  if (!p || !p.unit || !known(p.done)) return "";
  const all = known(p.total) ? ` of ${count(p.total)}` : "";
  return `${count(p.done)}${all} ${p.unit}s`;
}
export const share = p => p && known(p.total) && known(p.done) ? Math.min(1, p.done / p.total) : undefined;

export function element(name, text, attributes = {}, ...children) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = text;
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  made.append(...children);
  return made;
}

// A bar for a share of 0 to 1.
export function bar(value, label) {
  const made = element("progress", undefined, {max: 1, "aria-label": label});
  if (known(value)) made.value = value;
  return made;
}

export const at = id => document.getElementById(id);

// Of a document beside this page. A page's own address may hold the token, and fetch takes no such address.
export const beside = name => new URL(name, location.origin + location.pathname);

// "solved" and "finished" are good ends, "failed" and "died" are bad ones.
export function mood(state) {
  if (["training", "running", "solved", "finished"].includes(state) || state.startsWith("evaluating")) return "good";
  return ["failed", "died", "failing"].includes(state) ? "bad" : "wait";
}
