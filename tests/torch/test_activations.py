"""In PyTorch, activations are what `core` says; shaped, they go wherever a model goes."""

import copy
import importlib.util
import io
import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _autograd  # pyright: ignore[reportAttributeAccessIssue]
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import activation_examples as examples
import skipless.torch
from activation_examples import KNOWN, SHAPED, solved
from skipless import EOC, Activation, Graph, Solution, solve
from skipless.core.activations import elu, leaky_relu
from skipless.torch import ShapedActivation, TReLU, activations, function
from skipless.torch.activations import _widest

POINTS = torch.tensor(examples.POINTS)
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # half an ulp, relative
SLOPES = (-0.5, 0.0, 0.3, 0.9, 1.0, 1.5)

# In its own formulas for forward and batched derivatives, PyTorch uses what it has deprecated.
torch_scripts = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
every_activation = pytest.mark.parametrize("phi", KNOWN, ids=lambda phi: phi.name)
every_solution = pytest.mark.parametrize("name", SHAPED)
every_slope = pytest.mark.parametrize("slope", SLOPES)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def derivatives(f: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """f, f′ and f″ at every element of `x`."""
    x = x.detach().requires_grad_()
    y = f(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    curvature = torch.zeros_like(x)
    if slope.requires_grad:
        (curvature,) = torch.autograd.grad(slope.sum(), x, materialize_grads=True)
    return y.detach(), slope.detach(), curvature


def saved_bytes(f: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """What a hook would have to store for the backward pass of `f`."""
    sizes: list[int] = []

    def pack(saved: Tensor) -> Tensor:
        sizes.append(saved.numel() * saved.element_size())
        return saved

    with saved_tensors_hooks(pack, lambda saved: saved):
        f(x)
    return sum(sizes)


def kept(y: Tensor) -> set[int]:
    """The addresses of all storages that the last operation keeps for its backward pass."""
    node = y.grad_fn
    saved = [getattr(node, name) for name in dir(node) if name.startswith("_saved")]
    return {s.untyped_storage().data_ptr() for s in saved if isinstance(s, Tensor)}


def close(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def reference(x: Tensor, slope: float, scale: float) -> Tensor:
    return scale * torch.where(x > 0.0, x, slope * x)


def test_torch_is_the_framework_and_not_this_folder() -> None:
    assert torch.__version__


@every_activation
def test_value_slope_and_curvature_are_those_of_core(phi: Activation) -> None:
    value, slope, curvature = derivatives(function(phi), POINTS)
    points = POINTS.numpy()
    close(value, torch.from_numpy(phi.value(points)), 1e-12)
    close(slope, torch.from_numpy(phi.slope(points)), 1e-12)
    near = POINTS.abs() < 100.0  # farther out, torch's formula for the curvature of mish overflows
    close(curvature[near], torch.from_numpy(phi.curvature(points))[near], 1e-12)


@every_activation
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_half_precision_stays_what_it_is_and_is_rounded_twice_at_most(
    phi: Activation, dtype: torch.dtype
) -> None:
    x = POINTS[POINTS.abs() < 200.0].to(dtype)
    found = function(phi)(x)
    wanted = torch.from_numpy(phi(x.double().numpy()))
    assert found.dtype == dtype
    assert torch.all((found.double() - wanted).abs() <= 2 * ROUNDING[dtype] * wanted.abs() + 1e-6)
    _, slope, _ = derivatives(function(phi), x)
    wanted = torch.from_numpy(phi.slope(x.double().numpy()))
    assert slope.dtype == dtype
    close(slope.double(), wanted, 8 * ROUNDING[dtype])


def test_every_activation_compiles_into_one_graph_and_exports() -> None:
    class Every(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([activation_(x) for activation_ in functions])

    functions = [function(phi) for phi in KNOWN]
    wanted = Every()(POINTS)
    compiled = torch.compile(Every(), fullgraph=True, backend="aot_eager")
    close(compiled(POINTS), wanted, 1e-12)
    exported = torch.export.export(Every(), (POINTS,))
    close(exported.module()(POINTS), wanted, 1e-12)


@every_activation
def test_an_activation_can_be_pickled_and_copied(phi: Activation) -> None:
    f = function(phi)
    for again in (pickle.loads(pickle.dumps(f)), copy.deepcopy(f)):
        assert torch.equal(again(POINTS), f(POINTS))


def test_the_old_name_works_and_warns() -> None:
    with pytest.warns(
        DeprecationWarning, match=r"skipless\.torch\.activation .*use .*torch\.function"
    ):
        assert skipless.torch.activation is function  # pyright: ignore[reportAttributeAccessIssue]


def test_names_are_read_as_core_reads_them() -> None:
    assert function("Swish") is function("silu")
    assert torch.equal(function("leaky_relu", 0.5)(POINTS), F.leaky_relu(POINTS, 0.5))


@pytest.mark.parametrize("name", ["custom", "tanh", "elu(alpha=0.3)", "elu(size=0.3)"])
def test_an_activation_of_the_users_own_asks_for_a_function_of_tensors(name: str) -> None:
    own = Activation(np.sin, np.cos, lambda x: -np.sin(x), name=name)
    with pytest.raises(ValueError, match=r"Pass its function of tensors"):
        function(own)
    with pytest.raises(ValueError, match=r"Pass its function of tensors"):
        ShapedActivation(own)
    solution = solve(Graph.chain(30), EOC(), own)
    with pytest.raises(ValueError, match=r"from_solution\(solution, function\)"):
        ShapedActivation.from_solution(solution)
    shaped = ShapedActivation.from_solution(solution, torch.sin)
    close(shaped(POINTS), torch.from_numpy(solution(POINTS.numpy())), 1e-12)
    assert shaped.name == "sin"


@every_solution
def test_a_shaped_activation_is_its_solution(name: str) -> None:
    solution = solved(name)
    value, slope, _ = derivatives(ShapedActivation.from_solution(solution), POINTS)
    close(value, torch.from_numpy(solution(POINTS.numpy())), 1e-12)
    close(slope, torch.from_numpy(solution.shaped.slope(POINTS.numpy())), 1e-12)


def test_a_trelu_is_made_where_it_is_one() -> None:
    made = {name for name in SHAPED if isinstance(shape(solved(name)), TReLU)}
    assert made == {"TAT leaky_relu", "EOC leaky_relu"}


def shape(solution: Solution) -> ShapedActivation:
    return ShapedActivation.from_solution(solution)


@every_solution
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
def test_a_shaped_activation_rounds_once_in_half_precision(name: str, dtype: torch.dtype) -> None:
    x, shaped = normal(500, dtype=dtype), shape(solved(name))
    wanted = torch.from_numpy(solved(name)(x.double().numpy()))
    found = shaped.to(dtype)(x)
    assert found.dtype == dtype
    error = (found.double() - wanted).abs()
    # The second term is the rounding of float32, which matters where φ̂ crosses zero.
    assert torch.all(error <= ROUNDING[dtype] * wanted.abs() + 1e-5)


def load_everywhere(model: nn.Module, number: float) -> None:
    """Load a state in which every number is the same, stored as plain tensors."""
    model.load_state_dict({name: torch.tensor(number) for name in model.state_dict()})


@every_solution
def test_constants_survive_every_way_in_which_models_travel(name: str) -> None:
    shaped, x = shape(solved(name)), normal(100, dtype=torch.float64)
    wanted = shaped(x)
    model = nn.Sequential(shaped)
    file = io.BytesIO()
    torch.save(model.bfloat16().state_dict(), file)  # as an optimiser in half precision would
    file.seek(0)

    other = copy.deepcopy(model)
    load_everywhere(other, 0.75)
    assert not torch.equal(other(x), wanted)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), wanted)

    assert torch.equal(copy.deepcopy(model)(x), wanted)
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), wanted)
    assert torch.equal(model.to(torch.float16).to(torch.float64)(x), wanted)


def test_constants_are_listed_and_saved_as_buffers_of_float64() -> None:
    affine = ["input_scale", "input_shift", "output_scale", "output_shift"]
    for shaped, names in (
        (ShapedActivation("tanh", 0.3, 0.1, 1.7, -0.2), affine),
        (ShapedActivation(leaky_relu(0.2), 0.3, 0.1, 1.7, -0.2), ["negative_slope", *affine]),
        (TReLU(0.3), ["negative_slope", "output_scale"]),
    ):
        assert [name for name, _ in shaped.named_buffers()] == names
        assert list(shaped.state_dict()) == list(shaped.constants) == names
        assert_buffers_are_constants(shaped)
    assert TReLU(0.3, 1.2).output_scale.item() == 1.2


def assert_buffers_are_constants(shaped: ShapedActivation) -> None:
    for name, number in shaped.constants.items():
        buffer = shaped.get_buffer(name)
        assert (buffer.dtype, buffer.shape, buffer.device.type) == (torch.float64, (), "cpu")
        assert buffer.item() == number


CASTS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "to": lambda module: module.to(torch.bfloat16),
    "bfloat16": lambda module: module.bfloat16(),
    "half": lambda module: module.half(),
    "float": lambda module: module.float(),
    "to meta and back": lambda module: module.to("meta").to_empty(device="cpu"),
    "from nothing": lambda module: module.to_empty(device="cpu"),
}


