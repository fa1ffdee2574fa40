// What is going on now: figures, charts of the last minutes, outbox, planner, fleet, pauses.
import { $, el, fill, renew, table, toggle } from "./dom.js";
import { Chart } from "./charts.js";
import { count, decimal, full, milliseconds, seconds, span } from "./format.js";
import { has, t } from "./words.js";

let last = null;

const capped = (n, limit) => (n >= limit ? "≥ " : "") + count(n);
const sum = (queues, role) => queues.filter((q) => q.role === role).reduce((n, q) => n + q.messages, 0);

const rates = new Chart($("rates-chart"), (past) => two(past, "issued", "expired"));
const queues = new Chart($("queues-chart"), (past) => two(past, "waiting", "due"));

function two(past, one, other) {
  const now = past.length ? past[past.length - 1] : { [one]: 0, [other]: 0, at: Date.now() };
  const to = Math.ceil(now.at / 1000);
  const digits = one === "issued" ? decimal : count;
  return {
    data: [past.map((p) => p.at / 1000), past.map((p) => p[one]), past.map((p) => p[other])],
    series: [{ label: t("series." + one), colour: "--one" }, { label: t("series." + other), colour: "--two" }],
    whole: one === "waiting",
    range: [Math.min(to - 120, Math.max(to - 1200, Math.floor((past.length ? past[0].at : now.at) / 1000))), to], label: t(one === "issued" ? "chart.rates" : "chart.queues", digits(now[one]), digits(now[other])),
  };
}

const show = (hidden) => t(hidden ? "table.show" : "table.hide");
const sayings = [toggle($("rates-toggle"), $("rates-table"), show), toggle($("queues-toggle"), $("queues-table"), show)];
$("rates-toggle").addEventListener("click", () => last && tables(last.past));
$("queues-toggle").addEventListener("click", () => last && tables(last.past));

function tables(past) {
  const recent = past.slice(-24).reverse();
  const rows = (...keys) => recent.map((p) => [seconds(new Date(p.at)), ...keys.map((k) => (k === "p99_ms" ? milliseconds(p[k]) : k === "waiting" || k === "due" ? count(p[k]) : decimal(p[k])))]);
  const heads = (...keys) => [{ text: t("col.time") }, ...keys.map((k) => ({ text: t(k), number: true }))];
  if (!$("rates-table").hidden) fill($("rates-table"), table(t("rates"), heads("series.issued", "series.expired", "col.p99"), rows("issued", "expired", "p99_ms")));
  if (!$("queues-table").hidden) fill($("queues-table"), table(t("queues"), heads("series.waiting", "series.due"), rows("waiting", "due")));
}

function tile(id, name, value, note, bad) {
  return el("div", { id: "tile-" + id, class: bad ? "bad" : null }, el("dt", {}, name), el("dd", {}, value), el("dd", { class: "sub" }, note));
}

function tiles(x) {
  const s = x.status;
  const away = !s.broker.reachable;
  const rows = s.outbox.reduce((n, l) => n + l.rows, 0);
  const oldest = Math.max(0, ...s.outbox.map((l) => l.oldest_ms));
  const paused = s.paused.some((p) => p.what === "expiry" && p.scope === ""); // which is told by itself
  const aside = sum(s.broker.queues, "parked") + sum(s.broker.queues, "unroutable") + s.outbox_parked;
  fill($("tiles"),
    tile("waiting", t("tile.waiting"), away ? "–" : count(s.broker.waiting), t("tile.waiting.note"), away),
    tile("due", t("tile.due"), away ? "–" : count(x.due), t("tile.due.note"), away),
    tile("issued", t("tile.issued"), t("tile.rate", decimal(s.rates_per_second.issued)), t("tile.window")),
    tile("expired", t("tile.expired"), t("tile.rate", decimal(s.rates_per_second.expired)), t("tile.window")),
    tile("late", t("tile.late"), s.lateness.expired ? milliseconds(s.lateness.p50_ms) + " / " + milliseconds(s.lateness.p99_ms) : "–",
      s.lateness.expired ? t("tile.late.note", count(s.lateness.expired)) : t("tile.late.none"), s.lateness.p99_ms > 2048),
    tile("overdue", t("tile.overdue"), s.overdue.coupons ? capped(s.overdue.coupons, 10000) : "0", s.overdue.coupons ? t("tile.overdue.note", span(s.overdue.oldest_seconds)) : t("none"), s.overdue.coupons > 0 && !paused),
    tile("outbox", t("tile.outbox"), capped(rows, 100000), rows ? t("tile.outbox.note", milliseconds(oldest)) : t("none"), oldest > 60000),
    tile("planner", t("tile.planner"), span(s.planner.lag_seconds), s.planner.horizon_seconds ? t("tile.planner.horizon", span(s.planner.horizon_seconds)) : t("tile.planner.unlimited"), s.planner.lag_seconds > 120));
  fill($("parked-sum"), aside === 0 && !away ? t("parked.zero")
    : t("parked.sum", away ? "–" : count(sum(s.broker.queues, "parked")), away ? "–" : count(sum(s.broker.queues, "unroutable")), capped(s.outbox_parked, 100000)));
}

const pauseName = (p) => t("pause." + p.what) + " · " + t("scope." + p.scope, p.id);

