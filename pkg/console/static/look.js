// One coupon, or one user: can it be used, why not, and what happened.
import { $, el, fill, table } from "./dom.js";
import { Refused, ask } from "./net.js";
import { ago, count, full, money, sums, worth } from "./format.js";
import { named } from "./templates.js";
import { t } from "./words.js";

let shown = null; // {kind, id, data, more}
let asking = null;

const when = (text) => el("time", { datetime: text }, full(new Date(text)));
const told = (text) => full(new Date(text));

// sentence says in plain words whether it can be used.
export function sentence(w, now, currency) {
  const from = (text) => [told(text), ago(new Date(text), now)];
  switch (w.code) {
    case "usable": {
      const parts = [w.until ? t("why.usable", ...from(w.until)) : t("why.usable.never")];
      if (w.minimum) parts.push(t("why.minimum", money(w.minimum, currency)));
      if (w.scopes.length) parts.push(t("why.scopes", w.scopes.join(", ")));
      return parts.join(" ");
    }
    case "not_yet_valid": return t("why.not_yet_valid", ...from(w.at));
    case "ended": return t(w.paused ? "why.ended.paused" : "why.ended", ...from(w.at));
    case "expired": return w.at && new Date(w.at) > now ? t("why.expired.early", ...from(w.at), t("cause." + w.cause)) : t("why.expired", ...from(w.at || now));
    case "locked": return t("why.locked", w.order, ...from(w.until));
    case "used": return t("why.used", w.order, ...from(w.at));
    case "voided": return t("why.voided", w.actor || t("unknown"), w.at ? told(w.at) : t("unknown"), w.reason || t("unknown"));
    case "observed": return t("why.observed");
    default: return w.code;
  }
}

function stepName(s) {
  if (s.from === "") return t("step.grant");
  if (s.from === s.to) {
    if (s.previous_expires_at || (s.to !== "locked")) return t("step.moved", s.previous_expires_at ? told(s.previous_expires_at) : t("fact.never"), s.expires_at ? told(s.expires_at) : t("fact.never"));
    return t("step.renewed") + " · " + t("step.locked", told(s.lock_until));
  }
  switch (s.to) {
    case "locked": return t("step.locked", told(s.lock_until));
    case "unused": return t(s.from === "locked" ? "step.released" : s.from === "used" ? "step.refunded" : "step.reinstated");
    default: return t("step." + s.to);
  }
}

function step(s) {
  const about = [t("cause", t("cause." + s.cause))];
  if (s.order_id) about.push(t("step.order", s.order_id));
  if (s.actor) about.push(t("step.by", s.actor));
  if (s.reason) about.push(s.reason);
  return el("li", {}, when(s.at), el("strong", {}, stepName(s)), el("span", { class: "note" }, about.join(" · ")));
}

function drawCoupon(x) {
  const c = x.coupon, now = new Date(x.now);
  const rows = [];
  const add = (name, ...value) => rows.push(el("dt", {}, name), el("dd", {}, value));
  add(t("fact.state"), t("state." + c.state), c.state !== c.stored_state ? el("span", { class: "tag" }, t("fact.stored", t("state." + c.stored_state))) : null, c.archived ? el("span", { class: "tag" }, t("fact.archived")) : null, c.observed ? el("span", { class: "tag" }, t("fact.observed")) : null);
  add(t("fact.user"), el("button", { type: "button", class: "link", onclick: () => look("user", c.user_id) }, c.user_id));
  add(t("fact.template"), x.template + " (#" + c.template_id + ", " + t("revision", c.revision) + ")", x.template_stopped ? el("span", { class: "tag" }, t("fact.stopped")) : null);
  add(t("fact.value"), worth(c.offer, c.value, c.currency));
  add(t("fact.granted"), when(c.granted_at));
  if (new Date(c.valid_from) > new Date(c.granted_at)) add(t("fact.valid"), when(c.valid_from));
  add(t("fact.ends"), c.expires_at ? when(c.expires_at) : t("fact.never"));
  if (x.due_at && c.expires_at && new Date(x.due_at) > new Date(c.expires_at)) add(t("fact.due"), when(x.due_at));
  if (c.order_id) add(t("fact.order"), c.order_id);
  if (c.state === "locked" && c.lock_until) add(t("fact.lock"), when(c.lock_until));
  if (c.batch_id) add(t("fact.batch"), c.batch_id);
  if (x.grant_key) add(t("fact.grant"), x.grant_key + (x.issuer ? " (" + x.issuer + ")" : ""));
  if (x.outbox) add(t("fact.outbox"), t("fact.outbox.n", count(x.outbox)));
  if (x.beyond_horizon) add(t("fact.beyond"), t("fact.beyond.text"));
  answer(sentence(x.why, now, c.currency), x.why.usable ? "good" : "bad");
  fill($("look-out"), el("div", { class: "found" },
    el("div", {}, el("dl", { id: "look-facts" }, rows)),
    el("div", {}, el("h3", {}, t("timeline")), el("ol", { class: "timeline", id: "timeline" }, x.steps.map(step)))));
}

