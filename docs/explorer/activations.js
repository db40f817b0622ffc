// The activation functions φ of skipless.core.activations, with φ′, φ″ and the kinks of each.
"use strict";

const ROOT_TWO_PI = Math.sqrt(2 * Math.PI);

// erfcx(x) = exp(x²) erfc(x) for x ≥ 0, as a Chebyshev series in (x - 4) / (x + 4) that is computed once.
const ERFCX_SERIES = chebyshevSeries((t) => slowErfcx((4 * (1 + t)) / (1 - t)), 36);

function slowErfcx(x) {
  if (x > 2) {
    let tail = x; // √π erfcx(x) = 1 / (x + (1/2) / (x + 1 / (x + (3/2) / (x + …))))
    for (let n = 200; n > 0; n--) tail = x + n / 2 / tail;
    return 1 / (Math.sqrt(Math.PI) * tail);
  }
  let term = (2 * x) / Math.sqrt(Math.PI); // erf(x) = 2x/√π exp(-x²) Σ (2x²)ⁿ / (2n+1)!!
  let sum = 0;
  for (let n = 1; n < 80; n++) {
    sum += term;
    term *= (2 * x * x) / (2 * n + 1);
  }
  return Math.exp(x * x) - sum;
}

// Coefficients of the Chebyshev series of f on [-1, 1], from its values at the nodes.
function chebyshevSeries(f, count) {
  const values = Array.from({ length: count }, (_, k) =>
    f(Math.cos((Math.PI * (k + 0.5)) / count)));
  return Float64Array.from({ length: count }, (_, n) => {
    let sum = 0;
    for (let k = 0; k < count; k++) sum += values[k] * Math.cos((Math.PI * n * (k + 0.5)) / count);
    return ((n ? 2 : 1) * sum) / count;
  });
}

function chebyshevValue(series, t) {
  let next = 0;
  let after = 0;
  for (let n = series.length - 1; n > 0; n--) {
    const here = series[n] + 2 * t * next - after;
    after = next;
    next = here;
  }
  return series[0] + t * next - after;
}

const erfcx = (x) =>
  (x > 1e8 ? 1 / (Math.sqrt(Math.PI) * x) : chebyshevValue(ERFCX_SERIES, (x - 4) / (x + 4)));
const bell = (x) => Math.exp(-0.5 * x * x);
const normalDensity = (x) => bell(x) / ROOT_TWO_PI;
const normalTail = (x) => 0.5 * bell(x) * erfcx(Math.SQRT1_2 * Math.abs(x)); // Φ(-|x|)
const normalBelow = (x) => (x > 0 ? 1 - normalTail(x) : normalTail(x)); // Φ(x)

function erf(x) {
  if (Math.abs(x) > 0.5) return Math.sign(x) * (1 - Math.exp(-x * x) * erfcx(Math.abs(x)));
  let term = (2 * x) / Math.sqrt(Math.PI) * Math.exp(-x * x);
  let sum = 0;
  for (let n = 1; n < 20; n++) {
    sum += term;
    term *= (2 * x * x) / (2 * n + 1);
  }
  return sum;
}

const sigmoid = (x) => 1 / (1 + Math.exp(-x));
function sigmoidSlope(x) {
  const e = Math.exp(-Math.abs(x));
  return e / ((1 + e) * (1 + e));
}
const sigmoidCurvature = (x) => -Math.tanh(0.5 * x) * sigmoidSlope(x);
const logOnePlusExp = (x) => Math.max(x, 0) + Math.log1p(Math.exp(-Math.abs(x)));
const siluSlope = (x) => sigmoid(x) * (1 + x * sigmoid(-x));
const siluCurvature = (x) => sigmoidSlope(x) * (2 - x * Math.tanh(0.5 * x));
const tanhSlope = (x) => 4 * sigmoidSlope(2 * x);
const tanhCurvature = (x) => 8 * sigmoidCurvature(2 * x);
const inverseCubedRoot = (x) => (1 + x * x) ** -1.5;

function tanhShrink(x) {
  if (Math.abs(x) > 1) return x - Math.tanh(x);
  let fraction = 17; // tanh x = x / (1 + x²/(3 + x²/(5 + …))), which does not cancel
  for (let odd = 15; odd > 1; odd -= 2) fraction = odd + (x * x) / fraction;
  return (x * x * x) / (x * x + fraction);
}

// v, v′ and v″ of gelu_tanh(x) = x σ(v).
function geluGate(x) {
  const [a, b] = [2 * Math.sqrt(2 / Math.PI), 0.044715];
  return [a * x * (1 + b * x * x), a * (1 + 3 * b * x * x), 6 * a * b * x];
}

// p, q ≤ 1 with eˣ = p/q, and d: tanh(log(1 + eˣ)) = p (p + 2q) / d.
function expFraction(x) {
  const e = Math.exp(-Math.abs(x));
  const [p, q] = x > 0 ? [1, e] : [e, 1];
  return [p, q, p * p + 2 * q * (p + q)];
}

