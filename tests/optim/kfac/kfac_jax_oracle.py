"""Three steps of kfac-jax 0.0.8 on a network and batches from a file, written to another.

    python kfac_jax_oracle.py in.npz out.npz [in.npz out.npz ...]

Weights are `<layer>_w` and `<layer>_b`: matrices, (inputs, outputs), of layers named `dense...`,
and kernels, HWIO, of those named `conv...`, in alphabetical order, with tanh between them.
Convolutions read NHWC with one pixel of zeros around it, and `strides` holds their strides. The
other arrays are `xs`, `labels`, and `drawn`, the labels that the curvature is to be taken with;
kfac-jax would draw them itself. If `adaptive`, learning rate, momentum and damping are its own.
"""

# pyright: reportMissingImports=false

import sys

import jax
import jax.numpy as jnp
import kfac_jax
import numpy as np
from kfac_jax._src import loss_functions

jax.config.update("jax_enable_x64", True)
# What is registered as targets is not looked at by anything but this.
loss_functions.CategoricalLogitsNegativeLogProbLoss.sample = lambda self, rng: self.targets

FIXED = {"learning_rate": 0.01, "momentum": 0.9, "damping": 1e-2}
L2 = 1e-3
ADAPTIVE = {
    "use_adaptive_learning_rate": True,
    "use_adaptive_momentum": True,
    "use_adaptive_damping": True,
    "damping_adaptation_interval": 1,
}


def network(params, x, strides):
    """The logits."""
    for index, (name, own) in enumerate(sorted(params.items())):
        x = jnp.tanh(x) if index else x
        if name.startswith("conv"):
            stride, layout = (int(strides[index]),) * 2, ("NHWC", "HWIO", "NHWC")
            padding = [(1, 1), (1, 1)]
            x = jax.lax.conv_general_dilated(x, own["w"], stride, padding, dimension_numbers=layout)
        else:
            x = x.reshape(len(x), -1) @ own["w"]
        x = x + own["b"]
    return x


def loss_with_penalty(params, batch, strides):
    """The mean loss, and the penalty, which kfac-jax leaves to its user."""
    logits = network(params, batch["x"], strides)
    kfac_jax.register_softmax_cross_entropy_loss(logits, targets=batch["drawn"])
    likely = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["label"][:, None], 1)
    squares = sum(jnp.sum(leaf**2) for leaf in jax.tree_util.tree_leaves(params))
    return -jnp.mean(likely) + 0.5 * L2 * squares


def inverse(block_state, scale, damping):
    """The damped inverse of a layer's curvature as one dense matrix; inputs come first."""
    factors = [factor.value for factor in block_state.factors]
    pair = kfac_jax.utils.pi_adjusted_kronecker_inverse(*factors, damping=damping / scale)
    return jnp.kron(*pair) / scale


def steps(given):
    """Everything after each step, by name."""
    adaptive = bool(given["adaptive"])
    names = sorted(key[:-2] for key in given if key.endswith("_w"))
    params = {n: {k: jnp.asarray(given[f"{n}_{k}"]) for k in "wb"} for n in names}
    loss = lambda params, batch: loss_with_penalty(params, batch, given["strides"])
    damping = float(given["damping"]) if adaptive else FIXED["damping"]
    chosen = ADAPTIVE | {"initial_damping": damping} if adaptive else {"norm_constraint": 1e-4}
    optimizer = kfac_jax.Optimizer(
        jax.value_and_grad(loss),
        l2_reg=L2,
        num_burnin_steps=0,
        curvature_ema=0.95,
        inverse_update_period=1,
        estimation_mode="fisher_gradients",
        **chosen,
    )
    batches = [
        {"x": jnp.asarray(x), "label": jnp.asarray(label), "drawn": jnp.asarray(drawn)}
        for x, label, drawn in zip(given["xs"], given["labels"], given["drawn"], strict=True)
    ]
    state = optimizer.init(params, jax.random.PRNGKey(0), batches[0])
    estimator = optimizer._estimator
    found = {}
    for number, batch in enumerate(batches):
        settings = {} if adaptive else {key: jnp.asarray(value) for key, value in FIXED.items()}
        key = jax.random.PRNGKey(number)
        params, state, stats = optimizer.step(params, state, key, batch=batch, **settings)
        own = {}
        for name in names:
            index = estimator.params_block_index[name]["w"]
            block_state = state.estimator_state.blocks_states[index]
            scale = estimator.blocks[index].fixed_scale()  # the number of positions
            of_inputs, of_outputs = (factor.value for factor in block_state.factors)
            # We keep the sum over positions in the factor of the outputs.
            own |= {f"{name}_A": of_inputs, f"{name}_G": scale * of_outputs}
            own |= {f"{name}_{k}": params[name][k] for k in "wb"}
            if not adaptive:
                own[f"{name}_inverse"] = inverse(block_state, scale, damping + L2)
        if adaptive:
            own["chosen"] = jnp.stack([stats["learning_rate"], stats["momentum"]])
            own["damping"] = state.damping
        # Copies: the next step reuses the memory.
        found |= {f"{number}_{key}": np.array(value) for key, value in own.items()}
    return found


if __name__ == "__main__":
    for source, target in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        np.savez(target, **steps(dict(np.load(source))))
