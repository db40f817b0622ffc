"""ONNX files from elsewhere: a graph or an error that names the file, and no other file is read."""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import onnx
from onnx import TensorProto, helper
from skipless.onnx import export, peak_memory, read
from skipless.onnx.graph import UnknownShapeError
from skipless.onnx.run import open_session
from test_fuzz import COUNT, damaged, harmless


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    path = tmp_path_factory.mktemp("onnx") / "net.onnx"
    return export(model, torch.zeros(1, 1, 4, 4), path).read_bytes()


@settings(
    max_examples=int(COUNT or 100),
    derandomize=COUNT is None,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_damaged_file_is_a_graph_or_an_error(
    tmp_path_factory, whole: bytes, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "net.onnx"
    path.write_bytes(data.draw(damaged(whole)))
    with harmless(path.parent):
        read(path)
        peak_memory(path)


@pytest.mark.parametrize(
    "content", [b"", b"no model", b"\x08\xff\xff", b"\x08" * 100, bytes(1000), b"\x3a\x00"]
)
def test_what_is_no_model_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"net\.onnx cannot be read as an ONNX network") as raised:
        read(path)
    assert "\n" not in str(raised.value)
    assert not isinstance(raised.value, UnknownShapeError)


@pytest.mark.skipif(os.name == "nt", reason="needs links and pipes")
@pytest.mark.parametrize("place", ["../secret", "/secret", "link", "pipe", "missing"])
def test_weights_outside_of_the_folder_are_not_read(tmp_path: Path, place: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(np.full(4, 7.0, np.float32).tobytes())
    (folder / "link").symlink_to(secret)
    os.mkfifo(folder / "pipe")
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    location = str(secret) if place == "/secret" else place
    for key, value in (("location", location), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 4]) for n in "xy"]
    node = helper.make_node("Add", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    assert read(path).kinds == {"Add": 1}  # which needs no weights
    with pytest.raises(Exception, match=r"(?i)external|escapes|secret|link|pipe|missing|file"):
        open_session(path)
    with warnings.catch_warnings(action="ignore"), pytest.raises(Exception, match=r"."):
        onnx.load(path)
