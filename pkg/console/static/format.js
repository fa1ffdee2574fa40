// Numbers, sums and times as the reader's language writes them.
/* global uPlot */
import { language, t } from "./words.js";

export const count = (n) => new Intl.NumberFormat(language()).format(n);
export const decimal = (n, digits = 1) => new Intl.NumberFormat(language(), { maximumFractionDigits: digits, minimumFractionDigits: n > 0 && n < 10 ? 1 : 0 }).format(n);
export const short = (n) => new Intl.NumberFormat(language(), { notation: "compact", maximumFractionDigits: 1 }).format(n);
export const atLeast = (n, capped) => (capped ? "≥ " : "") + count(n);

// money of minor units.
export function money(minor, currency) {
  try {
    const f = new Intl.NumberFormat(language(), { style: "currency", currency });
    return f.format(minor / 10 ** f.resolvedOptions().maximumFractionDigits);
  } catch { return count(minor) + " " + currency; }
}

// worth is what a coupon takes off: its value, or a part of what is bought.
export function worth(offer, value, currency) {
  if (!offer || offer.kind !== "percent") return money(value, currency);
  const off = t("worth.percent", new Intl.NumberFormat(language(), { style: "percent", maximumFractionDigits: 2 }).format(offer.basis_points / 10000));
  return offer.cap ? off + ", " + t("worth.cap", money(offer.cap, currency)) : off;
}

export function sums(value) {
  const currencies = Object.keys(value || {}).sort();
  return currencies.length === 0 ? "0" : currencies.map((c) => money(value[c], c)).join(" + ");
}

// span of seconds in at most two units.
export function span(seconds) {
  const s = Math.abs(seconds);
  if (s > 0 && s < 1) return Math.max(1, Math.round(s * 1000)) + " ms";
  if (s < 10 && s % 1 !== 0) return decimal(s) + " s";
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  let rest = Math.round(s);
  const parts = [];
  for (const [size, name] of units) {
    const n = Math.floor(rest / size);
    if (n > 0 || (size === 1 && parts.length === 0)) parts.push(n + " " + t("unit." + name));
    rest -= n * size;
    if (parts.length === 2 || (parts.length === 1 && size === 1)) break;
  }
  return parts.join(" ");
}

export const milliseconds = (ms) => ms <= 0 ? "0 ms" : ms < 1000 ? Math.round(ms) + " ms" : span(ms / 1000);

// Where times are told: in the zone that the publisher names, or else in the browser's.
let place;
export function tellIn(name) {
  place = undefined;
  if (!name) return;
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    place = name;
  } catch { /* a zone that is younger than this browser: then its own, as the footer says */ }
}
export const ownZone = () => place === undefined;
export const plotted = (at) => (place ? uPlot.tzDate(new Date(at * 1000), place) : new Date(at * 1000));
const when = (options) => (at) => new Intl.DateTimeFormat(language(), { ...options, timeZone: place }).format(at);
export const clock = when({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
export const seconds = when({ hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const date = when({ month: "short", day: "numeric" });
export const full = when({ year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
export const zone = () => {
  const part = new Intl.DateTimeFormat(language(), { timeZoneName: "short", timeZone: place }).formatToParts(new Date()).find((p) => p.type === "timeZoneName");
  return part ? part.value : "";
};

// midnight is when the day after that of an instant begins, in seconds since 1970. Days begin at quarters of an hour, wherever one is; not all
// of them at 00:00.
export function midnight(now) {
  const day = when({ year: "numeric", month: "numeric", day: "numeric" });
  const today = day(now);
  let before = Math.floor(now.getTime() / 900e3), after = before + 26 * 4;
  while (after - before > 1) {
    const middle = Math.floor((before + after) / 2);
    if (day(new Date(middle * 900e3)) === today) before = middle;
    else after = middle;
  }
  return after * 900;
}

// ago tells how far an instant lies from another: "in 2 h 5 min", "3 d 1 h ago".
export const ago = (at, now) => t(at > now ? "in" : "ago", span((at - now) / 1000));