@every_solution
@pytest.mark.parametrize("cast", CASTS)
def test_neither_casts_nor_devices_change_the_constants(name: str, cast: str) -> None:
    shaped = shape(solved(name))
    wanted = shaped.constants
    assert CASTS[cast](shaped) is shaped
    assert shaped.constants == wanted
    assert_buffers_are_constants(shaped)


def test_a_model_that_is_built_on_meta_gets_its_constants_with_its_memory() -> None:
    with torch.device("meta"):
        shaped = ShapedActivation("tanh", 0.3, 0.1)
    assert shaped.input_scale.is_meta
    assert_buffers_are_constants(shaped.to_empty(device="cpu"))


def test_a_state_without_memory_leaves_the_constants_as_they_are() -> None:
    shaped = TReLU(0.3)
    shaped.load_state_dict(TReLU(0.7).to("meta").state_dict(), assign=True)
    assert shaped.output_scale.is_meta
    assert_buffers_are_constants(shaped.to_empty(device="cpu"))
    assert shaped.constants == TReLU(0.3).constants


def test_a_device_without_float64_takes_the_constants() -> None:
    def move(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype")  # as PyTorch says it
        return tensor

    assert_buffers_are_constants(TReLU(0.3)._apply(move))
    assert _widest(torch.device("mps")) == torch.float32


def test_a_move_that_fails_leaves_the_constants_as_they_were() -> None:
    def fail(tensor: Tensor) -> Tensor:
        raise RuntimeError("no such device")

    shaped = TReLU(0.3)
    with pytest.raises(RuntimeError, match="no such device"):
        shaped._apply(fail)
    assert_buffers_are_constants(shaped)


@every_solution
@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_constants_are_what_was_loaded(name: str, assign: bool, dtype: torch.dtype) -> None:
    saved = nn.Sequential(shape(solved(name)))
    state = {key: value.to(dtype) for key, value in saved.state_dict().items()}
    model = copy.deepcopy(saved)
    load_everywhere(model, 0.75)
    model.load_state_dict(state, assign=assign)
    shaped = model[0]
    assert isinstance(shaped, ShapedActivation)
    assert shaped.constants == {n: state[f"0.{n}"].item() for n in shaped.constants}
    assert_buffers_are_constants(shaped)
    affine = shaped.constants
    slope = affine.pop("negative_slope", None)
    same = ShapedActivation(shaped.function if slope is None else leaky_relu(slope), **affine)
    for x in (normal(100), normal(100, dtype=torch.float64)):
        close(shaped(x), same(x), 4 * torch.finfo(x.dtype).eps)


def test_a_state_with_other_constants_is_refused() -> None:
    states = [nn.Sequential(m).state_dict() for m in (TReLU(0.3), ShapedActivation("tanh"))]
    for state in states:
        with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"0\.\w"):
            nn.Sequential(ShapedActivation("leaky_relu")).load_state_dict(state)
    wrong = {name: torch.zeros(3) for name in TReLU(0.3).state_dict()}
    with pytest.raises(RuntimeError, match="size mismatch for negative_slope"):
        TReLU(0.3).load_state_dict(wrong)


