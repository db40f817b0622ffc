// Where φ̂(x) = γ(φ(αx + β) + δ) satisfies all conditions of DKS or TAT but the last, as in core.curves.
//
// Two conditions give γ and δ. A third one, `balance` = 0, holds on a few curves in (α, β) that do not
// depend on the network. The network's target picks a point on a curve.
"use strict";

const ALPHAS = Array.from({ length: 81 }, (_, i) => 10 ** (-4 + i / 8));
const SHIFTS = Array.from({ length: 101 }, (_, i) => Math.sinh(Math.asinh(30) * (i / 50 - 1)));
const log = (x) => Math.log(Math.max(x, 1e-300));
const DEEP = log(1e-5); // a reading as in a network of ten thousand layers
const scaleAt = (alpha) => 0.2 + alpha; // on which β matters

const DKS_CONDITIONS = {
  balance: (m) => m.imbalance / m.excess,
  reading: (m) => log(m.excess / m.variance),
  output: (m) => ({ gamma: m.variance ** -0.5, delta: -m.mean }),
};
// D = m + δ must satisfy both D² = G and D T = G - P; the first family is taken where it can be.
const TAT_CONDITIONS = [1, -1].map((sign) => ({
  balance: (m) =>
    1 - (m.imbalance + sign * Math.sqrt(Math.max(m.excess, 0)) * Math.abs(m.tilt)) / m.excess,
  reading: (m) => log(m.bending / (m.variance + m.excess)),
  output: (m) => ({
    gamma: (m.variance + m.excess) ** -0.5,
    delta: (m.excess - m.imbalance) / m.tilt - m.mean,
  }),
}));

// Searches for curves, from quick to thorough: small α only; all α; and where curves turn.
const [QUICKLY, WIDELY, FINELY] = [0, 1, 2];
const QUICK_ROWS = 41; // α up to 10

// The transformation of φ that satisfies `conditions` and reads `target`, the best one, or null: of
// the first points on curves that reach deep networks, the one with the least distorted Q map; of all
// others, if there is none.
function bestPoint(phi, conditions, target) {
  for (const look of [QUICKLY, WIDELY, FINELY]) {
    const curves = traced(phi, conditions, look);
    const points = curves.map((curve) => pointsOn(curve, phi, conditions, target));
    const deep = curves.map((curve) => Math.min(...curve.map((p) => p.reading)) < DEEP);
    const firsts = points.flatMap((own, i) => (deep[i] ? own.slice(0, 1) : []));
    // A curve that is cut off by a quick search may get there farther out.
    const open = look === QUICKLY && points.some((own, i) =>
      deep[i] && !own.length && curves[i].at(-1).alpha === ALPHAS[QUICK_ROWS - 1]);
    if (firsts.length && !open) return steadiest(firsts, phi);
    const others = points.flat();
    if (look === FINELY && others.length) return steadiest(others, phi);
  }
  return null;
}

// The point with the least distortion; of mirror images, which have the same, that of small |β| or β > 0.
function steadiest(points, phi) {
  const digits = (x) => Number(x.toExponential(4)); // mirror images agree to rounding error
  const bends = new Map();
  const bendOf = (p) => {
    const image = `${digits(p.alpha)} ${digits(p.gamma)}`;
    if (!bends.has(image)) bends.set(image, points.length > 1 ? distortion(phi, p) : 0);
    return bends.get(image);
  };
  const ranked = points.map((p) => ({ p, rank: [bendOf(p), digits(Math.abs(p.beta)), p.beta < 0 ? 1 : 0] }));
  return ranked.reduce((best, other) => {
    const at = best.rank.findIndex((value, i) => value !== other.rank[i]);
    return at >= 0 && other.rank[at] < best.rank[at] ? other : best;
  }).p;
}

