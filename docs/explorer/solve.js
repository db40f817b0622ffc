// solve(net, method, activation, target): the shaped activation, or an error that says why there is none.
"use strict";

class UnreachableTarget extends Error {}

const TARGETS = {
  eta: { symbol: "η", low: 0, high: 1, usual: "0.9 or 0.95" },
  tau: { symbol: "τ", low: 0, high: Infinity, usual: "0.2 to 0.5" },
  zeta: { symbol: "ζ", low: 1, high: Infinity, usual: "1.5, 10 or 100" },
  sigma_b: { symbol: "σ_b", low: 0, high: Infinity, usual: "0 to 0.5", closed: true },
};

// The target that a method takes for this activation; none without a method.
function targetName(method, activation) {
  if (method === "tat") return activation === "leaky_relu" ? "eta" : "tau";
  return { dks: "zeta", eoc: "sigma_b" }[method] ?? null;
}

function solve(net, method, activation, target) {
  const phi = ACTIVATIONS[activation];
  const name = targetName(method, activation);
  if (name) requireTarget(name, target);
  if (method === "tat") {
    return phi.negativeSlope !== undefined ? tatLeakyRelu(net, target) : tatSmooth(net, target, phi);
  }
  if (method === "eoc") return eoc(target, phi);
  if (method === "plain") return plain(phi);
  const slope = slopeFor(net, target);
  if (phi.negativeSlope !== undefined) return dksLeakyRelu(net, target, slope);
  return activation === "relu" ? dksRelu(net, target, slope) : dksSmooth(net, target, slope, phi);
}

function requireTarget(name, value) {
  const { low, high, usual, closed } = TARGETS[name];
  if ((low < value || (closed && value === low)) && value < high) return;
  const rule = high < Infinity ? `in (${low}, ${high})` : `finite and ${closed ? ">=" : ">"} ${low}`;
  throw new UnreachableTarget(
    `${name} must be ${rule}, got ${general(value)} (typically ${usual})`);
}

// What every solution has; `mu` is the maximum over subnetworks that the method prescribes.
const solution = (phi, parts) => ({
  phi, alpha: null, beta: null, gamma: null, delta: null, sigmaW: 1, sigmaB: 0, q: 1, note: "", ...parts,
});

// φ unchanged, with weights that keep q = 1.
function plain(phi) {
  const m = moments(phi, 1, 0);
  return solution(phi, { sigmaW: (m.variance + m.mean ** 2) ** -0.5 });
}

function tatLeakyRelu(net, eta) {
  const atZero = (kappa) => maximum(net, rectifierCMap(kappa), 0);
  const straightened = (c) => 1 / Math.sqrt(Math.max(1 - c, 1e-18)); // nearly linear in κ
  const most = atZero(1);
  if (most < eta) {
    const usual = most >= 0.9 ? 0.9 : 0.8 * most; // what TAT() takes
    throw outOfReach("C_f(0)", eta, most,
      `plain ReLU, the most that this network can do, has ${most.toFixed(3)}. Use TAT() (no --eta), ` +
      `which takes ${general(usual, 3)} here, another eta below ${most.toFixed(3)}, weaker shortcuts`);
  }
  const kappa = root((k) => straightened(atZero(k)) - straightened(eta), 0, 1);
  const alpha = negativeSlope(kappa);
  return solution(leakyReluOf(alpha), { gamma: Math.sqrt(2 / (1 + alpha * alpha)), mu: "mu0" });
}

function tatSmooth(net, tau, phi) {
  if (phi.slopeJumps) {
    throw new UnreachableTarget(
      `TAT cannot shape ${phi.name} by tau: its slope jumps, so C''(1) is infinite at any ` +
      "scale and shift. Use activation='leaky_relu', which TAT shapes by eta, or a smooth activation.");
  }
  const multiple = maxCurvature(net, 1);
  const point = bestOf(phi, TAT_CONDITIONS, tau / multiple);
  if (point) return solution(phi, { ...point, mu: "mu2" });
  const span = spanOf(phi, TAT_CONDITIONS, "TAT");
  const globally = (reading) => multiple * reading;
  throw outOfReach("C_f''(1)", tau, globally(nearestOf(phi, TAT_CONDITIONS, tau / multiple)),
    why(phi, "C''(1)", tau / multiple, span, globally));
}