function squareplus(x) {
  const s = Math.sqrt(x * x + 4) + Math.abs(x);
  return x > 0 ? 0.5 * s : 2 / s;
}

// φ that is a polynomial a + b x + c x² on each piece [from, to, a, b, c].
function piecewise(...pieces) {
  const [to, a, b, c] = [1, 2, 3, 4].map((k) => Float64Array.from(pieces, (piece) => piece[k]));
  const at = (x) => {
    let i = 0;
    while (i < to.length - 1 && x > to[i]) i++;
    return i;
  };
  return {
    value: (x) => {
      const i = at(x);
      return a[i] + x * (b[i] + x * c[i]);
    },
    slope: (x) => {
      const i = at(x);
      return b[i] + 2 * c[i] * x;
    },
    curvature: (x) => 2 * c[at(x)],
    kinks: pieces.slice(1).map(([from]) => from),
    smoothed: (mean, spread) => // E[φ(x)] for x of this mean and spread
      pieces.reduce((sum, piece) => sum + smoothedPiece(piece, mean, spread), 0),
  };
}

// One piece's contribution: E[(a + b x + c x²) 1{from < x < to}].
function smoothedPiece([from, to, a, b, c], mean, spread) {
  const [low, high] = [(from - mean) / spread, (to - mean) / spread];
  const [lowDensity, highDensity] = [normalDensity(low), normalDensity(high)];
  const inside = normalBelow(high) - normalBelow(low);
  const first = lowDensity - highDensity;
  const second = inside + (lowDensity ? low * lowDensity : 0) - (highDensity ? high * highDensity : 0);
  const x = mean * inside + spread * first;
  const square = mean * mean * inside + 2 * mean * spread * first + spread * spread * second;
  return a * inside + b * x + c * square;
}

function leakyRelu(alpha) {
  const pieces = alpha === 1
    ? [[-Infinity, Infinity, 0, 1, 0]]
    : [[-Infinity, 0, 0, alpha, 0], [0, Infinity, 0, 1, 0]];
  return { ...piecewise(...pieces), degree: 1, negativeSlope: alpha };
}

function elu(alpha = 1, scale = 1) {
  return {
    value: (x) => scale * (x > 0 ? x : alpha * Math.expm1(x)),
    slope: (x) => scale * (x > 0 ? 1 : alpha * Math.exp(x)),
    curvature: (x) => (x > 0 ? 0 : scale * alpha * Math.exp(x)),
    kinks: [0],
    smoothed: (mean, spread) => {
      const [at, t] = [mean / spread, mean / spread + spread];
      const power = t > 0 // E[eˣ 1{x < 0}], without overflow
        ? 0.5 * bell(at) * erfcx(Math.SQRT1_2 * t)
        : Math.exp(mean + 0.5 * spread * spread) * normalBelow(-t);
      const linear = mean * normalBelow(at) + spread * normalDensity(at);
      return scale * (linear + alpha * (power - normalBelow(-at)));
    },
  };
}

const GELU_RATE = 1.702; // of quick_gelu
const ERF_SLOPE = 2 / Math.sqrt(Math.PI);