function attention(x) {
  const notes = x.notes || [];
  $("attention").hidden = notes.length === 0;
  const local = (text) => text.replace(/\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z/g, (at) => full(new Date(at)))
    .replace(/\b(?:(\d+)h)?(?:(\d+)m)?(\d+(?:\.\d+)?)s\b/g, (_, h, m, s) => span((h || 0) * 3600 + (m || 0) * 60 + Number(s)));
  const paused = x.status.paused.map((p) => pauseName(p)); // their notes come in the same order
  const values = (n) => (n.code === "paused" && paused.length ? [paused.shift(), ...n.values.slice(1)] : n.values);
  const texts = notes.map((n) => local(has("note." + n.code) ? t("note." + n.code, ...values(n)) : n.text));
  const list = $("attention-list");
  if (texts.join("\n") !== [...list.children].map((c) => c.textContent).join("\n")) fill(list, texts.map((text) => el("li", {}, text)));
  $("health").hidden = false;
  $("health").classList.toggle("bad", !x.status.healthy);
  $("health-text").textContent = t(x.status.healthy ? "healthy" : "unhealthy");
}

function pipeline(s) {
  const rows = [];
  const add = (name, value) => rows.push(el("div", {}, el("dt", {}, name), el("dd", {}, value)));
  add(t("pipe.broker"), t(s.broker.reachable ? "pipe.broker.ok" : "pipe.broker.away"));
  add(t("pipe.mechanism"), s.mechanism);
  for (const l of s.outbox) add(t("pipe." + l.lane), l.rows ? t("pipe.oldest", capped(l.rows, 100000), milliseconds(l.oldest_ms)) : t("pipe.rows", "0"));
  add(t("pipe.parked"), t("pipe.rows", capped(s.outbox_parked, 100000)));
  add(t("pipe.planner"), t("pipe.planner.text", span(s.planner.lag_seconds)));
  for (const r of s.planner.reminders) add(t("pipe.remind", r.offset), t("pipe.planner.text", span(r.lag_seconds)));
  add(t("pipe.locks"), t("pipe.locks.text", capped(s.locks.locked, 100000), capped(s.locks.run_out, 100000)));
  add(t("pipe.sweep"), t("pipe.sweep.text", count(s.sweep.recovered), count(s.sweep.skipped)) + (s.sweep.modes.length ? " (" + s.sweep.modes.map((m) => t("mode." + m)).join(", ") + ")" : ""));
  add(t("pipe.clock"), t("pipe.clock.text", milliseconds(Math.abs(s.clock.worst_offset_ms)), count(s.clock.stopped)));
  add(t("pipe.drain"), s.drain_per_second ? t("tile.rate", count(Math.round(s.drain_per_second))) : t("unknown"));
  add(t("pipe.bottleneck"), s.bottleneck ? s.bottleneck.party + ": " + s.bottleneck.stage + " (" + t("pipe.stages", decimal(s.bottleneck.slowness)) + ")" : t("none"));
  fill($("pipeline"), rows);
  renew($("fleet"), s.fleet.map((p) => [p.pod, p.version, p.alive ? 0 : p.silent_ms]), () => s.fleet.length === 0 ? el("p", {}, t("fleet.none"))
    : table(t("fleet"), [{ text: t("col.process") }, { text: t("col.role") }, { text: t("col.version") }, { text: t("col.heard") }],
      s.fleet.map((p) => [p.pod, p.role, p.version, p.alive ? t("heard.now") : t("heard.silent", span(p.silent_ms / 1000))])));
}

// resume is what a person types; ids are quoted unless they are plain.
const resume = (p) => ["lapsectl resume", p.what, p.scope ? "--" + p.scope + " " + (/^[\w.:-]+$/.test(p.id) ? p.id : "'" + p.id.replaceAll("'", "'\\''") + "'") : "", '--reason "…"'].filter(Boolean).join(" ");

function pauses(list) {
  renew($("paused"), list, () => list.length === 0 ? [el("p", {}, t("paused.none"))] : [el("div", { class: "scroll", role: "region", tabindex: 0, "aria-labelledby": "paused-title" },
    table(t("paused"), [{ text: t("paused.what") }, { text: t("paused.since") }, { text: t("paused.by") }, { text: t("paused.why") }],
      list.map((p) => [pauseName(p), full(new Date(p.since)), p.actor || t("unknown"), p.reason || t("unknown")]))),
  el("p", { class: "note" }, t("paused.note")), ...list.map((p) => el("p", {}, el("code", {}, resume(p))))]);
}

export function draw(x, every) {
  last = x;
  tiles(x);
  attention(x);
  pipeline(x.status);
  pauses(x.status.paused);
  rates.draw(x.past);
  queues.draw(x.past);
  tables(x.past);
  $("fresh").hidden = false;
  $("fresh").classList.remove("bad");
  $("fresh").textContent = t("fresh", seconds(new Date(x.read_at)), span(every / 1000));
}

export function stale(why) {
  $("fresh").hidden = false;
  $("fresh").classList.add("bad");
  $("fresh").textContent = t("stale", last ? seconds(new Date(last.read_at)) : "–", why);
}

export function again(every) {
  for (const say of sayings) say();
  for (const [id, one, other] of [["rates", "issued", "expired"], ["queues", "waiting", "due"]]) {
    fill($(id + "-legend"), el("span", {}, t("series." + one)), el("span", { class: "two" }, t("series." + other)));
  }
  rates.again();
  queues.again();
  if (last) draw(last, every);
}