function dksSmooth(net, zeta, slope, phi) {
  const point = bestOf(phi, [DKS_CONDITIONS], slope - 1);
  if (point) return solution(phi, { ...point, mu: "mu1" });
  const span = spanOf(phi, [DKS_CONDITIONS], "DKS");
  const globally = (reading) => maxSlope(net, 1 + reading);
  throw outOfReach("C_f'(1)", zeta, globally(nearestOf(phi, [DKS_CONDITIONS], slope - 1)),
    why(phi, "C'(1) - 1", slope - 1, span, globally));
}

// With β = 0, Q'(1) = 1 always holds, and C'(1) = 1 / (1 - κ/π) gives the negative slope.
function dksLeakyRelu(net, zeta, slope) {
  const steepest = 1 / (1 - 2 / Math.PI);
  if (slope > steepest) {
    throw outOfReach("C_f'(1)", zeta, maxSlope(net, steepest),
      `it needs C'(1) = ${general(slope, 4)} in every layer, but leaky ReLU has at most ` +
      `${general(steepest, 4)}, at negative slope -1. Lower zeta, deepen the network`);
  }
  const phi = leakyReluOf(negativeSlope(Math.min(2, Math.PI * (1 - 1 / slope))));
  const m = moments(phi, 1, 0);
  return solution(phi, { beta: 0, gamma: m.variance ** -0.5, delta: -m.mean, mu: "mu1" });
}

function dksRelu(net, zeta, slope) {
  const phi = ACTIVATIONS.relu;
  const gap = (beta) => {
    const m = moments(phi, 1, beta);
    return Math.log(m.excess / m.variance) - Math.log(slope - 1);
  };
  const [low, high] = [-5, 6]; // towards +∞ no input reaches the kink, and C'(1) falls to 1
  if (gap(low) < 0 || gap(high) > 0) {
    const reached = 1 + (slope - 1) * Math.exp(gap(gap(low) < 0 ? low : high));
    throw outOfReach("C_f'(1)", zeta, maxSlope(net, reached),
      `it needs C'(1) = ${general(slope)} in every layer, but shifted ReLU only reaches ` +
      `${general(reached)}. Change the target or the depth`);
  }
  const beta = root(gap, low, high);
  const m = moments(phi, 1, beta);
  return solution(phi, {
    beta, gamma: m.variance ** -0.5, delta: -m.mean, mu: "mu1",
    note: "DKS cannot give ReLU Q'(1) = 1, since ReLU is homogeneous; the condition is dropped. " +
      "Use activation='leaky_relu' to keep it.",
  });
}

function eoc(sigmaB, phi) {
  const point = edgeOfChaos(phi, sigmaB);
  if (point) return solution(phi, { sigmaW: point.sigmaW, sigmaB, q: point.q });
  const nearest = nearestBias(phi, sigmaB);
  if (nearest === null) {
    throw new UnreachableTarget(
      `${phi.name} has no edge of chaos: at no sigma_b do its layers have C'(1) = 1 at a stable q ` +
      "value. Use TAT or DKS, which transform the activation, or another activation.");
  }
  throw outOfReach("sigma_b", sigmaB, nearest,
    `no sigma_w gives ${phi.name} C'(1) = 1 at a stable q value. Change sigma_b, use TAT or DKS`);
}

// The local C'(1) for which the maximal slope over all subnetworks is ζ.
function slopeFor(net, zeta) {
  const gap = (logSlope) => Math.log(maxSlope(net, Math.exp(logSlope))) - Math.log(zeta);
  let high = (1.5 * Math.log(zeta)) / net.depth;
  while (gap(high) < 0) high *= 2;
  return Math.exp(root(gap, (Math.log(zeta) / net.depth) * 0.999999, high));
}

// The α in [-1, 1] with (1 - α)² / (1 + α²) = κ.
const negativeSlope = (kappa) => (1 - kappa) / (1 + Math.sqrt(kappa * (2 - kappa)));

function bestOf(phi, families, target) {
  if (phi.degree !== undefined) return null;
  for (const conditions of families) {
    const point = bestPoint(phi, conditions, target);
    if (point) return point;
  }
  return null;
}

