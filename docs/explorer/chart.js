// Small line charts as SVG text, like those of skipless.report.svg.
"use strict";

const FRAME = { width: 400, height: 300, left: 44, top: 46, bottom: 250, right: 374 };

// Maps values of an axis { low, high } to pixels.
function placing(x, y, right = FRAME.right) {
  const across = (v) => FRAME.left + ((v - x.low) / (x.high - x.low)) * (right - FRAME.left);
  const down = (v) => FRAME.bottom - ((v - y.low) / (y.high - y.low)) * (FRAME.bottom - FRAME.top);
  return ([a, b]) => [across(a), down(b)];
}

// chart: { title, description, x, y, lines: [{ style, points, label, mark }], guide, room }.
function drawn({ title, description, x, y, lines, guide = [], room = 0 }) {
  const right = FRAME.right - room;
  const at = placing(x, y, right);
  const parts = [
    text(0, 14, title, "title"), text(0, 32, y.name, "axis"),
    text((FRAME.left + right) / 2, FRAME.bottom + 38, x.name, "axis", "middle"),
    ...y.ticks.map((v) => {
      const [, down] = at([x.low, v]);
      return `<path class="grid" d="M${FRAME.left} ${down.toFixed(1)}H${right}"/>` +
        text(FRAME.left - 6, down + 4, tick(v), "tick", "end");
    }),
    ...x.ticks.map((v) => {
      const [across] = at([v, y.low]);
      return `<path class="grid" d="M${across.toFixed(1)} ${FRAME.top}V${FRAME.bottom}"/>` +
        text(across, FRAME.bottom + 17, tick(v), "tick", "middle");
    }),
    ...guide.map((points) => `<path class="guide" d="${path(points, at)}"/>`),
    ...lines.map(({ style, points, name = "" }) =>
      `<path class="line s${style}" data-name="${name}" d="${path(points, at)}"/>`),
    ...lines.filter(({ mark }) => mark).map(({ style, mark }) => dot(at(mark), style)),
    ...labels(lines, at, right),
  ];
  return `<svg class="chart" viewBox="0 0 ${FRAME.width} ${FRAME.height}" role="img" ` +
    `aria-label="${escaped(description)}">${parts.join("")}</svg>`;
}

function path(points, at) {
  return points.map((point, i) => {
    const [x, y] = at(point);
    return `${i ? "L" : "M"}${x.toFixed(2)} ${y.toFixed(2)}`;
  }).join("");
}

// The names of lines next to their last points, moved apart where they would overlap.
function labels(lines, at, right) {
  const named = lines.filter(({ label }) => label)
    .map((line) => ({ ...line, y: at(line.points.at(-1))[1] })).sort((a, b) => a.y - b.y);
  const height = 15;
  named.forEach((line, i) => {
    line.y = Math.max(line.y, i ? named[i - 1].y + height : FRAME.top - 6);
  });
  for (let i = named.length - 1, floor = FRAME.bottom + 4; i >= 0; i--) {
    named[i].y = Math.min(named[i].y, floor);
    floor = named[i].y - height;
  }
  return named.map(({ label, style, y }) => text(right + 8, y + 4, label, `label value t${style}`));
}

const dot = ([x, y], style) =>
  `<circle class="mark f${style}" cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="4.5"/>`;
const text = (x, y, words, kind, anchor = "start") =>
  `<text class="${kind}" x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="${anchor}">` +
  `${escaped(words)}</text>`;
const tick = (v) => String(Number(v.toPrecision(6))).replace("-", "−");
const escaped = (words) => String(words).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

// About five ticks at multiples of 1, 2 or 5 times a power of ten.
function ticksOf(low, high) {
  const rough = (high - low) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power)
    .reduce((a, b) => (Math.abs(b - rough) < Math.abs(a - rough) ? b : a));
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + 1e-9 * step; n++) ticks.push(n * step);
  return ticks;
}
