// Nodes from text, never from markup.
export const $ = (id) => document.getElementById(id);

// el makes an element. Attributes with true stand alone, those with null, undefined or false are left out.
export function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== ""));
  return node;
}

export const fill = (node, ...children) => node.replaceChildren(...children.flat().filter((c) => c !== null && c !== undefined && c !== ""));

// table of a caption for readers of screens, heads ({text, number}), and rows of texts or nodes; the first cell names its row.
export function table(caption, heads, rows) {
  return el("table", {},
    el("caption", { class: "quiet" }, caption),
    el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col", class: h.number ? "number" : null }, h.text)))),
    el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((c, i) => el(i === 0 ? "th" : "td",
      { scope: i === 0 ? "row" : null, class: heads[i].number ? "number" : null }, c))))));
}

// Switches a table that stands for a chart.
export function toggle(button, region, words) {
  const say = () => { button.textContent = words(region.hidden); button.setAttribute("aria-expanded", String(!region.hidden)); };
  button.addEventListener("click", () => { region.hidden = !region.hidden; say(); });
  say();
  return say;
}

// renew fills a node anew only if what it shows is something else: whoever reads or has tabbed into it is not disturbed.
const shows = new WeakMap();
export function renew(node, about, make) {
  const now = document.documentElement.lang + JSON.stringify(about);
  if (shows.get(node) === now) return;
  shows.set(node, now);
  fill(node, make());
}