// The traced point whose reading is nearest to a target that the curves do not reach, or null.
function nearestPoint(phi, conditions, target) {
  const every = traced(phi, conditions, FINELY).flat()
    .map((p) => ({ ...p, gap: Math.abs(p.reading - Math.log(target)) }));
  if (!every.length) return null;
  const least = Math.min(...every.map((p) => p.gap));
  const level = every.filter((p) => p.gap < least + 1e-4);
  const best = level.reduce((a, b) => (Math.abs(Math.log(b.alpha)) < Math.abs(Math.log(a.alpha)) ? b : a));
  const width = 1e-2 * (Math.abs(best.beta) + best.alpha);
  const beta = bisected(phi, conditions, best.alpha, best.beta - width, best.beta + width, 60);
  return pointAt(phi, conditions, best.alpha, beta);
}

// The least and the greatest reading on the curves, or null if there is no curve.
function reachable(phi, conditions) {
  const every = traced(phi, conditions, FINELY).flat().map((p) => p.reading);
  return every.length ? [Math.exp(Math.min(...every)), Math.exp(Math.max(...every))] : null;
}

// `make` with a cache.
function kept(make) {
  const known = [];
  return (...made) => {
    const found = known.find(({ from }) => from.every((part, i) => part === made[i]));
    if (found) return found.value;
    const value = make(...made);
    known.push({ from: made, value });
    return value;
  };
}

const traced = kept((phi, conditions, look) => {
  const rough = roughCurves(phi, conditions, look === QUICKLY);
  if (look !== FINELY) return rough;
  return [...rough, ...rough.slice(0, rough.mains).flatMap((c) => crests(c, phi, conditions))];
});

// The curves on the grid of α, and the arcs that join them.
const roughCurves = kept((phi, conditions, quick) => {
  const alphas = ALPHAS.filter((alpha) => !phi.period || alpha <= blurred(phi.period));
  const curves = linked(alphas.slice(0, quick ? QUICK_ROWS : undefined)
    .map((alpha) => zerosAt(phi, alpha, conditions)));
  return Object.assign([...curves, ...arcs(curves, phi, conditions)], { mains: curves.length });
});

// The points (α, β) of one α at which `balance` vanishes.
const zerosAt = kept((phi, alpha, conditions) => {
  const row = survey(phi, alpha);
  const signs = row.map(({ m }) => balanceOf(conditions, m));
  const zeros = [];
  for (let j = 1; j < row.length; j++) {
    if (!(signs[j - 1] * signs[j] < 0)) continue;
    const beta = bisected(phi, conditions, alpha, row[j - 1].beta, row[j].beta, 10);
    const m = moments(phi, alpha, beta);
    if (!isSound(phi, conditions, alpha, beta, m, 1e-2)) continue;
    zeros.push({ alpha, beta, reading: conditions.reading(m), rises: signs[j - 1] < 0 });
  }
  return zeros;
});

// The moments at every β to look at; the methods share them.
const survey = kept((phi, alpha) =>
  shiftsFor(phi, alpha).map((beta) => ({ beta, m: moments(phi, alpha, beta, COARSE) })));

// Values of β: fine on the scale of φ, and on the scale of α around each kink.
function shiftsFor(phi, alpha) {
  if (phi.period) return SHIFTS.map((_, i) => (i / 100 - 0.5) * phi.period);
  const around = phi.kinks.flatMap((k) => SHIFTS.map((shift) => k + alpha * shift));
  return [...SHIFTS.map((shift) => scaleAt(alpha) * shift), ...around].sort((a, b) => a - b);
}

// `balance`, or NaN where the moments are rounding error: a flat or an exactly linear stretch.
function balanceOf(conditions, m) {
  const noise = m.excess < 1e-10 * m.variance || m.variance < (1e-9 * m.mean) ** 2;
  return noise ? NaN : conditions.balance(m);
}

// Whether `balance` is zero up to `close`, and no rounding error.
const isSound = (phi, conditions, alpha, beta, m, close) =>
  Math.abs(balanceOf(conditions, m)) < close && farShare(phi, alpha, beta) < 1e-4;

// The zero of `balance` in β between `low` and `high`.
function bisected(phi, conditions, alpha, low, high, halvings) {
  const at = (beta) => balanceOf(conditions, moments(phi, alpha, beta));
  const atLow = at(low);
  for (let n = 0; n < halvings; n++) {
    const middle = 0.5 * (low + high);
    if (at(middle) * atLow > 0) low = middle;
    else high = middle;
  }
  return 0.5 * (low + high);
}