function drawUser(x) {
  const now = new Date(x.now);
  const s = x.summary;
  const parts = [];
  if (x.coupons.length === 0) parts.push(t("user.none", x.user_id));
  else if (s && s.usable === 0) parts.push(t("user.unusable", x.user_id));
  else if (s) {
    parts.push(t("user.sum", x.user_id, (s.more ? "≥ " : "") + count(s.usable), count(s.ending), sums(s.value)));
    if (s.next_end) parts.push(t("user.next", told(s.next_end), ago(new Date(s.next_end), now)));
  }
  answer(parts.join(" "), "");
  if (x.coupons.length === 0) { fill($("look-out")); return; }
  fill($("look-out"),
    el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": t("user.coupons") }, table(t("user.coupons"),
      [{ text: t("col.coupon") }, { text: t("col.why") }, { text: t("col.ends") }, { text: t("col.value"), number: true }, { text: t("col.template") }],
      x.coupons.map((c) => [
        el("button", { type: "button", class: "link", "data-coupon": c.coupon_id, onclick: () => look("coupon", c.coupon_id) }, c.coupon_id),
        el("span", { class: "state" + (c.why.usable ? " usable" : "") }, t("short." + c.why.code)),
        c.expires_at ? when(c.expires_at) : t("fact.never"), worth(c.offer, c.value, c.currency), named(c.template_id)]))),
    x.next ? el("div", { class: "act" }, el("button", { type: "button", class: "plain", id: "look-more", onclick: more }, t("user.more"))) : null);
}

async function more(event) {
  event.target.disabled = true;
  const before = shown;
  try {
    const x = await ask("user", { id: before.id, after: before.data.next });
    if (shown !== before) return;
    shown.data = { ...before.data, coupons: [...before.data.coupons, ...x.coupons], next: x.next };
    drawUser(shown.data);
    const buttons = document.querySelectorAll("[data-coupon]");
    (buttons[before.data.coupons.length] || buttons[0]).focus();
  } catch (e) { refused(e); }
}

function answer(text, mood) {
  $("look-answer").className = "answer" + (mood ? " " + mood : "");
  $("look-answer").textContent = text;
}

let refused = () => {};
export function onRefused(f) { refused = (e) => { if (!f(e)) answer(t("look.bad", e.message), "bad"); }; }

// look asks, and shows what is answered.
export async function look(kind, id) {
  $("look-kind").value = kind;
  $("look-id").value = id;
  if (asking) asking.abort();
  const mine = asking = new AbortController();
  shown = null;
  fill($("look-out"));
  if (kind === "coupon" && !/^\d+$/.test(id)) { answer(t("look.number", id), "bad"); return; }
  answer(t("look.busy"), "");
  try {
    const data = await ask(kind, { id }, undefined, mine.signal);
    if (asking !== mine) return;
    shown = { kind, id, data };
    draw();
    $("look-answer").focus({ preventScroll: true });
    $("look-answer").scrollIntoView({ block: "nearest" });
  } catch (e) {
    if (asking !== mine || e.name === "AbortError") return;
    if (e instanceof Refused && (e.status === 404 || (kind === "coupon" && e.status === 400))) answer(t("look.nothing", id), "bad");
    else refused(e);
  }
}

function draw() {
  if (shown === null) return;
  if (shown.kind === "coupon") drawCoupon(shown.data);
  else drawUser(shown.data);
}

export const again = draw;

export function clear() {
  if (asking) asking.abort();
  shown = null;
  $("look-id").value = "";
  answer("", "");
  fill($("look-out"));
}

$("look-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const id = $("look-id").value.trim();
  if (id) look($("look-kind").value, id);
});
