"""Checkpoints are there as a whole or not at all."""

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from skipless.train.checkpoint import (
    Checkpoint,
    CheckpointError,
    Checkpoints,
    DamagedCheckpointWarning,
)


def checkpoint(step: int) -> Checkpoint:
    generator = torch.Generator().manual_seed(step)
    weights = {
        "conv": torch.randn(4, 3, 3, 3, generator=generator).to(memory_format=torch.channels_last),
        "slope": torch.tensor(0.1 + step, dtype=torch.float64),
        "count": torch.tensor(step),
    }
    state = {"step": step, "optimizer": {"momentum": torch.randn(5, generator=generator)}}
    return Checkpoint(step, weights, state)


def assert_equal(found: Checkpoint | None, wanted: Checkpoint) -> None:
    assert found is not None
    assert found.step == wanted.step
    assert found.weights.keys() == wanted.weights.keys()
    for name, tensor in wanted.weights.items():
        assert found.weights[name].dtype == tensor.dtype
        assert torch.equal(found.weights[name], tensor)
    momentum = [each.state["optimizer"]["momentum"] for each in (found, wanted)]
    assert torch.equal(*momentum)


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(checkpoint(7))
    assert_equal(Checkpoints(tmp_path).load_newest(), checkpoint(7))


def test_weights_that_share_memory_are_written_too(tmp_path: Path) -> None:
    shared = torch.arange(6.0)
    tied: dict[str, Tensor] = {"a": shared, "b": shared, "c": shared[:3]}
    Checkpoints(tmp_path).save(Checkpoint(1, tied, {}))
    found = Checkpoints(tmp_path).load_newest()
    assert found is not None
    assert all(torch.equal(found.weights[name], tied[name]) for name in tied)


def test_the_moving_average_is_kept_beside_the_weights(tmp_path: Path) -> None:
    average = {"w": torch.tensor([0.5, 0.25])}
    Checkpoints(tmp_path).save(Checkpoint(1, {"w": torch.ones(2)}, {}, average))
    found = Checkpoints(tmp_path).load_newest()
    assert found is not None
    assert found.average is not None
    assert torch.equal(found.average["w"], average["w"])


def test_the_newest_are_kept_and_older_ones_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (5, 90, 100, 1000):
        checkpoints.save(checkpoint(step))
    assert [path.name for path in checkpoints.paths()] == ["step-00000100", "step-00001000"]


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "manifest.json"])
@pytest.mark.parametrize("harm", ["a flipped bit", "cut off", "missing"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    tmp_path: Path, name: str, harm: str
) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1))
    file = checkpoints.save(checkpoint(2)) / name
    content = bytearray(file.read_bytes())
    if harm == "missing":
        file.unlink()
    elif harm == "cut off":
        file.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 0x10
        file.write_bytes(content)
    with pytest.warns(DamagedCheckpointWarning, match="step-00000002 is damaged"):
        found = checkpoints.load_newest()
    assert_equal(found, checkpoint(1))


def test_no_byte_of_a_manifest_can_change_unseen(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path).save(checkpoint(3)) / "manifest.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        content = bytearray(whole)
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedCheckpointWarning)
            found = Checkpoints(tmp_path).load_newest()
        if found is not None:  # a blank that became another blank, say
            assert_equal(found, checkpoint(3))


def test_a_checkpoint_under_the_name_of_another_is_damaged(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(checkpoint(3)).rename(tmp_path / "checkpoints" / "step-00000005")
    with pytest.warns(DamagedCheckpointWarning, match="that of step 3"):
        assert Checkpoints(tmp_path).load_newest() is None


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_checkpoint_does_not_outlive_newer_whole_ones(tmp_path: Path, keep: int) -> None:
    (Checkpoints(tmp_path).save(checkpoint(12)) / "state.pt").write_bytes(b"")
    checkpoints = Checkpoints(tmp_path, keep)
    with pytest.warns(DamagedCheckpointWarning):
        assert checkpoints.load_newest() is None
    assert checkpoints.describe_newest() == "none"
    checkpoints.save(checkpoint(9))
    checkpoints.save(checkpoint(10))
    assert_equal(Checkpoints(tmp_path).load_newest(), checkpoint(10))
    assert len(Checkpoints(tmp_path).paths()) == keep


def test_files_reach_the_disk_before_their_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename
    monkeypatch.setattr(os, "fsync", lambda one: (events.append("fsync"), fsync(one))[1])
    monkeypatch.setattr(
        Path, "rename", lambda path, to: (events.append("rename"), rename(path, to))[1]
    )
    Checkpoints(tmp_path).save(checkpoint(1))
    # model, state, manifest and their folder; then the name, and the folder that holds it
    assert events == [*["fsync"] * 4, "rename", "fsync"]


def test_steps_are_ordered_as_numbers(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(99_999_999))
    checkpoints.save(checkpoint(100_000_000))
    assert_equal(checkpoints.load_newest(), checkpoint(100_000_000))


def test_where_all_are_damaged_there_is_none(tmp_path: Path) -> None:
    (Checkpoints(tmp_path).save(checkpoint(1)) / "state.pt").write_bytes(b"")
    with pytest.warns(DamagedCheckpointWarning):
        assert Checkpoints(tmp_path).load_newest() is None


def test_what_was_being_written_when_the_process_died_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(checkpoint(1)).with_name("step-00000002.partial").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_equal(checkpoints.load_newest(), checkpoint(1))
    checkpoints.save(checkpoint(3))
    assert_equal(checkpoints.load_newest(), checkpoint(3))
    assert not list((tmp_path / "checkpoints").glob("*.partial"))


@pytest.mark.skipif(sys.platform == "win32", reason="limits are those of POSIX")
def test_on_a_full_disk_the_last_checkpoint_stays_and_is_named(tmp_path: Path) -> None:
    import resource

    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(Checkpoint(1, {"w": torch.zeros(10)}, {}))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # as a disk with no more room
    try:
        with pytest.raises(CheckpointError) as raised:
            checkpoints.save(Checkpoint(2, {"w": torch.zeros(10_000)}, {}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    for said in ("Cannot write the checkpoint of step 2", "File too large", "step-00000001"):
        assert said in str(raised.value)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    found = Checkpoints(tmp_path).load_newest()
    assert found is not None
    assert found.step == 1