// Curves made from the zeros of neighbouring rows, each joined to the nearest free one. Curves do not
// cross, and `balance` rises with β on every second one.
function linked(rows) {
  let open = [];
  const closed = [];
  for (const row of rows) {
    const pairs = open.flatMap((curve, n) => row.flatMap((point, k) => {
      const last = curve.at(-1);
      if (last.rises !== point.rises) return [];
      const apart = Math.abs(last.beta - point.beta) / scaleAt(point.alpha);
      return [[apart + Math.abs(last.reading - point.reading), n, k]];
    })).sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]);
    const [taken, used] = [new Map(), new Set()];
    for (const [, n, k] of pairs) {
      if (taken.has(n) || used.has(k)) continue;
      taken.set(n, k);
      used.add(k);
    }
    closed.push(...open.filter((_, n) => !taken.has(n)));
    const grown = [...taken].map(([n, k]) => [...open[n], row[k]]);
    open = [...grown, ...row.filter((_, k) => !used.has(k)).map((point) => [point])];
  }
  return [...closed, ...open];
}

// Arcs over β, on the scale of its row, that join curves that end between the same two rows.
function arcs(curves, phi, conditions) {
  const found = [];
  for (const [end, beyond] of [[-1, 1], [0, -1]]) {
    const ends = curves.map((c) => c.at(end)).sort((a, b) => a.alpha - b.alpha || a.beta - b.beta);
    for (let i = 1; i < ends.length; i++) {
      const [{ alpha, beta: low }, { alpha: same, beta: high }] = [ends[i - 1], ends[i]];
      const far = ALPHAS[ALPHAS.indexOf(alpha) + beyond];
      if (alpha !== same || far === undefined) continue;
      const scale = phi.period ? () => 1 : scaleAt;
      const arc = Array.from({ length: 33 }, (_, n) => {
        const shift = (low + ((n + 1) / 34) * (high - low)) / scale(alpha);
        return pointOfArc(phi, conditions, (a) => shift * scale(a), alpha, far);
      }).filter(Boolean);
      if (arc.length > 2) found.push(arc);
    }
  }
  return found;
}

function pointOfArc(phi, conditions, betaAt, near, far) {
  const at = (alpha) => balanceOf(conditions, moments(phi, alpha, betaAt(alpha)));
  const atNear = at(near);
  if (!(atNear * at(far) < 0)) return null;
  for (let n = 0; n < 40; n++) {
    const middle = Math.sqrt(near * far);
    if (at(middle) * atNear > 0) near = middle;
    else far = middle;
  }
  const beta = betaAt(near);
  const m = moments(phi, near, beta);
  const sound = isSound(phi, conditions, near, beta, m, 1e-6);
  return sound ? { alpha: near, beta, reading: conditions.reading(m) } : null;
}

// The pieces of a curve around an extremum of its reading, and at its ends, traced more finely.
function crests(curve, phi, conditions) {
  const last = curve.length - 3;
  const starts = new Set(last < 0 ? [] : [0, last]);
  for (let i = 0; i <= last; i++) {
    const [a, b, c] = curve.slice(i, i + 3).map((p) => p.reading);
    if (last >= 0 && Math.sign(b - a) !== Math.sign(c - b)) starts.add(i);
  }
  return [...starts].sort((a, b) => a - b)
    .map((start) => crest(curve.slice(start, start + 3), phi, conditions))
    .filter((piece) => piece.length > 2);
}

