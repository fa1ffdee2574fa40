// What expires when, and at the next midnight.
import { $, el, fill, table, toggle } from "./dom.js";
import { Chart } from "./charts.js";
import { ago, atLeast, clock, count, date, decimal, seconds, span, sums, zone } from "./format.js";
import { t } from "./words.js";

let last = null;
let night = null;

export const chosen = () => document.querySelector('input[name="span"]:checked').value;
export const every = () => ({ "60m": 15000, "24h": 60000, "30d": 120000 })[chosen()];
const at = (text) => new Date(text).getTime() / 1000;
const partial = (b) => b.counted !== "all";

const chart = new Chart($("forecast-chart"), (f) => {
  const size = Math.max(1, ...f.buckets.map((b) => at(b.end) - at(b.start)));
  return {
    data: [f.buckets.map((b) => at(b.end) - size), f.buckets.map((b) => (b.counted === "not" ? null : b.unused + b.locked)), f.buckets.map((b) => (b.counted === "not" ? null : b.locked))],
    series: [{ label: t("series.unused"), colour: "--one" }, { label: t("col.locked"), colour: "--two" }],
    range: [at(f.buckets[0].end) - size, at(f.to)], bars: true, whole: true,
    label: t("chart.forecast", atLeast(f.unused + f.locked, !f.complete), t("span." + chosen())),
    point: (x) => caption(f, x === null ? null : f.buckets.find((b) => at(b.end) > x && at(b.end) - size <= x)),
  };
});

const between = (b) => {
  const from = new Date(b.start), to = new Date(b.end);
  return to - from > 7200e3 ? date(from) + " " + clock(from) + "–" + date(to) + " " + clock(to) : date(from) + " " + clock(from) + "–" + clock(to);
};

function caption(f, b) {
  const notes = [f.complete ? "" : t("forecast.partial"), chosen() === "30d" ? t("forecast.utc") : ""].filter(Boolean).join(" ");
  $("forecast-caption").textContent = b ? t("read.bucket", between(b), atLeast(b.unused + b.locked, partial(b)), sums(b.value)) : f.complete && f.unused + f.locked === 0 ? t("forecast.empty", seconds(new Date(last.read_at)), t("span." + chosen())) : t("forecast.caption", seconds(new Date(last.read_at)), notes);
}

const say = toggle($("forecast-toggle"), $("forecast-table"), (hidden) => t(hidden ? "table.show" : "table.hide"));
$("forecast-toggle").addEventListener("click", () => last && rows(last.forecast));

function rows(f) {
  if ($("forecast-table").hidden) return;
  fill($("forecast-table"), table(t("forecast"),
    [{ text: t("col.from") }, { text: t("col.unused"), number: true }, { text: t("col.locked"), number: true }, { text: t("col.value"), number: true }, { text: t("col.drain"), number: true }, { text: t("col.peak"), number: true }],
    f.buckets.map((b) => (b.counted === "not" ? [between(b), t("col.not"), "", "", "", ""]
      : [between(b), atLeast(b.unused, partial(b)), atLeast(b.locked, partial(b)), sums(b.value), span(b.drain_seconds), b.peak_at ? count(b.peak_coupons) + " · " + seconds(new Date(b.peak_at)) : "–"]))));
}

function fact(id, name, value, note) {
  return el("div", { id: "fact-" + id }, el("dt", {}, name), el("dd", {}, value), note ? el("dd", { class: "sub" }, note) : null);
}

export function draw(x) {
  last = x;
  const f = x.forecast;
  const capped = !f.complete;
  const rate = f.drain.per_second;
  const full = f.buckets.reduce((a, b) => (b.peak_coupons > (a ? a.peak_coupons : 0) ? b : a), null);
  fill($("forecast-facts"),
    fact("unused", t("forecast.total") + " · " + t("span." + chosen()), atLeast(f.unused, capped)),
    fact("locked", t("forecast.locked"), atLeast(f.locked, capped), f.locked ? t("forecast.locked.note") : null),
    fact("value", t("forecast.value"), (capped ? "≥ " : "") + sums(f.value)),
    fact("drain", t("forecast.drain"), rate ? span(f.unused / rate) : "–", rate ? t("forecast.drain.note", decimal(rate, 0), t("source." + f.drain.source), count(f.drain.pods)) : t("forecast.drain.unknown")),
    fact("peak", t("forecast.peak"), full ? count(full.peak_coupons) : "–", full ? t("forecast.peak.note", date(new Date(full.peak_at)) + " " + seconds(new Date(full.peak_at)), span(full.peak_lateness_seconds)) : null));
  chart.draw(f);
  caption(f, null);
  rows(f);
}

export function waiting() {
  if (last === null) $("forecast-caption").textContent = t("forecast.reading");
}

export function failed(why) {
  $("forecast-caption").textContent = t("forecast.failed", why);
}

export function drawMidnight(x) {
  night = x;
  const f = x.forecast;
  const n = f.unused + f.locked;
  const drain = f.drain.per_second ? f.unused / f.drain.per_second : 0;
  const from = new Date(f.from);
  fill($("midnight"),
    el("p", { class: "head2" }, t("midnight", zone(), ago(from, Date.now()))),
    el("strong", { id: "midnight-n" }, n ? t("midnight.n", atLeast(n, !f.complete)) : t("midnight.none")),
    n ? el("p", { id: "midnight-note", class: "note" }, t("midnight.note", sums(f.value), span(drain)) + (f.locked ? " · " + t("midnight.locked", count(f.locked)) : "")) : null);
}

export function again() {
  say();
  fill($("forecast-legend"), el("span", {}, t("series.unused")), el("span", { class: "two" }, t("series.locked")));
  chart.again();
  if (last) draw(last);
  if (night) drawMidnight(night);
}

// forget is for another span: what is shown is not of it.
export function forget() {
  last = null;
  waiting();
}