const ACTIVATIONS = {
  leaky_relu: leakyRelu(0.01),
  relu: { ...piecewise([-Infinity, 0, 0, 0, 0], [0, Infinity, 0, 1, 0]), degree: 1 },
  tanh: { value: Math.tanh, slope: tanhSlope, curvature: tanhCurvature },
  softplus: { value: logOnePlusExp, slope: sigmoid, curvature: sigmoidSlope },
  gelu: {
    value: (x) => Math.max(x, 0) - Math.abs(x) * normalTail(x),
    slope: (x) => normalBelow(x) + x * normalDensity(x),
    curvature: (x) => (2 - x * x) * normalDensity(x),
  },
  silu: { value: (x) => x * sigmoid(x), slope: siluSlope, curvature: siluCurvature },
  elu: elu(),
  selu: elu(1.6732632423543772848, 1.0507009873554804934),
  sigmoid: { value: sigmoid, slope: sigmoidSlope, curvature: sigmoidCurvature },
  erf: {
    value: erf, slope: (x) => ERF_SLOPE * Math.exp(-x * x),
    curvature: (x) => -2 * ERF_SLOPE * x * Math.exp(-x * x),
  },
  abs: { ...piecewise([-Infinity, 0, 0, -1, 0], [0, Infinity, 0, 1, 0]), degree: 1 },
  asinh: {
    value: Math.asinh, slope: (x) => 1 / Math.sqrt(1 + x * x),
    curvature: (x) => -x * inverseCubedRoot(x),
  },
  atan: {
    value: Math.atan, slope: (x) => 1 / (1 + x * x),
    curvature: (x) => (-2 * x) / (1 + x * x) ** 2,
  },
  bent_identity: {
    value: (x) => x * (1 + (0.5 * x) / (1 + Math.sqrt(1 + x * x))),
    slope: (x) => 1 + (0.5 * x) / Math.sqrt(1 + x * x),
    curvature: (x) => 0.5 * inverseCubedRoot(x),
  },
  celu: elu(),
  cos: {
    value: Math.cos, slope: (x) => -Math.sin(x), curvature: (x) => -Math.cos(x),
    period: 2 * Math.PI,
  },
  gaussian: { value: bell, slope: (x) => -x * bell(x), curvature: (x) => (x - 1) * (x + 1) * bell(x) },
  gelu_tanh: {
    value: (x) => x * sigmoid(geluGate(x)[0]),
    slope: (x) => {
      const [v, dv] = geluGate(x);
      return sigmoid(v) * (1 + x * dv * sigmoid(-v));
    },
    curvature: (x) => {
      const [v, dv, ddv] = geluGate(x);
      return sigmoidSlope(v) * (2 * dv + x * (ddv - dv * dv * Math.tanh(0.5 * v)));
    },
  },
  hard_sigmoid: piecewise([-Infinity, -3, 0, 0, 0], [-3, 3, 1 / 2, 1 / 6, 0], [3, Infinity, 1, 0, 0]),
  hard_swish: piecewise([-Infinity, -3, 0, 0, 0], [-3, 3, 0, 1 / 2, 1 / 6], [3, Infinity, 0, 1, 0]),
  hard_tanh: piecewise([-Infinity, -1, -1, 0, 0], [-1, 1, 0, 1, 0], [1, Infinity, 1, 0, 0]),
  identity: { ...piecewise([-Infinity, Infinity, 0, 1, 0]), degree: 1 },
  log_sigmoid: {
    value: (x) => -logOnePlusExp(-x), slope: (x) => sigmoid(-x),
    curvature: (x) => -sigmoidSlope(x),
  },
  mish: {
    value: (x) => {
      const [p, q, d] = expFraction(x);
      return (x * p * (p + 2 * q)) / d;
    },
    slope: (x) => {
      const [p, q, d] = expFraction(x);
      return (p * (p + 2 * q + (4 * x * q * q * (p + q)) / d)) / d;
    },
    curvature: (x) => {
      const [p, q, d] = expFraction(x);
      const cubic = 2 * q * q * (p + q) - p * p * (2 * p + 3 * q);
      return (4 * p * q * q * (2 * (p + q) + (x * cubic) / d)) / (d * d);
    },
  },
  quick_gelu: {
    value: (x) => x * sigmoid(GELU_RATE * x), slope: (x) => siluSlope(GELU_RATE * x),
    curvature: (x) => GELU_RATE * siluCurvature(GELU_RATE * x),
  },
  relu6: piecewise([-Infinity, 0, 0, 0, 0], [0, 6, 0, 1, 0], [6, Infinity, 6, 0, 0]),
  relu_squared: { ...piecewise([-Infinity, 0, 0, 0, 0], [0, Infinity, 0, 0, 1]), degree: 2 },
  sin: {
    value: Math.sin, slope: Math.cos, curvature: (x) => -Math.sin(x), period: 2 * Math.PI,
  },
  soft_shrink: piecewise(
    [-Infinity, -0.5, 0.5, 1, 0], [-0.5, 0.5, 0, 0, 0], [0.5, Infinity, -0.5, 1, 0],
  ),
  softsign: {
    value: (x) => x / (1 + Math.abs(x)), slope: (x) => (1 + Math.abs(x)) ** -2,
    curvature: (x) => (x > 0 ? -2 : 2) * (1 + Math.abs(x)) ** -3, kinks: [0],
  },
  square: { ...piecewise([-Infinity, Infinity, 0, 0, 1]), degree: 2 },
  squareplus: {
    value: squareplus, slope: (x) => squareplus(x) / Math.sqrt(x * x + 4),
    curvature: (x) => 2 * (x * x + 4) ** -1.5,
  },
  tanh_shrink: {
    value: tanhShrink, slope: (x) => Math.tanh(x) ** 2, curvature: (x) => -tanhCurvature(x),
  },
};
for (const [name, phi] of Object.entries(ACTIVATIONS)) complete(phi, name);

// φ with its name, kinks, and the jumps of φ′ there.
function complete(phi, name) {
  phi.name = name;
  phi.kinks ??= [];
  phi.jumps = phi.kinks.map((k) => slopeJump(phi, k));
  phi.slopeJumps = phi.jumps.some((jump) => jump !== 0);
  return phi;
}

function slopeJump(phi, k) {
  const near = 2 ** -30;
  const limit = (x) => phi.slope(x) + (k - x) * phi.curvature(x);
  const jump = limit(k + near) - limit(k - near);
  return Math.abs(jump) < 1e-12 ? 0 : jump;
}

function leakyReluOf(alpha) {
  return complete(leakyRelu(alpha), "leaky_relu");
}
