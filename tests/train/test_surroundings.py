"""What the engine stands on: random numbers, processes, memory."""

import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from skipless.train import process as processes
from skipless.train.checkpoint import random_state, restore_random_state
from skipless.train.journal import provenance
from skipless.train.memory import estimate_memory
from skipless.train.process import Process, cores, distribute, gpu_kernels, process_group
from skipless.train.settings import Settings

CPU = torch.device("cpu")


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), random.random()]  # noqa: NPY002


def test_every_generator_goes_on_from_where_it_was() -> None:
    state = random_state(CPU)
    first, second = drawn(), drawn()
    restore_random_state(state, CPU)
    again = drawn()
    assert again == first
    assert all(a != b for a, b in zip(again, second, strict=True))


def test_settings_of_torch_are_as_asked_and_then_as_before() -> None:
    tiny, threads = torch.tensor(1e-40), torch.get_num_threads()
    with process_group("cpu", threads=2) as process:
        assert torch.get_num_threads() == 2
        assert (tiny * 1.0).item() == 0.0  # denormals are flushed
        assert (process.rank, process.world, process.is_main) == (0, 1, True)
    assert torch.get_num_threads() == threads
    assert (tiny * 1.0).item() > 0.0


def kernels() -> tuple[object, ...]:
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.benchmark


@pytest.mark.parametrize(
    ("tf32", "precision"), [(True, ("tf32", "tf32")), (False, ("ieee", "ieee")), (None, None)]
)
def test_products_on_gpus_are_rounded_as_asked_and_then_as_before(
    tf32: bool | None, precision: tuple[str, str] | None
) -> None:
    before = kernels()
    for benchmark in (True, False):
        with gpu_kernels(tf32, benchmark):
            assert kernels() == (*(precision or before[:2]), benchmark)
        assert kernels() == before


@pytest.mark.parametrize(
    ("device", "asked", "kind"),
    [
        ("cuda:0", None, nn.SyncBatchNorm),
        ("cuda:0", True, nn.SyncBatchNorm),
        ("cuda:0", False, nn.BatchNorm2d),
        ("cpu", False, nn.BatchNorm2d),
    ],
)
def test_batch_norm_sees_the_whole_batch_or_a_share_as_asked(
    monkeypatch: pytest.MonkeyPatch, device: str, asked: bool | None, kind: type
) -> None:
    monkeypatch.setattr(processes, "DistributedDataParallel", lambda model, **_: model)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    distributed = distribute(model, Process(0, 2, torch.device(device)), asked)
    assert type(list(distributed.modules())[-1]) is kind


def test_batch_norm_of_cpus_cannot_see_the_whole_batch_which_only_matters_if_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "DistributedDataParallel", lambda model, **_: model)
    two = Process(0, 2, CPU)
    plain, normalised = nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))
    assert distribute(plain, two, True) is plain
    assert distribute(normalised, Process(), True) is normalised
    with pytest.raises(ValueError, match=r"no SyncBatchNorm for cpu\. Use --no-sync-batch-norm"):
        distribute(normalised, two, True)
    with pytest.warns(UserWarning, match="statistics over each of the 2 processes' shares"):
        distribute(normalised, two)


@pytest.mark.parametrize(
    ("there", "chosen"), [((), "cpu"), (("mps",), "mps"), (("cuda", "mps"), "cuda")]
)
def test_the_quickest_device_is_taken(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.mps, "is_available", lambda: "mps" in there)
    with process_group("auto") as process:
        assert process.device.type == chosen


def test_only_cores_that_may_be_used_count() -> None:
    assert cores() == len(os.sched_getaffinity(0))


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, 5))


def memory(settings: Settings, momentum: float = 0.9) -> tuple[int, int, int, int]:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=momentum)
    found = estimate_memory(model, optimizer, torch.zeros(4, 10), settings)
    kept = found.weights + found.gradients + found.optimizer + found.activations
    # Going back, there are at most the gradients of what tanh returned, and of the input.
    part = settings.batch_size // settings.accumulate
    number = 2 if settings.precision == "bfloat16" else 4
    assert found.total == kept + number * (20 + 10) * part
    return found.weights, found.gradients, found.optimizer, found.activations


def test_memory_is_what_counting_by_hand_gives() -> None:
    weights = 4 * (10 * 20 + 20 + 20 * 5 + 5)
    # The backward pass reads, of each sample: the input, the output of tanh, which the next layer
    # reads too, the logarithm of the softmax, all as floats, and its label, which is a long; and,
    # of all samples together, one number, which the loss was divided by.
    sample = 4 * (10 + 20 + 5) + 8
    one, gradients, optimizer, activations = memory(Settings(batch_size=64))
    assert (one, gradients, optimizer) == (weights, weights, weights)
    assert activations == 64 * sample + 4
    assert memory(Settings(batch_size=64), momentum=0.0)[2] == 0


def test_memory_depends_on_the_settings() -> None:
    base = Settings(batch_size=64)
    whole = memory(base)
    assert memory(replace(base, batch_size=128))[3] - 4 == 2 * (whole[3] - 4)
    assert memory(replace(base, accumulate=4))[3] - 4 == (whole[3] - 4) / 4
    assert memory(replace(base, average=0.9))[0] == 2 * whole[0]
    # Of each sample, bfloat16 saves half of the input and of what tanh returns, and keeps the
    # logits in float32 for the loss; and it keeps copies of both matrices.
    half = memory(replace(base, precision="bfloat16"))[3]
    assert half < whole[3] + 2 * (10 * 20 + 20 * 5)
    doubled = memory(replace(base, precision="bfloat16", batch_size=128))[3]
    assert doubled - half < whole[3]


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_no_program_of_a_repository_runs_when_its_commit_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *identity, *arguments], check=True, capture_output=True)

    git("init", "-q")
    file = tmp_path / "file"
    file.write_text("one\n")
    (tmp_path / ".gitattributes").write_text("* filter=a=b.c\n")
    (tmp_path / ".git" / "info" / "attributes").write_text("* filter=plain\n")
    git("add", "-A")
    git("commit", "-q", "-m", "one")
    assert provenance()["git_changed"] is False
    tool = tmp_path / "tool"
    tool.write_text(f"#!/bin/sh\necho \"$0\" >> '{tmp_path}/ran'\ncat\n")
    tool.chmod(0o755)
    names = ("filter.plain.clean", "filter.a=b.c.clean", "filter.a=b.c.process", "core.fsmonitor")
    for name in names:
        git("config", name, str(tool))
    git("config", "filter.plain.required", "true")
    (tmp_path / ".git" / "hooks" / "post-index-change").symlink_to(tool)
    file.write_text("two\n")
    found = provenance()
    assert not (tmp_path / "ran").exists()
    assert found["git_changed"] is True
    assert len(str(found["git_commit"])) == 40
    git("status")  # as a user would
    assert (tmp_path / "ran").exists()
