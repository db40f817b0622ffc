// The edge of chaos of an activation: where C'(1) = 1 at a q value that layers keep, as in core.edge.
"use strict";

const Q_VALUES = Array.from({ length: 141 }, (_, i) => 10 ** (-8 + i / 10));

const atQ = (phi, q) => moments(phi, Math.sqrt(q), 0);
// The σ_b² that keeps q: q - E[φ²] / E[φ′²], without subtracting large numbers.
const biasAt = (q, m) => (q * (m.excess - m.mean ** 2)) / (m.variance + m.excess);
// Slope of the layer's Q map; the fixed point is stable if it is below 1 in magnitude.
const pullAt = (m) => (m.variance + m.imbalance + m.mean * m.tilt) / (m.variance + m.excess);
const qGrid = kept((phi) => Q_VALUES.map((q) => atQ(phi, q)));

// The edge of chaos at σ_b with the most stable q value, or null.
function edgeOfChaos(phi, sigmaB) {
  if (phi.degree === 1) {
    if (sigmaB !== 0) return null; // q would grow by σ_b² in every layer
    const m = atQ(phi, 1);
    return { q: 1, sigmaW: (m.variance + m.mean ** 2) ** -0.5 };
  }
  const grid = qGrid(phi);
  const surplus = grid.map((m, i) => biasAt(Q_VALUES[i], m) - sigmaB ** 2);
  const clear = surplus.map((s, i) => Math.abs(s) > 1e-12 * Q_VALUES[i]);
  const stable = grid.map((m) => pullAt(m) <= 1);
  const found = [];
  for (let i = 1; i < Q_VALUES.length; i++) {
    const crosses = surplus[i - 1] * surplus[i] <= 0 && (clear[i - 1] || clear[i]);
    if (!crosses || !(stable[i - 1] || stable[i])) continue;
    const gap = (logQ) => biasAt(Math.exp(logQ), atQ(phi, Math.exp(logQ))) - sigmaB ** 2;
    const [low, high] = [Math.log(Q_VALUES[i - 1]), Math.log(Q_VALUES[i])];
    if (gap(low) * gap(high) > 0) continue;
    const q = Math.exp(root(gap, low, high));
    const m = atQ(phi, q);
    const pull = Math.abs(pullAt(m));
    const point = { pull, q, sigmaW: Math.sqrt(q / (m.variance + m.excess)) };
    if (pull < 1 - 1e-10 && isConfirmed(phi, point, sigmaB)) found.push(point);
  }
  if (found.length) return found.reduce((a, b) => (b.pull < a.pull ? b : a));
  return sigmaB === 0 ? edgeAtZero(phi) : null;
}

// Whether another quadrature agrees; it may not if φ(√q z) is all in the tails.
function isConfirmed(phi, { q, sigmaW }, sigmaB) {
  const m = moments(phi, Math.sqrt(q), 0, OTHER, 12);
  const held = (sigmaW ** 2 * (m.variance + m.mean ** 2) + sigmaB ** 2) / q;
  const slope = (sigmaW ** 2 * (m.variance + m.excess)) / q;
  return Math.abs(held - 1) < 1e-11 && Math.abs(slope - 1) < 1e-11;
}

// If φ(0) = 0, q may converge to 0, where σ_w = 1/|φ′(0)|.
function edgeAtZero(phi) {
  const energy = (phi.slope(-1e-150) ** 2 + phi.slope(1e-150) ** 2) / 2;
  if (phi.value(0) !== 0 || energy === 0) return null;
  const drawn = [1e-4, 1e-2, 1].every((q) => {
    const m = atQ(phi, q);
    return m.variance + m.mean ** 2 <= q * energy * (1 + 1e-14);
  });
  return drawn ? { q: 0, sigmaW: energy ** -0.5 } : null;
}

// The σ_b nearest to `sigmaB` at which the activation has an edge of chaos, or null.
function nearestBias(phi, sigmaB) {
  if (phi.degree === 1 || edgeAtZero(phi)) return 0;
  let [q, best] = [Q_VALUES, null];
  for (let round = 0; round < 3; round++) {
    const candidates = q.map((value, i) => ({ i, m: atQ(phi, value) }))
      .map(({ i, m }) => ({ i, variance: biasAt(q[i], m), pull: Math.abs(pullAt(m)) }))
      .filter(({ variance, pull }) => variance >= 0 && pull < 1)
      .map(({ i, variance }) => ({ i, bias: Math.sqrt(variance) }))
      .sort((a, b) => Math.abs(a.bias - sigmaB) - Math.abs(b.bias - sigmaB));
    const nearest = candidates.find(({ bias }) => edgeOfChaos(phi, bias));
    if (!nearest) break;
    best = nearest.bias;
    const [low, high] = [q[Math.max(nearest.i - 1, 0)], q[Math.min(nearest.i + 1, q.length - 1)]];
    q = Array.from({ length: 41 }, (_, n) => low * (high / low) ** (n / 40));
  }
  return best;
}
