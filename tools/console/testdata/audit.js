// What people would stumble over who hear the page, or see it badly. Each finding is a text.
(() => {
  const found = [];
  const name = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + (e.className && typeof e.className === "string" ? "." + e.className.replaceAll(" ", ".") : "");
  const seen = (e) => e.checkVisibility ? e.checkVisibility() : e.offsetParent !== null;
  const all = (selector) => [...document.querySelectorAll(selector)].filter(seen);

  for (const [selector, n] of [["h1", 1], ["main", 1], ["body > header", 1], ["body > footer", 1]]) {
    if (all(selector).length !== n) found.push(`${selector}: ${all(selector).length} instead of ${n}`);
  }
  if (!document.documentElement.lang) found.push("no language");
  for (const e of all("input, select")) if (!e.labels.length && !e.getAttribute("aria-label")) found.push(name(e) + " has no label");
  for (const e of all("button, a")) if (!e.textContent.trim() && !e.getAttribute("aria-label")) found.push(name(e) + " has no name");
  for (const e of all("img")) if (!e.hasAttribute("alt")) found.push(name(e) + " has no alt");
  for (const e of all("table")) {
    if (!e.caption) found.push(name(e) + " has no caption");
    if (!e.querySelector("th[scope]")) found.push(name(e) + " has no heads");
  }
  for (const e of all("section, [role=region]")) {
    const by = e.getAttribute("aria-labelledby");
    if (!(by ? document.getElementById(by) : e.getAttribute("aria-label"))) found.push(name(e) + " has no name");
  }
  for (const e of all(".scroll")) if (e.tabIndex !== 0) found.push(name(e) + " cannot be scrolled by keys");
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids.filter((id, i) => ids.indexOf(id) !== i))) found.push("twice: #" + id);
  let level = 1;
  for (const e of all("h1, h2, h3, h4")) {
    const now = Number(e.tagName[1]);
    if (now > level + 1) found.push(name(e) + " skips a level");
    level = now;
  }

  // Contrast of texts against what is behind them: 4.5, or 3 of large ones.
  const rgba = (text) => { const m = text.match(/[\d.]+/g).map(Number); return { c: m.slice(0, 3), a: m.length > 3 ? m[3] : 1 }; };
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (e) => { for (; e; e = e.parentElement) { const g = rgba(getComputedStyle(e).backgroundColor); if (g.a === 1) return g.c; } return [255, 255, 255]; };
  for (const e of all("body *")) {
    if (e.disabled || e.closest(".quiet, canvas, [disabled], option, .skip") || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const style = getComputedStyle(e);
    const [a, b] = [light(rgba(style.color).c), light(behind(e))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const size = parseFloat(style.fontSize);
    if (ratio < (size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5)) found.push(`${name(e)} "${e.textContent.trim().slice(0, 30)}": contrast ${ratio.toFixed(2)}`);
  }
  return found;
})()
