// What the page shows: controls become a state, the state is solved, and the page is redrawn.
"use strict";

const METHODS = ["tat", "dks", "eoc", "plain"];
const STARTS = [0.9, 0.5, 0, -0.5];
const USUAL = {
  method: "tat", activation: "leaky_relu", depth: 100, shortcut: 0,
  eta: 0.9, tau: 0.3, zeta: 1.5, sigma_b: 0,
};
// The range of each target's slider, and what the target means.
const SLIDERS = {
  eta: { low: 0.01, high: 0.99, log: false, digits: 2, meaning: "μ⁰, the largest C_f(0)" },
  tau: { low: 0.01, high: 10, log: true, digits: 3, meaning: "μ², the largest C_f″(1)" },
  zeta: { low: 0.01, high: 999, log: true, from: 1, digits: 4, meaning: "μ¹, the largest C_f′(1)" },
  sigma_b: { low: 0, high: 1, log: false, digits: 2, meaning: "scale of the biases" },
};
const element = (id) => document.getElementById(id);
const state = { ...USUAL };

function start() {
  fillActivations();
  readFragment();
  const on = (id, event, change) => element(id).addEventListener(event, () => {
    change(element(id).value);
    refresh();
  });
  on("method", "change", (value) => { state.method = value; });
  on("activation", "change", (value) => { state.activation = value; });
  on("depth", "input", (value) => { state.depth = Math.round(10 ** (value / 100)); });
  on("depth-number", "change", (value) => { state.depth = clip(Math.round(value) || 1, 1, 1000); });
  on("target", "input", (value) => { state[target()] = fromSlider(SLIDERS[target()], value / 1000); });
  on("target-number", "change", (value) => { state[target()] = Number(value); });
  on("shortcut", "input", (value) => { state.shortcut = Number(value); });
  on("shortcut-number", "change", (value) => { state.shortcut = clip(Number(value) || 0, 0, 0.99); });
  addEventListener("hashchange", () => {
    readFragment();
    refresh();
  });
  element("controls").addEventListener("submit", (event) => event.preventDefault());
  element("share").addEventListener("click", () => copy(element("share"), location.href));
  for (const button of document.querySelectorAll("[data-copies]")) {
    button.addEventListener("click", () => copy(button, element(button.dataset.copies).textContent));
  }
  refresh();
}

const target = () => targetName(state.method, state.activation);

function fillActivations() {
  const names = Object.keys(ACTIVATIONS);
  const options = (some) => some.map((name) => `<option>${name}</option>`).join("");
  element("activation").innerHTML =
    `<optgroup label="often used">${options(names.slice(0, 10))}</optgroup>` +
    `<optgroup label="others">${options(names.slice(10))}</optgroup>`;
}

function fromSlider({ low, high, log: logarithmic, from = 0, digits }, t) {
  const value = logarithmic ? low * (high / low) ** t : low + t * (high - low);
  return logarithmic ? Number((from + value).toPrecision(digits)) : Number(value.toFixed(digits));
}

function toSlider({ low, high, log: logarithmic, from = 0 }, value) {
  const t = logarithmic
    ? Math.log((value - from) / low) / Math.log(high / low) : (value - low) / (high - low);
  return clip(Number.isFinite(t) ? t : 0, 0, 1);
}

// The state from an address such as explorer/#method=tat&depth=50&eta=0.95; defaults for the rest.
function readFragment() {
  const given = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, USUAL);
  for (const key of Object.keys(USUAL)) {
    if (!given.has(key)) continue;
    const value = typeof USUAL[key] === "number" ? Number(given.get(key)) : given.get(key);
    if (value === value) state[key] = value;
  }
  if (!METHODS.includes(state.method)) state.method = USUAL.method;
  if (!Object.hasOwn(ACTIVATIONS, state.activation)) state.activation = USUAL.activation;
  state.depth = clip(Math.round(state.depth), 1, 1000);
  state.shortcut = clip(state.shortcut, 0, 0.99);
}

function writeFragment() {
  const keys = ["method", "activation", "depth", target(), "shortcut"].filter(Boolean);
  const fragment = `#${new URLSearchParams(keys.map((key) => [key, state[key]]))}`;
  if (location.hash !== fragment) history.replaceState(null, "", fragment);
}