function spanOf(phi, families, method) {
  if (phi.degree !== undefined) {
    throw new UnreachableTarget(
      `${method} cannot shape ${phi.name}: it is homogeneous, φ(sx) = s^${phi.degree} φ(x), so ` +
      "the input scale acts like the output scale, and there are fewer parameters than " +
      "conditions. Use leaky_relu, which is shaped by its negative slope, or another activation.");
  }
  const spans = families.map((conditions) => reachable(phi, conditions)).filter(Boolean);
  if (!spans.length) {
    throw new UnreachableTarget(
      `${method} cannot shape ${phi.name}: no input scale and shift satisfy Q(1) = 1, Q'(1) = 1 ` +
      "and the C map conditions, for any target. Use another activation.");
  }
  return [Math.min(...spans.map(([low]) => low)), Math.max(...spans.map(([, high]) => high))];
}

// The reading nearest to a target that has no solution.
function nearestOf(phi, families, target) {
  const off = (reading) => Math.abs(Math.log(reading / target));
  return families.map((conditions) => nearestPoint(phi, conditions, target)).filter(Boolean)
    .map((point) => point.reading).reduce((a, b) => (off(b) < off(a) ? b : a));
}

const why = (phi, reading, needed, [low, high], globally) =>
  `it needs ${reading} = ${general(needed, 4)} in every layer, but ${phi.name} reaches ` +
  `${general(low, 3)} to ${general(high, 4)}, which is ${general(globally(low), 4)} to ` +
  `${general(globally(high), 4)} in this network. Change the target, the depth or the activation`;

function outOfReach(name, asked, nearest, reason) {
  return new UnreachableTarget(Number.isFinite(nearest)
    ? `${name} = ${general(asked)} is out of reach: ${reason}, or take the nearest target, ` +
      `${general(nearest, 4)}, with clamp=True (--clamp).`
    : `${name} = ${general(asked)} is out of reach: ${reason}. The nearest target overflows.`);
}

// The map of one layer, and its slope and curvature at c = 1.
function layerMap({ phi, alpha, beta, delta, q, sigmaB }) {
  const scale = (alpha ?? 1) * Math.sqrt(q || 1e-12); // the limit, if q converges to 0
  const bias = q ? sigmaB ** 2 / q : 0;
  const inner = cMap(phi, scale, beta ?? 0, delta ?? 0);
  const m = moments(phi, scale, beta ?? 0);
  const mean = m.mean + (delta ?? 0);
  const square = m.variance + mean * mean;
  return {
    map: bias ? (c) => (1 - bias) * inner(c) + bias : inner,
    slope: (1 - bias) * (1 + (m.excess - mean * mean) / square),
    curvature: phi.slopeJumps ? Infinity : ((1 - bias) * m.bending) / square,
  };
}

// A zero of f between `low` and `high`, by Ridders' method.
function root(f, low, high) {
  let [atLow, atHigh] = [f(low), f(high)];
  if (atLow === 0) return low;
  for (let n = 0; n < 100 && atHigh !== 0; n++) {
    const middle = 0.5 * (low + high);
    if (middle === low || middle === high) break;
    const at = f(middle);
    if (at === 0) return middle;
    const size = Math.sqrt(at * at - atLow * atHigh);
    const x = middle + ((middle - low) * Math.sign(atLow - atHigh) * at) / size;
    const atX = f(x);
    if (atX === 0) return x;
    const inner = [[low, atLow], [middle, at], [x, atX], [high, atHigh]].sort((a, b) => a[0] - b[0]);
    const side = inner.findIndex(([, value], i) => i < 3 && value * inner[i + 1][1] < 0);
    [[low, atLow], [high, atHigh]] = [inner[side], inner[side + 1]];
  }
  return Math.abs(atLow) < Math.abs(atHigh) ? low : high;
}

// A number as Python's format(x, ".6g") writes it.
function general(x, digits = 6) {
  if (!Number.isFinite(x)) return x > 0 ? "inf" : x < 0 ? "-inf" : "nan";
  const [mantissa, power] = x.toExponential(digits - 1).split("e");
  const bare = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  const exponent = Number(power);
  if (exponent >= -4 && exponent < digits) return bare(x.toFixed(digits - 1 - exponent));
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${bare(mantissa)}e${exponent < 0 ? "-" : "+"}${size}`;
}
