// Before anything is drawn: the colours and the language that were chosen last.
(() => {
  "use strict";
  const root = document.documentElement;
  const read = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const theme = read("lapse.theme");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  const language = read("lapse.language") || (navigator.language || "en");
  root.lang = language.toLowerCase().startsWith("zh") ? "zh-CN" : "en";
})();
