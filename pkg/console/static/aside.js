// What was set aside: look through it, choose, and replay, which asks who and why first.
import { $, el, fill, table } from "./dom.js";
import { Refused, ask } from "./net.js";
import { count, seconds } from "./format.js";
import { t } from "./words.js";

let last = null;
let operator = false;
let picked = new Set();
let refused = () => false;
export const onRefused = (f) => { refused = f; };

function result(text, mood) {
  $("parked-result").className = "answer" + (mood ? " " + mood : "");
  $("parked-result").textContent = text;
}

export function allow(ops) {
  operator = ops;
  $("parked-look").hidden = !ops;
  if (ops && !last) fill($("parked-out"));
  if (!ops) fill($("parked-out"), el("p", { class: "note" }, t("parked.ops")));
}

async function lookThrough() {
  const button = $("parked-look");
  button.disabled = true;
  try {
    last = await ask("parked");
    picked = new Set([...picked].filter((ref) => last.items.some((p) => p.ref === ref)));
    draw();
  } catch (e) {
    if (!refused(e)) result(t("parked.wrong", e.message), "bad");
  } finally { button.disabled = false; }
}

function choose(ref, on) {
  if (on) picked.add(ref); else picked.delete(ref);
  const button = $("parked-replay");
  button.disabled = picked.size === 0;
  button.textContent = t("parked.replay", count(picked.size));
}

function draw() {
  if (!last) return;
  $("parked-look").textContent = t("parked.again");
  const found = el("p", { class: "note" }, t("parked.found", count(last.found), count(last.looked_through), seconds(new Date(last.read_at))) + (last.more ? " " + t("parked.more") : ""));
  if (last.items.length === 0) { picked.clear(); fill($("parked-out"), found); return; }
  const place = (p) => t("place." + p);
  const region = (label, node) => el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label }, node);
  const all = el("input", { type: "checkbox", id: "parked-all", "aria-label": t("parked.all"), checked: last.items.every((p) => picked.has(p.ref)), onchange: (e) => {
    for (const box of document.querySelectorAll("#parked-out input[data-ref]")) { box.checked = e.target.checked; choose(box.dataset.ref, e.target.checked); }
  } });
  fill($("parked-out"), found,
    el("h3", {}, t("parked.counts")),
    region(t("parked.counts"), table(t("parked.counts"), [{ text: t("col.reason") }, { text: t("col.place") }, { text: t("col.origin") }, { text: t("col.n"), number: true }],
      last.counts.map((c) => [c.reason, place(c.place), c.origin || t("unknown"), count(c.n)]))),
    el("h3", {}, t("parked.items")),
    region(t("parked.items"), table(t("parked.items"), [{ text: all }, { text: t("col.reason") }, { text: t("col.place") }, { text: t("col.origin") }, { text: t("col.message") }, { text: t("col.ref") }],
      last.items.map((p) => [
        el("input", { type: "checkbox", "data-ref": p.ref, "aria-label": t("parked.pick", p.ref), checked: picked.has(p.ref), onchange: (e) => choose(p.ref, e.target.checked) }),
        p.reason, place(p.place), p.origin || t("unknown"), p.message_id, el("code", {}, p.ref)]))),
    el("p", { class: "note" }, t("parked.whole")),
    el("div", { class: "act" }, el("button", { type: "button", id: "parked-replay", onclick: open }, "")));
  choose("", false);
}

function open() {
  $("replay-text").textContent = t("replay.text", count(picked.size));
  $("replay-wrong").textContent = "";
  $("replay-reason").value = "";
  $("replay-go").disabled = false;
  $("replay-go").textContent = t("replay.go");
  $("replay").showModal();
}

async function replay(event) {
  event.preventDefault();
  $("replay-go").disabled = true;
  $("replay-go").textContent = t("replay.busy");
  $("replay-wrong").textContent = "";
  try {
    const x = await ask("parked/replay", null, { refs: [...picked].slice(0, 100), actor: $("replay-actor").value.trim(), reason: $("replay-reason").value.trim() });
    picked.clear();
    $("replay").close();
    result(t("parked.done", count(x.replayed), count(x.asked)) + (x.stay.length ? " " + t("parked.stay", x.stay.join("; ")) : ""), x.replayed === x.asked ? "good" : "bad");
    await lookThrough();
    $("parked-result").focus();
  } catch (e) {
    $("replay-go").disabled = false;
    $("replay-go").textContent = t("replay.go");
    if (e instanceof Refused && refused(e)) { $("replay").close(); return; }
    $("replay-wrong").textContent = t("parked.failed", e.message);
  }
}

$("parked-look").addEventListener("click", () => { result("", ""); lookThrough(); });
$("replay-form").addEventListener("submit", replay);
$("replay-cancel").addEventListener("click", () => $("replay").close());

export function again() {
  allow(operator);
  draw();
}

export function clear() {
  last = null;
  picked.clear();
  result("", "");
  fill($("parked-out"));
  $("parked-look").textContent = t("parked.look");
  if ($("replay").open) $("replay").close();
}
