// Signing in, refreshing while somebody looks, language and colours.
import { $ } from "./dom.js";
import { Refused, ask, keep, known } from "./net.js";
import { language, speak, t } from "./words.js";
import { midnight, ownZone, tellIn, zone } from "./format.js";
import * as aside from "./aside.js";
import * as forecast from "./forecast.js";
import * as look from "./look.js";
import * as overview from "./overview.js";
import * as templates from "./templates.js";

let session = null;
let every = 5000;
const loops = [];

// loop asks again and again, one question after the other, and not while nobody sees the page.
function loop(question, pause, done, failed) {
  let timer = 0, busy = false, stopped = false, again = false;
  const turn = async () => {
    clearTimeout(timer);
    if (stopped || document.hidden) return;
    if (busy) { again = true; return; }
    busy = true;
    again = false;
    let rest = pause();
    try {
      const asked = question();
      const x = await ask(...asked);
      if (!stopped && !again) done(x);
    } catch (e) {
      if (!stopped && !refused(e)) failed(e.message);
      rest = Math.min(rest, 5000);
    }
    busy = false;
    if (stopped) return;
    if (again) turn();
    else timer = setTimeout(turn, rest);
  };
  const me = { now: turn, stop: () => { stopped = true; clearTimeout(timer); } };
  loops.push(me);
  turn();
  return me;
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) for (const l of loops) l.now(); });

// refused ends the session if the token counts no more; it tells whether it did.
function refused(e) {
  if (!(e instanceof Refused) || e.status !== 401) return false;
  leave(t("login.ended"));
  return true;
}

let counted = null;

function enter(x) {
  session = x;
  every = Math.max(1000, x.every_ms);
  $("installation").textContent = x.installation;
  tellIn(x.zone);
  footer();
  $("login").hidden = true;
  $("page").hidden = false;
  $("leave").hidden = false;
  aside.allow(x.scopes.includes("ops"));
  const quiet = () => {};
  loop(() => ["status"], () => every, (s) => overview.draw(s, every), overview.stale);
  forecast.waiting();
  counted = loop(() => ["forecast", { span: forecast.chosen() }], forecast.every, forecast.draw, forecast.failed);
  loop(() => ["midnight", { at: midnight(new Date()) }], () => 60000, forecast.drawMidnight, quiet);
  loop(() => ["templates"], () => 2 * every, templates.draw, quiet);
}

function leave(why) {
  for (const l of loops.splice(0)) l.stop();
  session = null;
  keep(null);
  look.clear();
  aside.clear();
  for (const id of ["page", "leave", "health", "fresh"]) $(id).hidden = true;
  $("installation").textContent = "";
  $("login").hidden = false;
  $("login-wrong").textContent = why || "";
  $("token").value = "";
  $("token").focus();
}

async function begin() {
  try { enter(await ask("session")); } catch (e) {
    if (!(e instanceof Refused)) leave(t("login.failed", e.message));
    else leave(e.status === 401 ? t("login.unknown") : e.status === 403 ? t("login.scope") : t("login.failed", e.message));
  }
}

$("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  if (!token || /[^\x21-\x7e]/.test(token)) { $("login-wrong").textContent = t("login.unknown"); return; }
  $("login-wrong").textContent = "";
  keep(token);
  await begin();
  if (session) $("main").focus();
});
$("leave").addEventListener("click", () => leave(""));

look.onRefused(refused);
aside.onRefused(refused);
for (const input of document.querySelectorAll('input[name="span"]')) {
  input.addEventListener("change", () => { forecast.forget(); if (counted) counted.now(); });
}

const remember = (key, value) => { try { localStorage.setItem(key, value); } catch { /* then it is chosen again next time */ } };

function footer() {
  document.querySelector("footer p").textContent = t(ownZone() ? "footer" : "footer.shop", zone());
}

function again() {
  speak(language());
  footer();
  overview.again(every);
  forecast.again();
  templates.again();
  look.again();
  aside.again();
}

$("language").value = language();
$("language").addEventListener("change", (event) => { speak(event.target.value); remember("lapse.language", language()); again(); });
$("theme").value = document.documentElement.dataset.theme || "auto";
$("theme").addEventListener("change", (event) => {
  const theme = event.target.value;
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  remember("lapse.theme", theme);
  again();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);

speak(language());
again();
if (known()) begin(); else leave("");
document.documentElement.dataset.ready = "true";