function crest(three, phi, conditions) {
  const logs = three.map((p) => Math.log(p.alpha));
  const betas = three.map((p) => p.beta);
  const spread = Math.max(...betas) - Math.min(...betas);
  return Array.from({ length: 33 }, (_, n) => {
    const at = logs[0] + (n / 32) * (logs[2] - logs[0]);
    const alpha = Math.exp(at);
    const side = at < logs[1] ? 0 : 1;
    const t = (at - logs[side]) / (logs[side + 1] - logs[side]);
    const middle = betas[side] + t * (betas[side + 1] - betas[side]);
    const width = 0.3 * spread + 1e-2 * scaleAt(alpha);
    const beta = bisected(phi, conditions, alpha, middle - width, middle + width, 40);
    const m = moments(phi, alpha, beta);
    const sound = isSound(phi, conditions, alpha, beta, m, 1e-6);
    return sound ? { alpha, beta, reading: conditions.reading(m) } : null;
  }).filter(Boolean);
}

// The points of one curve that read `target`, those nearest to its deep end first.
function pointsOn(curve, phi, conditions, target) {
  const found = startsOn(curve, Math.log(target))
    .map(([logAlpha, beta]) => polished(phi, conditions, logAlpha, beta, Math.log(target)))
    .filter(Boolean);
  if (curve.at(-1).reading < curve[0].reading) found.reverse();
  return found;
}

function startsOn(curve, target) {
  const gap = curve.map((p) => p.reading - target);
  const starts = [];
  for (let i = 1; i < curve.length; i++) {
    if (!(gap[i - 1] * gap[i] <= 0)) continue;
    const t = gap[i - 1] !== gap[i] ? gap[i - 1] / (gap[i - 1] - gap[i]) : 0;
    const between = (read) => read(curve[i - 1]) + t * (read(curve[i]) - read(curve[i - 1]));
    const logAlpha = between((p) => Math.log(p.alpha));
    starts.push([logAlpha, between((p) => p.beta / scaleAt(p.alpha)) * scaleAt(Math.exp(logAlpha))]);
  }
  if (starts.length) return starts;
  // The curve may turn just beyond its ends or between two points: try from there.
  const turns = curve.flatMap((_, i) => {
    const inside = i > 0 && i < curve.length - 1;
    const turned = inside && Math.sign(gap[i] - gap[i - 1]) !== Math.sign(gap[i + 1] - gap[i]);
    return (!inside || turned) && Math.abs(gap[i]) < 0.3 ? [i] : [];
  });
  return turns.map((i) => [Math.log(curve[i].alpha), curve[i].beta]);
}

// Newton's method on (log α, β); null where it does not converge.
function polished(phi, conditions, logAlpha, beta, target) {
  const equations = (a, b) => {
    const m = moments(phi, Math.exp(a), b);
    return [conditions.reading(m) - target, conditions.balance(m)];
  };
  const e = 3e-3;
  for (let step = 0; step < 10; step++) {
    const d = e * Math.exp(logAlpha);
    const [f, g] = equations(logAlpha, beta);
    const across = [equations(logAlpha + e, beta), equations(logAlpha - e, beta)];
    const up = [equations(logAlpha, beta + d), equations(logAlpha, beta - d)];
    const [fa, ga] = [0, 1].map((k) => (across[0][k] - across[1][k]) / (2 * e));
    const [fb, gb] = [0, 1].map((k) => (up[0][k] - up[1][k]) / (2 * d));
    const det = fa * gb - fb * ga;
    const [stepA, stepB] = [(fb * g - gb * f) / det, (ga * f - fa * g) / det];
    const size = Math.max(Math.abs(stepA), Math.abs(stepB) / scaleAt(Math.exp(logAlpha)));
    const damp = Math.min(1, 0.5 / size);
    logAlpha += damp * stepA;
    beta += damp * stepB;
    if (!(size >= 1e-9)) break;
  }
  const [f, g] = equations(logAlpha, beta);
  const noise = 1e-15 * Math.exp(-2 * logAlpha); // of moments that are differences of order α²
  if (!(Math.abs(f) < 1e-9 + noise && Math.abs(g) < 1e-6 + noise)) return null;
  return pointAt(phi, conditions, Math.exp(logAlpha), beta);
}

function pointAt(phi, conditions, alpha, beta) {
  const m = moments(phi, alpha, beta);
  return { alpha, beta, ...conditions.output(m), reading: Math.exp(conditions.reading(m)) };
}