function refresh() {
  const net = network(state.depth, state.shortcut);
  showControls(net);
  writeFragment();
  showCode(net);
  let found = null;
  try {
    found = solve(net, state.method, state.activation, state[target()]);
  } catch (error) {
    if (!(error instanceof UnreachableTarget)) throw error;
    element("message").textContent = error.message;
  }
  element("message").hidden = found !== null;
  element("verdict").hidden = found === null;
  element("charts").hidden = found === null;
  element("note").hidden = !found?.note;
  element("note").textContent = found?.note ?? "";
  if (found) show(net, found);
}

function showControls(net) {
  for (const id of ["method", "activation"]) element(id).value = state[id];
  element("depth").value = Math.round(100 * Math.log10(state.depth));
  element("depth-number").value = state.depth;
  element("depth").setAttribute("aria-valuetext", `${state.depth} activations`);
  element("shortcut").value = state.shortcut;
  element("shortcut-number").value = state.shortcut;
  const name = target();
  element("target-field").hidden = !name;
  if (name) {
    element("target-label").textContent = `${TARGETS[name].symbol} (${name})`;
    element("target-meaning").textContent = SLIDERS[name].meaning;
    element("target").value = Math.round(1000 * toSlider(SLIDERS[name], state[name]));
    element("target").setAttribute("aria-valuetext", `${name} ${state[name]}`);
    element("target-number").value = state[name];
  }
  element("network").textContent = net.blocks
    ? `${net.blocks} residual block${net.blocks > 1 ? "s" : ""} of 3 activations: ` +
      `x ← ${state.shortcut} x + ${general(Math.sqrt(1 - state.shortcut ** 2), 3)} R(x)`.replaceAll(" ", "\u00a0")
    : `A chain of ${net.depth} layer${net.depth > 1 ? "s" : ""}, without shortcuts.`;
}

function show(net, found) {
  const layer = layerMap(found);
  const map = Array.from({ length: 201 }, (_, i) => -Math.cos((Math.PI * i) / 200))
    .map((c) => [c, fold(net, layer.map, c)]);
  const paths = STARTS.map((c) => along(net, layer.map, c));
  const atZero = fold(net, layer.map, 0);
  element("map-chart").innerHTML = mapChart(map, atZero);
  element("layers-chart").innerHTML = layersChart(net, paths);
  element("activation-chart").innerHTML = activationChart(found);
  const [slope, curvature] = endOfMap(net, layer.slope, layer.curvature);
  showNumbers(net, found, layer, { atZero, slope, curvature });
  element("verdict").textContent = verdict(atZero, slope);
}

function verdict(atZero, slope) {
  const degrees = general((Math.acos(clip(atZero, -1, 1)) * 180) / Math.PI, 3);
  const seen = `Two unrelated inputs (c = 0, 90° apart) leave this network ${degrees}° apart.`;
  if (atZero > 0.96) return `${seen} All inputs look nearly the same to it, so it hardly trains.`;
  if (slope > 1000) return `${seen} Nearly identical inputs leave it far apart, so it hardly generalises.`;
  if (slope < 0.1) return `${seen} Small differences between inputs are lost on the way, so it hardly trains.`;
  return `${seen} It can still tell inputs apart.`;
}

const cosineAxis = (name) => ({ name, low: -1, high: 1, ticks: [-1, -0.5, 0, 0.5, 1] });

function mapChart(points, atZero) {
  return drawn({
    title: "From input to output",
    description: `C map of the whole network: c = 0 becomes ${atZero.toFixed(3)}.`,
    x: cosineAxis("c of the two inputs"), y: cosineAxis("C_f(c), c of the two outputs"),
    guide: [[[-1, -1], [1, 1]]],
    lines: [{ style: 1, points, name: "map", mark: [0, atZero] }],
  });
}

function layersChart(net, paths) {
  return drawn({
    title: "Layer by layer",
    description: "c values by layer: " +
      STARTS.map((c, i) => `${c} becomes ${paths[i].at(-1)[1].toFixed(3)}`).join(", "),
    x: {
      name: net.blocks ? "activations, one point per block" : "layers",
      low: 0, high: net.depth, ticks: ticksOf(0, net.depth).filter(Number.isInteger),
    },
    y: cosineAxis("c of two inputs"), room: 60,
    lines: paths.map((points, i) => ({
      style: i, points, name: `from ${STARTS[i]}`, label: tick(Number(points.at(-1)[1].toFixed(3))),
      mark: points[0],
    })),
  });
}