@pytest.mark.parametrize("name", ["input_scale", "input_shift", "output_scale", "output_shift"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_constants_must_be_finite(name: str, number: float) -> None:
    with pytest.raises(ValueError, match=rf"tanh needs finite .* got {name} = {number:g}"):
        ShapedActivation("tanh", **{name: number})


def test_an_input_scale_of_zero_is_refused_whether_given_or_loaded() -> None:
    with pytest.raises(ValueError, match=r"nonzero input_scale.* got input_scale = 0"):
        ShapedActivation("tanh", 0.0)
    with pytest.raises(ValueError, match=r"nonzero input_scale.* got input_scale = 0"):
        load_everywhere(ShapedActivation("tanh"), 0.0)


def test_constants_are_not_changed_by_changing_what_was_read() -> None:
    shaped = TReLU(0.3)
    shaped.constants["negative_slope"] = 0.9
    assert shaped.constants["negative_slope"] == 0.3


def test_a_slope_that_was_loaded_is_the_slope() -> None:
    one, other = (ShapedActivation(leaky_relu(slope), output_shift=0.1) for slope in (0.3, 0.7))
    one.load_state_dict(other.state_dict())
    assert torch.equal(one(POINTS), other(POINTS))


def test_a_compiled_model_follows_the_constants_that_it_loads() -> None:
    model, x = nn.Sequential(TReLU(0.3), ShapedActivation("tanh", 0.5)), normal(100)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    close(compiled(x), model(x), 1e-6)
    other = nn.Sequential(TReLU(0.7), ShapedActivation("tanh", 1.5))
    model.load_state_dict(other.state_dict())
    close(compiled(x), other(x), 1e-6)


@every_solution
def test_a_shaped_activation_compiles_into_one_graph_and_exports(name: str) -> None:
    shaped, x = shape(solved(name)), normal(50).requires_grad_()
    wanted, slope, _ = derivatives(shaped, x)
    torch._dynamo.reset()
    compiled = torch.compile(shaped, fullgraph=True, backend="aot_eager")
    found = compiled(x)
    (found_slope,) = torch.autograd.grad(found.sum(), x)
    close(found, wanted, 1e-6)
    close(found_slope, slope, 1e-6)
    exported = torch.export.export(shaped, (x,))
    close(exported.module()(x), wanted, 1e-6)
    assert "elu_backward" not in exported.graph_module.code


def test_a_symbolic_trace_sees_the_plain_operations() -> None:
    traced = torch.fx.symbolic_trace(nn.Sequential(TReLU(0.3), ShapedActivation("tanh", 0.5)))
    targets = [node.target for node in traced.graph.nodes]
    assert F.leaky_relu in targets
    assert torch.tanh in targets


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_a_torchscript_trace_sees_the_plain_operations() -> None:
    traced = torch.jit.trace(TReLU(0.3), normal(3))
    assert isinstance(traced, torch.jit.ScriptModule)
    assert [node.kind() for node in traced.graph.nodes() if "::Constant" not in node.kind()] == [
        "aten::leaky_relu",
        "aten::mul",
    ]


def test_the_constants_are_shown() -> None:
    assert repr(TReLU(0.5, 1.25)) == "TReLU(leaky_relu, negative_slope=0.5, output_scale=1.25)"
    assert repr(ShapedActivation(elu(0.3), 0.5, 0.1, 2.0, -1.0)) == (
        "ShapedActivation(elu(alpha=0.3), "
        "input_scale=0.5, input_shift=0.1, output_scale=2, output_shift=-1)"
    )


@every_slope
def test_trelu_keeps_the_second_moment_of_a_normal_input(slope: float) -> None:
    trelu = TReLU(slope)
    assert math.isclose(trelu.constants["output_scale"] ** 2 * (1.0 + slope**2) / 2.0, 1.0)


@every_slope
@pytest.mark.parametrize("scale", [None, 1e-6, 1.3, 30.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trelu_and_its_gradient_are_a_scaled_leaky_relu(
    slope: float, scale: float | None, dtype: torch.dtype
) -> None:
    trelu, precision = TReLU(slope, scale), 4 * torch.finfo(dtype).eps
    sizes = torch.cat([normal(1001).abs(), 10.0 ** torch.arange(-15, 11)]).to(dtype)
    x = torch.cat([-sizes, torch.zeros(1, dtype=dtype), sizes]).requires_grad_()
    y, wanted = trelu(x), reference(x, slope, trelu.constants["output_scale"])
    torch.testing.assert_close(y, wanted, rtol=precision, atol=0.0)
    g = normal(*x.shape, dtype=dtype)
    found, expected = (torch.autograd.grad(f, x, g)[0] for f in (y, wanted))
    torch.testing.assert_close(found, expected, rtol=precision, atol=0.0)


@torch_scripts
@every_slope
def test_trelu_passes_gradcheck(slope: float) -> None:
    x = normal(4, 5, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(TReLU(slope), x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(TReLU(slope), x)


@every_slope
def test_the_second_derivatives_of_a_penalty_on_the_gradient_are_right(slope: float) -> None:
    """In float32, where one kernel does it all, against the same in float64, where it does not."""

    def gradient_of_penalty(dtype: torch.dtype) -> Tensor:
        x = normal(6, 5, dtype=dtype).requires_grad_()
        weight = normal(5, 5, dtype=dtype).requires_grad_()
        y = TReLU(slope)(TReLU(slope)(x @ weight) @ weight).square().sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), weight)[0]

    found, wanted = gradient_of_penalty(torch.float32), gradient_of_penalty(torch.float64)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-4)


@torch_scripts
def test_transformations_of_functions_see_through_trelu() -> None:
    x, trelu = normal(6, 5), TReLU(0.3)
    loss = lambda row: trelu(row).pow(3).sum()
    plain = lambda row: reference(row, 0.3, trelu.constants["output_scale"]).pow(3).sum()
    for transform in (
        lambda f: torch.func.vmap(torch.func.grad(f)),
        lambda f: torch.func.vmap(torch.func.hessian(f)),
        lambda f: torch.func.jacfwd(f),
    ):
        close(transform(loss)(x), transform(plain)(x), 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *ROUNDING], ids=str)
def test_trelu_saves_as_many_bytes_as_leaky_relu(dtype: torch.dtype) -> None:
    x = normal(64, 33, dtype=dtype).requires_grad_()
    assert saved_bytes(TReLU(0.3), x) == saved_bytes(nn.LeakyReLU(0.3), x) == x.nbytes


def test_without_hooks_trelu_is_one_operation_that_keeps_its_input_only() -> None:
    x = normal(64, 33).requires_grad_()
    y = TReLU(0.3)(x)
    assert y.grad_fn is not None
    assert [type(f).__name__ for f, _ in y.grad_fn.next_functions if f] == ["AccumulateGrad"]
    assert kept(y) == kept(nn.LeakyReLU(0.3)(x)) == {x.untyped_storage().data_ptr()}


def test_where_pytorch_does_not_tell_of_hooks_trelu_is_the_plain_expression(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(_autograd, "_top_saved_tensors_default_hooks")
    spec = importlib.util.spec_from_file_location("skipless.torch.again", activations.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    x = normal(64, 33).requires_grad_()
    y = again.TReLU(0.3)(x)
    assert type(y.grad_fn).__name__ == "MulBackward0"
    close(y, TReLU(0.3)(x), 1e-6)


def test_trelu_trains_under_checkpointing_and_offloading() -> None:
    model = nn.Sequential(nn.Linear(5, 5), TReLU(0.3), nn.Linear(5, 5), TReLU(0.3))
    x = normal(6, 5)

    def gradients(y: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(y.square().sum(), list(model.parameters())))

    wanted = gradients(model(x))
    with save_on_cpu():
        y = model(x)
    torch.testing.assert_close(gradients(y), wanted)
    again = checkpoint(model, x, use_reentrant=False)
    assert isinstance(again, Tensor)
    torch.testing.assert_close(gradients(again), wanted)


def test_changing_the_input_in_place_before_the_backward_pass_is_noticed() -> None:
    x = normal(8).requires_grad_() * 1.0
    y = TReLU(0.3)(x)
    x.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_trelu_keeps_the_memory_format() -> None:
    x = normal(2, 8, 4, 4).to(memory_format=torch.channels_last)
    assert TReLU(0.3)(x).is_contiguous(memory_format=torch.channels_last)
