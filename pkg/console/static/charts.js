// Charts by uPlot, in the page's colours. Each has a table beside it, so the canvas itself is one picture for readers of screens.
/* global uPlot */
import { clock, date, plotted, seconds, short } from "./format.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// Steps of an axis of things that are counted: there is no half coupon.
const whole = Array.from({ length: 12 }, (_, i) => [1, 2, 5].map((n) => n * 10 ** i)).flat();

// A chart that is drawn anew with other data, another size, or other colours.
export class Chart {
  constructor(node, shape) {
    this.node = node;
    this.shape = shape; // (data) => {data, series, range, bars, label}
    this.plot = null;
    this.last = null;
    new ResizeObserver(() => {
      const width = this.node.clientWidth;
      if (this.plot && width > 0 && width !== this.plot.width) this.plot.setSize({ width, height: this.node.clientHeight });
      else if (!this.plot && this.last && width > 0) this.draw(this.last);
    }).observe(node);
  }

  // again draws all anew, in the colours and the language of now.
  again() {
    if (this.plot) { this.plot.destroy(); this.plot = null; }
    if (this.last) this.draw(this.last);
  }

  draw(input) {
    this.last = input;
    const s = this.shape(input);
    this.node.setAttribute("role", "img");
    this.node.setAttribute("aria-label", s.label);
    if (this.node.clientWidth === 0) return;
    const day = s.range[1] - s.range[0] > 2 * 86400;
    this.range = s.range;
    this.point = s.point;
    if (this.plot && this.day === day) {
      this.plot.setData(s.data);
      return;
    }
    if (this.plot) this.plot.destroy();
    this.day = day;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px " + getComputedStyle(document.body).fontFamily };
    this.plot = new uPlot({
      tzDate: plotted, width: this.node.clientWidth, height: this.node.clientHeight, padding: [8, 28, 0, 0], legend: { show: false },
      cursor: { y: false, points: { show: !s.bars }, drag: { x: false, y: false } },
      scales: { x: { time: true, range: () => this.range }, y: { range: (_, __, most) => [0, Math.max(1, (most || 0) * 1.08)] } },
      axes: [
        { ...axis, space: 76, size: 30, values: (_, splits) => splits.map((v) => (this.day ? date : this.range[1] - this.range[0] < 600 ? seconds : clock)(new Date(v * 1000))) },
        { ...axis, size: 48, space: 36, ...(s.whole ? { incrs: whole } : {}), values: (_, splits) => splits.map((v) => short(v)) },
      ],
      series: [{}, ...s.series.map((x) => ({
        label: x.label, stroke: colour(x.colour), fill: s.bars ? colour(x.colour) : undefined, width: s.bars ? 0 : 1.75, points: { show: false },
        paths: s.bars ? uPlot.paths.bars({ size: [0.82, 48], align: 1 }) : undefined, spanGaps: false,
      }))],
      hooks: { setCursor: [(u) => this.point && this.point(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null)] },
    }, s.data, this.node);
  }
}
