// Coupons by template and state.
import { $, el, renew, table } from "./dom.js";
import { count, worth } from "./format.js";
import { t } from "./words.js";

let last = null;

export function draw(x) {
  last = x;
  if (x.templates.length === 0) {
    renew($("templates"), [], () => el("p", {}, t("templates.none")));
    $("templates-note").textContent = "";
    return;
  }
  const number = (key) => ({ text: t(key), number: true });
  renew($("templates"), x.templates, () => table(t("templates"),
    [{ text: t("col.template") }, number("col.value"), number("col.granted"), number("col.unused"), number("col.locked"), number("col.used"), number("col.expired"), number("col.voided")],
    x.templates.map((m) => [
      el("span", { "data-template": m.template_id }, m.name, " ", el("span", { class: "note" }, "#" + m.template_id), m.stopped ? el("span", { class: "tag" }, t("templates.stopped")) : null),
      worth(m.offer, m.value, m.currency), count(m.granted), count(m.unused), count(m.locked), count(m.used), count(m.expired), count(m.voided)])));
  $("templates-note").textContent = t("templates.note", x.more ? t("templates.more", count(x.templates.length)) : "");
}

// named is a template as people know it, if it is one of those that are shown.
export function named(id) {
  const m = last && last.templates.find((x) => x.template_id === id);
  return m ? m.name + " #" + id : "#" + id;
}

export function again() { if (last) draw(last); }