function activationChart(found) {
  const { phi, alpha, beta, gamma, delta } = found;
  const base = ACTIVATIONS[phi.name];
  const xs = Array.from({ length: 121 }, (_, i) => (i - 60) / 20);
  const inner = (x) => (alpha ?? 1) * x + (beta ?? 0);
  const shaped = xs.map((x) => [x, (gamma ?? 1) * (phi.value(inner(x)) + (delta ?? 0))]);
  const same = [alpha, beta, gamma, delta].every((part) => part === null);
  const lines = [{ style: 4, points: xs.map((x) => [x, base.value(x)]), name: "base", label: "φ" }];
  if (!same) lines.push({ style: 1, points: shaped, name: "shaped", label: "φ̂" });
  for (const line of lines) line.points = line.points.filter(([, y]) => Math.abs(y) <= 3);
  return drawn({
    title: same ? "The activation" : "The activation, before and after",
    description: `${phi.name}${same ? "" : " before and after shaping"}`,
    x: { name: "x", low: -3, high: 3, ticks: [-3, -2, -1, 0, 1, 2, 3] },
    y: { name: same ? "φ(x)" : "φ(x) and φ̂(x)", low: -3, high: 3, ticks: [-3, -2, -1, 0, 1, 2, 3] },
    lines, room: 24,
  });
}

function showNumbers(net, found, layer, { atZero, slope, curvature }) {
  const measured = {
    mu0: ["μ⁰", "largest C_f(0) of any subnetwork", () => maximum(net, layer.map, 0)],
    mu1: ["μ¹", "largest C_f′(1) of any subnetwork", () => maxSlope(net, layer.slope)],
    mu2: ["μ²", "largest C_f″(1) of any subnetwork", () => maxCurvature(net, layer.curvature)],
  }[found.mu];
  const rows = [
    ["c_f_zero", "C_f(0)", "what unrelated inputs become", atZero],
    ["slope", "C_f′(1)", "1: small differences keep their size", slope],
    ["curvature", "C_f″(1)", found.phi.slopeJumps ? "infinite where φ′ jumps" : "0: straight", curvature],
  ];
  if (measured) rows.push([found.mu, measured[0], measured[1], measured[2]()]);
  element("network-numbers").innerHTML = rows.map(row).join("");
  element("parameters").innerHTML = [
    ["negative_slope", found.phi.negativeSlope ?? null], ["input_scale", found.alpha],
    ["input_shift", found.beta], ["output_scale", found.gamma], ["output_shift", found.delta],
    ["sigma_w", found.sigmaW], ["sigma_b", found.sigmaB], ["q", found.q],
  ].map(([name, value]) => row([name, name, "", value])).join("");
}

// A row of a table; its cell's data-value has all digits.
function row([id, name, meaning, value]) {
  const rounded = Math.abs(value) < 1e-12 ? 0 : value;
  const digits = value === Infinity ? "∞" : general(rounded, 6).replace("-", "−");
  const shown = value === null ? "–" : digits;
  const small = meaning && `<small>${meaning}</small>`;
  return `<tr><th scope="row">${name}${small}</th>` +
    `<td id="${id}" data-value="${value}">${shown}</td></tr>`;
}

function showCode(net) {
  const name = target();
  const value = name && general(state[name], 12);
  const graph = net.blocks
    ? `sk.Graph.residual(${net.blocks}, shortcut_weight=${general(net.weight, 12)})`
    : `sk.Graph.chain(${net.depth})`;
  element("python").textContent = name
    ? `sk.solve(${graph}, sk.${state.method.toUpperCase()}(${name}=${value}), "${state.activation}")`
    : `sk.Solution.of(sk.activation("${state.activation}")).c_map`;
  element("shell-line").hidden = !name || net.blocks > 0;
  element("shell").textContent = `skipless solve mlp:${net.depth} --method ${state.method} ` +
    `--activation ${state.activation} --${name?.replace("_", "-")} ${value}`;
}

async function copy(button, words) {
  const before = button.innerHTML;
  try {
    await navigator.clipboard.writeText(words);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => { button.innerHTML = before; }, 1500);
}

start();
