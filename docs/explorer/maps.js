// The C map of one layer, as a function that is fast to call, like core.maps.tabulated_c_map.
"use strict";

// sin θ - θ cos θ for c = cos θ, which appears in every ReLU-like map; near c = 1, its series.
function arcGap(c) {
  const theta = Math.acos(c);
  if (theta > 0.25) return Math.sin(theta) - theta * Math.cos(theta);
  const t = theta * theta;
  return theta * t * (1 / 3 - t * (1 / 30 - t * (1 / 840 - t * (1 / 45360 - t / 3991680))));
}

// How far leaky ReLU is from linear: 0 for x, 1 for ReLU, 2 for |x|.
const kappaOf = (low, high) => (high - low) ** 2 / (high * high + low * low);
const rectifierCMap = (kappa) => (c) => Math.min(1, c + (kappa / Math.PI) * arcGap(c));

const clip = (x, low, high) => Math.min(Math.max(x, low), high);

// C map of ψ(z) = φ(αz + β) + δ between inputs of q value 1.
function cMap(phi, alpha, beta, delta) {
  if (phi.degree === 1 && beta === 0 && delta === 0) {
    return rectifierCMap(kappaOf(-phi.value(-1), phi.value(1)));
  }
  const short = taylorCoefficients(phi, alpha, beta, delta, 40);
  if (remainder(short) < 1e-13) return polynomial(short);
  const long = taylorCoefficients(phi, alpha, beta, delta, 300);
  if (remainder(long) < 1e-12) return inAngle(polynomial(long));
  if (phi.smoothed) return inAngle(pairMap(phi, alpha, beta, delta));
  const longer = taylorCoefficients(phi, alpha, beta, delta, 1500);
  longer[longer.length - 1] += remainder(longer); // or C(1) would miss 1
  return inAngle(polynomial(longer));
}

const remainder = (series) => Math.abs(1 - series.reduce((a, b) => a + b, 0));

// b_n = E[ψ h_n]² / E[ψ²], with the orthonormal Hermite polynomials h_n.
function taylorCoefficients(phi, alpha, beta, delta, count) {
  const reach = 18; // h_n oscillates with a wave length of 2π/√n: a panel takes half a wave
  const panels = 1 + Math.ceil((2 * reach * Math.sqrt(count)) / Math.PI);
  const [z, w] = rule(panelEnds(phi, alpha, beta, reach), reach, panels);
  const weighted = w.map((weight, i) => weight * (phi.value(alpha * z[i] + beta) + delta));
  let energy = 0;
  weighted.forEach((v, i) => { energy += v * (phi.value(alpha * z[i] + beta) + delta); });
  let [previous, current] = [new Float64Array(z.length), new Float64Array(z.length).fill(1)];
  const b = new Float64Array(count);
  for (let n = 0; n < count; n++) {
    let a = 0;
    const [back, on] = [Math.sqrt(n), 1 / Math.sqrt(n + 1)];
    for (let i = 0; i < z.length; i++) {
      a += weighted[i] * current[i];
      const following = (z[i] * current[i] - back * previous[i]) * on;
      previous[i] = current[i];
      current[i] = following;
    }
    b[n] = (a * a) / energy;
  }
  return b;
}

function polynomial(coefficients) {
  let last = coefficients.length - 1;
  while (coefficients[last] < 1e-18) last--;
  return (c) => {
    let sum = coefficients[last];
    for (let n = last - 1; n >= 0; n--) sum = sum * c + coefficients[n];
    return clip(sum, -1, 1);
  };
}

// f as a Chebyshev series in θ = arccos c, in which C is smooth even where φ has kinks.
function inAngle(f) {
  let series;
  for (const count of [16, 32, 64, 128]) {
    series = chebyshevSeries((t) => f(Math.cos(0.5 * Math.PI * (t + 1))), count);
    if (series.subarray(-count / 4).every((term) => Math.abs(term) < 1e-13)) break;
  }
  return (c) => clip(chebyshevValue(series, (2 / Math.PI) * Math.acos(clip(c, -1, 1)) - 1), -1, 1);
}

// C(c) = E[ψ(z) E[ψ(cz + √(1 - c²) z′)]] / E[ψ²], the inner expectation in closed form.
function pairMap(phi, alpha, beta, delta) {
  const reach = 9;
  const ends = phi.kinks.map((k) => (k - beta) / alpha).filter((z) => Math.abs(z) < reach);
  const pair = (c, inner) => {
    const s = Math.sqrt((1 - c) * (1 + c));
    const [z, w] = rule([...ends, ...smoothedEnds(ends, c, s, reach)], reach, 12);
    let sum = 0;
    for (let i = 0; i < z.length; i++) {
      sum += w[i] * (phi.value(alpha * z[i] + beta) + delta) * (inner(c * z[i], s) + delta);
    }
    return sum;
  };
  const energy = pair(1, (z) => phi.value(alpha * z + beta));
  return (c) => pair(c, (z, s) => phi.smoothed(alpha * z + beta, alpha * s)) / energy;
}

// Ends for the outer integral: the inner one bends within s of each end of ψ.
function smoothedEnds(ends, c, s, reach) {
  if (Math.abs(c) < 0.05) return [];
  const layer = s > 0.75 ? [0] : [-8, -3, -1, 0, 1, 3, 8];
  return ends.flatMap((end) => layer.map((step) => (end + s * step) / c))
    .filter((z) => Math.abs(z) < reach);
}
