// The moments of ψ(z) = φ(αz + β) under N(0, 1) that determine every condition, as in core.gaussian.
"use strict";

const FINE = gaussLegendre(12);
const COARSE = gaussLegendre(6); // good for the signs of conditions, not for their roots
const OTHER = gaussLegendre(17); // for checks: shares only midpoints with the other rules
const ORIGIN_MARKS = [0];
for (let k = 0; k < 20; k++) ORIGIN_MARKS.push(0.75 * 2.5 ** k, -0.75 * 2.5 ** k);

// Nodes and weights on [-1, 1]: Newton's method on the Legendre polynomial.
function gaussLegendre(count) {
  const [x, w] = [new Float64Array(count), new Float64Array(count)];
  for (let i = 0; i < count; i++) {
    let t = Math.cos((Math.PI * (i + 0.75)) / (count + 0.5));
    let slope = 1;
    for (let step = 0; step < 10; step++) {
      let [p, before] = [1, 0];
      for (let n = 1; n <= count; n++) [p, before] = [((2 * n - 1) * t * p - (n - 1) * before) / n, p];
      slope = (count * (t * p - before)) / (t * t - 1);
      t -= p / slope;
    }
    [x[i], w[i]] = [t, 2 / ((1 - t * t) * slope * slope)];
  }
  return [x, w];
}

// The scale beyond which s z modulo the period is uniform to rounding error.
const blurred = (period) => (9 * period) / (2 * Math.PI);

// Points z within `reach` where panels for φ(αz + β) should end: its kinks, and around its origin.
function panelEnds(phi, alpha, beta, reach) {
  const ends = [];
  const add = (x) => {
    const z = (x - beta) / alpha;
    if (Math.abs(z) < reach) ends.push(z);
  };
  ORIGIN_MARKS.forEach(add);
  phi.kinks.forEach(add);
  if (phi.period) {
    const step = 0.5 * phi.period;
    const count = Math.ceil((reach * Math.min(alpha, blurred(phi.period)) + Math.abs(beta)) / step);
    for (let n = -count; n <= count; n++) add(n * step);
  }
  return ends;
}

// Nodes z and Gaussian weights w of panels from -reach to reach that end at `ends` too.
function rule(ends, reach, panels, [gaussX, gaussW] = FINE) {
  const bounds = new Float64Array(ends.length + panels + 1);
  for (let i = 0; i <= panels; i++) bounds[i] = reach * ((2 * i) / panels - 1);
  bounds.set(ends, panels + 1);
  bounds.sort();
  const count = (bounds.length - 1) * gaussX.length;
  const [z, w] = [new Float64Array(count), new Float64Array(count)];
  let at = 0;
  for (let i = 1; i < bounds.length; i++) {
    const [half, middle] = [0.5 * (bounds[i] - bounds[i - 1]), 0.5 * (bounds[i] + bounds[i - 1])];
    if (half === 0) continue;
    for (let k = 0; k < gaussX.length; k++, at++) {
      const x = middle + half * gaussX[k];
      z[at] = x;
      w[at] = (half * gaussW[k] * Math.exp(-0.5 * x * x)) / ROOT_TWO_PI;
    }
  }
  return [z.subarray(0, at), w.subarray(0, at)];
}

// ψ = m + a z + u and ψ′ = a + v: small moments are computed from u and v, without cancellation.
function moments(phi, alpha, beta, gauss = FINE, reach = 9) {
  const [z, w] = rule(panelEnds(phi, alpha, beta, reach), reach, reach / 0.75, gauss);
  const count = z.length;
  const [psi, slope] = [new Float64Array(count), new Float64Array(count)];
  const { value, slope: phiSlope } = phi;
  let [mean, a, along] = [0, 0, 0];
  for (let i = 0; i < count; i++) {
    const x = alpha * z[i] + beta;
    psi[i] = value(x);
    slope[i] = alpha * phiSlope(x);
    mean += w[i] * psi[i];
    a += w[i] * slope[i];
  }
  for (let i = 0; i < count; i++) along += w[i] * z[i] * (psi[i] - mean);
  let [uu, vv, vzz, vzu, tilt] = [0, 0, 0, 0, 0];
  for (let i = 0; i < count; i++) {
    const [t, u, v] = [z[i], psi[i] - mean - along * z[i], slope[i] - a];
    const wv = w[i] * v;
    uu += w[i] * u * u;
    vv += wv * v;
    vzz += wv * (t * t - 1);
    vzu += wv * t * u;
    tilt += wv * t;
  }
  return {
    mean, tilt,
    variance: along * along + uu, // V = E[ψ²] - m²
    excess: vv - uu, // G = E[ψ′²] - V
    imbalance: a * vzz + vzu - uu, // P = E[(ψ - m) ψ′ z] - V
    get bending() { // B = E[ψ″²], computed only if needed
      let sum = 0;
      for (let i = 0; i < count; i++) sum += w[i] * phi.curvature(alpha * z[i] + beta) ** 2;
      return alpha ** 4 * sum;
    },
  };
}

// The share of Var φ′(αz + β) that comes from |z| > 8, close to where the moments end.
function farShare(phi, alpha, beta) {
  const [z, w] = rule(panelEnds(phi, alpha, beta, 9), 9, 12);
  const slope = z.map((t) => phi.slope(alpha * t + beta));
  const mean = slope.reduce((sum, v, i) => sum + w[i] * v, 0);
  let [far, all] = [0, 0];
  for (let i = 0; i < z.length; i++) {
    const bend = w[i] * (slope[i] - mean) ** 2;
    all += bend;
    if (Math.abs(z[i]) > 8) far += bend;
  }
  return far / all;
}

// Q map of φ̂(x) = γ(φ(αx + β) + δ).
function shapedQMap(phi, { alpha, beta, gamma, delta }, q) {
  let scale = alpha * Math.sqrt(q);
  if (phi.period) scale = Math.min(scale, blurred(phi.period));
  const [z, w] = rule(panelEnds(phi, scale, beta, 9), 9, 12);
  let sum = 0;
  for (let i = 0; i < z.length; i++) sum += w[i] * (gamma * (phi.value(scale * z[i] + beta) + delta)) ** 2;
  return sum;
}

// How far the Q map bends away from the identity above q = 1, by which branches are ranked.
function distortion(phi, shape) {
  let sum = 0;
  for (let u = 0; u < 30; u += 0.5) {
    const bend = Math.log(Math.max(shapedQMap(phi, shape, Math.exp(u)), 1e-300)) - u;
    sum += 0.5 * Math.abs(bend) * Math.exp(-0.5 * u);
  }
  return sum;
}
