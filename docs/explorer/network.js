// A network as the explorer knows it: a chain, or residual blocks of three; its folds and maxima.
"use strict";

const BRANCH = 3; // activations in a residual branch, as in Graph.residual

// Chain of `depth` layers; with a shortcut weight, blocks of three with about as many activations.
function network(depth, weight) {
  if (!weight) return { depth, weight: 0, blocks: 0 };
  const blocks = Math.max(1, Math.round(depth / BRANCH));
  return { depth: BRANCH * blocks, weight, blocks };
}

const repeated = (r, x, times) => {
  for (let n = 0; n < times; n++) x = r(x);
  return x;
};

// w² x + (1 - w²) R(x); clipped, since rounding may put a mean outside its terms.
function block(net, r, x) {
  const branch = repeated(r, x, BRANCH);
  const share = net.weight * net.weight;
  const mean = share * x + (1 - share) * branch;
  return Math.min(Math.max(mean, Math.min(x, branch)), Math.max(x, branch));
}

// x carried from input to output, with r applied at every activation.
function fold(net, r, x) {
  return net.blocks ? repeated((y) => block(net, r, y), x, net.blocks) : repeated(r, x, net.depth);
}

// [activations so far, value] at the input and after every layer, or after every block.
function along(net, r, x) {
  const points = [[0, x]];
  for (let n = 1; n <= (net.blocks || net.depth); n++) {
    x = net.blocks ? block(net, r, x) : r(x);
    points.push([net.blocks ? BRANCH * n : n, x]);
  }
  return points;
}

// The largest fold over all subnetworks: stretches of a chain, runs of blocks, parts of a branch.
function maximum(net, r, x) {
  let best = -Infinity;
  const stretch = (step, count) => {
    for (let n = 0, y = x; n < count; n++) {
      const next = step(y);
      best = Math.max(best, next);
      y = Math.max(x, next);
    }
  };
  stretch(r, net.blocks ? BRANCH : net.depth);
  if (net.blocks) stretch((y) => block(net, r, y), net.blocks);
  return best;
}

const maxSlope = (net, slope) => maximum(net, (s) => slope * s, 1);
const maxCurvature = (net, curvature) => maximum(net, (k) => curvature + k, 0);

// C_f'(1) and C_f''(1), where every layer has the slope s and the curvature k at c = 1.
function endOfMap(net, s, k) {
  const share = net.weight * net.weight;
  let [slope, curvature] = [1, 0];
  const layers = ([a, b], times) => {
    for (let n = 0; n < times; n++) [a, b] = [s * a, k * a * a + s * b];
    return [a, b];
  };
  if (!net.blocks) [slope, curvature] = layers([1, 0], net.depth);
  for (let n = 0; n < net.blocks; n++) {
    const [a, b] = layers([slope, curvature], BRANCH);
    [slope, curvature] = [share * slope + (1 - share) * a, share * curvature + (1 - share) * b];
  }
  return [slope, curvature];
}
