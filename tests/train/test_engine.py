"""The engine does what a loop written by hand does, and loses nothing."""

import errno
import io
import itertools
import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skipless.record import Json, MetricsFile, Record, number
from skipless.train.batches import Batches
from skipless.train.checkpoint import Checkpoints, DamagedCheckpointWarning
from skipless.train.engine import DivergedError, Engine, LogWindow, clip_by_unit_, evaluate
from skipless.train.process import Process
from skipless.train.settings import Settings
from toy_training import Toy, run_folder, toy_data, toy_engine, toy_model

PLAIN = Settings(
    epochs=3, batch_size=12, schedule="constant", warmup=0, log_every=1, label_smoothing=0.1
)


def curve(folder: Path) -> list[dict[str, object]]:
    """All that a run measured but the time it took."""
    timed = ("seconds", "images_per_second")
    rows = Record.read(folder).metrics
    return [{key: value for key, value in row.items() if key not in timed} for row in rows]


def losses(folder: Path) -> list[float]:
    return Record.read(folder).series("train", "loss")[1]


def by_hand(settings: Settings) -> tuple[list[float], nn.Module]:
    """Losses and network of the plainest loop there is."""
    data, model = toy_data(), toy_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    found = []
    for epoch in range(settings.epochs):
        for images, labels in Batches(data.train, settings.batch_size, settings.seed).epoch(epoch):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=settings.label_smoothing)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found, model


def test_the_losses_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    engine = toy_engine(PLAIN)
    assert engine.run(folder).finished
    wanted, model = by_hand(PLAIN)
    assert losses(folder) == wanted
    for own, other in zip(engine.model.parameters(), model.parameters(), strict=True):
        assert torch.equal(own, other)


def test_a_line_of_the_journal_is_the_mean_over_its_steps(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    toy_engine(replace(PLAIN, log_every=5)).run(folder)
    wanted, _ = by_hand(PLAIN)
    steps, found = Record.read(folder).series("train", "loss")
    assert steps == [5, 10, 12]
    means = [sum(wanted[a:b]) / (b - a) for a, b in ((0, 5), (5, 10), (10, 12))]
    assert found == pytest.approx(means, rel=1e-12)


def test_the_learning_rate_follows_the_schedule(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    toy_engine(replace(PLAIN, schedule="step", epochs=9)).run(folder)
    _, rates = Record.read(folder).series("train", "learning_rate")
    # 36 steps: a tenth from the 17th on (4/9), a hundredth from the 29th on (7/9).
    assert rates == pytest.approx([0.1] * 16 + [0.01] * 12 + [0.001] * 8)


@pytest.mark.parametrize(
    ("warmup", "epochs", "steps"),
    [(2.0, 5, 8), (0.5, 5, 2), (0.0, 5, 0), (None, 15, 6), (None, 60, 20)],
)
def test_the_warm_up_takes_epochs_by_default_five_or_a_tenth_of_the_run(
    warmup: float | None, epochs: int, steps: int
) -> None:
    engine = toy_engine(replace(PLAIN, warmup=warmup, epochs=epochs))  # of 4 steps an epoch
    assert [engine.schedule.factor(n) for n in range(steps + 2)] == pytest.approx(
        [n / steps for n in range(1, steps)] + [1.0] * (3 if steps else 2)
    )


def test_evaluations_are_as_rare_as_asked_and_the_last_is_not_left_out(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    toy_engine(replace(PLAIN, evaluate_every=2)).run(folder)
    assert Record.read(folder).series("validation", "top1")[0] == [8, 12]


def test_time_only_grows_also_over_a_stop(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    first = toy_engine(PLAIN)
    stopped_after(first, 6, signal.SIGTERM)
    first.run(folder)
    toy_engine(PLAIN).run(folder, resume=True)
    rows = Record.read(folder).metrics
    seconds = [number(row, "seconds") for row in rows]
    assert seconds[0] > 0.0
    assert seconds == sorted(seconds)


def test_a_run_that_is_over_is_left_as_it_is(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    toy_engine(PLAIN).run(folder)
    before = [path.stat().st_ino for path in Checkpoints(folder).paths()]
    assert toy_engine(PLAIN).run(folder, resume=True).finished
    assert [path.stat().st_ino for path in Checkpoints(folder).paths()] == before


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_clock_that_jumps_back_disturbs_neither_metrics_nor_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = itertools.count()
    for module in ("time", "tqdm.std"):
        monkeypatch.setattr(f"{module}.time", lambda: 1e9 - 3600.0 * next(hours))
    monkeypatch.setattr("sys.stderr", shown := Terminal())
    folder = run_folder(tmp_path / "run")
    engine = toy_engine(replace(PLAIN, log_every=1))
    engine.run(folder)
    seconds = Record.read(folder).series("train", "seconds")[1]
    assert seconds == sorted(seconds)
    assert 0.0 < seconds[-1] < 600.0
    last = shown.getvalue().split("\r")[-1]
    assert f"{engine.total}/{engine.total} [00:" in last


def test_what_a_killed_process_left_half_written_or_half_removed_goes_on_resuming(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path / "run")
    settings = replace(PLAIN, checkpoint_every=2, keep=1)
    toy_engine(settings).run(folder)
    newest = sorted((folder / "checkpoints").iterdir())
    for left in ("step-00000001", "step-00000003.partial"):
        (folder / "checkpoints" / left).mkdir()
        (folder / "checkpoints" / left / "state.pt").write_bytes(b"half")
    assert toy_engine(settings).run(folder, resume=True).finished
    assert sorted((folder / "checkpoints").iterdir()) == newest


def test_a_run_does_not_start_among_the_checkpoints_of_another(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    toy_engine(PLAIN).run(folder)
    before = curve(folder)
    with pytest.raises(FileExistsError, match="checkpoints of another"):
        toy_engine(PLAIN).run(folder)
    assert curve(folder) == before


def test_parts_of_a_batch_add_up_to_the_batch(tmp_path: Path) -> None:
    data = toy_data()
    found = []
    for accumulate in (1, 3):
        folder = run_folder(tmp_path / str(accumulate))
        torch.manual_seed(1)
        model = nn.Sequential(nn.Flatten(), nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 7))
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        Engine(model, optimizer, data, replace(PLAIN, accumulate=accumulate)).run(folder)
        found.append(Record.read(folder))
    for name in ("loss", "accuracy"):
        whole, parts = (record.series("train", name)[1] for record in found)
        assert whole == pytest.approx(parts, rel=1e-5)


def test_the_average_is_that_of_the_weights_after_each_step(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    settings = replace(PLAIN, average=0.75)
    engine = toy_engine(settings)
    seen: list[Tensor] = []
    engine.optimizer.register_step_post_hook(
        lambda *_: seen.append(next(engine.model.parameters()).detach().clone())
    )
    engine.run(folder)
    wanted = seen[0]
    for weights in seen[1:]:
        wanted = 0.75 * wanted + 0.25 * weights
    assert engine.average is not None
    torch.testing.assert_close(next(engine.average.parameters()).detach(), wanted)
    assert Record.read(folder).series("average", "top1")[0] == [4, 8, 12]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_gradients_are_clipped(tmp_path: Path, accumulate: int) -> None:
    engine = toy_engine(replace(PLAIN, clip=0.01, accumulate=accumulate))
    norms: list[float] = []
    engine.optimizer.register_step_pre_hook(
        lambda *_: norms.append(
            math.sqrt(
                sum(
                    float(p.grad.square().sum())
                    for p in engine.model.parameters()
                    if p.grad is not None
                )
            )
        )
    )
    engine.run(run_folder(tmp_path / "run"))
    assert norms == pytest.approx([0.01] * 12, rel=1e-3)


def test_adaptive_clipping_bounds_the_gradient_of_each_unit() -> None:
    model = nn.Sequential(nn.Conv2d(2, 3, (1, 2)), nn.Flatten(), nn.Linear(3, 1))
    filters, biases, *last = model.parameters()
    # Of filters whose norms are 5, 5 and 0, gradients whose norms are 10, 0.4 and 1.
    filters.data = torch.tensor([[3.0, 0, 4, 0], [0, 5, 0, 0], [0, 0, 0, 0]]).view(3, 2, 1, 2)
    filters.grad = torch.tensor([[0, 6.0, 0, 8], [0.4, 0, 0, 0], [0, 0, 0, 1]]).view(3, 2, 1, 2)
    biases.data, biases.grad = torch.tensor([1.0, 2, 2]), torch.tensor([2.0, 1, 2])
    for p in last:
        p.grad = torch.full_like(p, 100.0)
    clip_by_unit_(model, 0.1)
    wanted = torch.tensor([[0, 0.3, 0, 0.4], [0.4, 0, 0, 0], [0, 0, 0, 1e-4]]).view(3, 2, 1, 2)
    torch.testing.assert_close(filters.grad, wanted)
    torch.testing.assert_close(biases.grad, torch.tensor([0.2, 0.1, 0.2]))  # one unit
    assert all(p.grad is not None and bool((p.grad == 100.0).all()) for p in last)


def test_the_engine_clips_adaptively(tmp_path: Path) -> None:
    engine = toy_engine(replace(PLAIN, clip="adaptive:0.05"))
    weights, shares = next(engine.model.parameters()), []

    def note(*_: object) -> None:
        assert weights.grad is not None
        with torch.no_grad():
            ratios = weights.grad.flatten(1).norm(dim=1) / weights.flatten(1).norm(dim=1)
        shares.append(float(ratios.max()))

    engine.optimizer.register_step_pre_hook(note)
    engine.run(run_folder(tmp_path / "run"))
    assert shares == pytest.approx([0.05] * 12, rel=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_memory_format_and_precision_change_little(tmp_path: Path, precision: str) -> None:
    folder = run_folder(tmp_path / "run")
    settings = replace(PLAIN, precision=precision, channels_last=True)
    engine = toy_engine(settings)
    engine.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    engine.run(folder)
    wanted, _ = by_hand(PLAIN)
    assert losses(folder) == pytest.approx(wanted, rel=1e-4 if precision == "float32" else 0.05)
    assert losses(folder) != wanted or precision == "float32"


def test_evaluation_counts_every_sample_once() -> None:
    data, model = toy_data(validation=17), toy_model().eval()
    logits = model(data.validation.load(range(17), None)[0])
    labels = data.validation.load(range(17), None)[1]
    order = logits.argsort(dim=1, descending=True)
    ranks = [order[i].tolist().index(int(labels[i])) for i in range(17)]
    found = evaluate(
        model, Batches(data.validation, 4).in_order(), Process(), lambda net, x: net(x)
    )
    assert found is not None
    assert found["top1"] == sum(rank < 1 for rank in ranks) / 17
    assert found["top5"] == sum(rank < 5 for rank in ranks) / 17
    assert found["loss"] == pytest.approx(F.cross_entropy(logits, labels).item())


def stopped_after(engine: Engine, step: int, number: signal.Signals) -> None:
    def stop(*_: object) -> None:
        if engine.step + 1 == step:
            os.kill(os.getpid(), number)

    engine.optimizer.register_step_post_hook(stop)


def test_a_run_that_is_stopped_resumes_exactly(tmp_path: Path) -> None:
    settings = replace(PLAIN, log_every=3, average=0.9)
    whole = run_folder(tmp_path / "whole")
    toy_engine(settings, dropout=0.5).run(whole)
    for step, sent in ((1, signal.SIGTERM), (4, signal.SIGINT), (7, signal.SIGTERM)):
        folder = run_folder(tmp_path / str(step))
        first = toy_engine(settings, dropout=0.5)
        stopped_after(first, step, sent)
        status = first.run(folder)
        assert (status.step, status.finished) == (step, False)
        assert toy_engine(settings, dropout=0.5).run(folder, resume=True).finished
        assert curve(folder) == curve(whole)


def test_a_stop_during_an_evaluation_leaves_it_for_later(tmp_path: Path) -> None:
    class Stopping(Toy):
        def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().load(indices, draws)

    whole, folder = run_folder(tmp_path / "whole"), run_folder(tmp_path / "run")
    toy_engine(PLAIN).run(whole)
    first, data = toy_engine(PLAIN), toy_data()
    assert isinstance(data.validation, Toy)
    stopping = Stopping(data.validation.images, data.validation.labels)
    first.validation = replace(first.validation, split=stopping)
    assert first.run(folder).step == 4
    assert Record.read(folder).series("validation", "top1")[0] == []
    toy_engine(PLAIN).run(folder, resume=True)
    assert curve(folder) == curve(whole)


def test_a_stop_during_the_last_evaluation_is_no_end(tmp_path: Path) -> None:
    whole, folder = run_folder(tmp_path / "whole"), run_folder(tmp_path / "run")
    settings = replace(PLAIN, evaluate_every=9)
    toy_engine(settings).run(whole)
    first = toy_engine(settings)
    stopped_after(first, 12, signal.SIGTERM)
    status = first.run(folder)
    assert (status.step, status.total, status.finished) == (12, 12, False)
    assert toy_engine(settings).run(folder, resume=True).finished
    assert curve(folder) == curve(whole)


def test_losses_of_a_gpu_are_looked_at_together_and_the_first_bad_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on a GPU, no loss is asked for by itself.
    monkeypatch.setattr(LogWindow, "last_is_bad", lambda _: False)
    monkeypatch.setattr(
        Engine,
        "_sees_divergence",
        lambda self: self._log_due() and self.window.first_bad_loss() is not None,
    )
    engine = toy_engine(replace(PLAIN, schedule="step", epochs=9, log_every=5))
    weight = next(engine.model.parameters())

    def spoil(*_: object) -> None:
        if engine.step + 1 == 17:
            weight.data[0] = math.nan

    engine.optimizer.register_step_post_hook(spoil)
    # After 17 of 36 steps the weights are bad, so the 18th loss is; seen at the 20th.
    with pytest.raises(DivergedError, match=r"nan at step 18 of 36, with learning rate 0\.01\."):
        engine.run(run_folder(tmp_path / "run"))
    *_, row = Record.read(tmp_path / "run").metrics
    assert (row["kind"], row["step"], row["epoch"]) == ("diverged", 18, 4.5)
    assert number(row, "learning_rate") == pytest.approx(0.01)
    assert number(row, "loss") == engine.window.losses[1].item()  # of steps 16 to 20


def test_a_journal_that_cannot_be_written_says_what_is_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run_folder(tmp_path / "run")
    append = MetricsFile.append

    def full(journal: MetricsFile, kind: str, step: int, values: dict[str, Json]) -> None:
        if step == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(journal, kind, step, values)

    monkeypatch.setattr(MetricsFile, "append", full)
    with pytest.raises(OSError, match=r"No space left on device.*step-00000004.*--resume"):
        toy_engine(PLAIN).run(folder)
    monkeypatch.undo()
    whole = run_folder(tmp_path / "whole")
    toy_engine(PLAIN).run(whole)
    toy_engine(PLAIN).run(folder, resume=True)
    assert curve(folder) == curve(whole)


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(tmp_path: Path) -> None:
    whole, folder = run_folder(tmp_path / "whole"), run_folder(tmp_path / "run")
    toy_engine(PLAIN).run(whole)
    toy_engine(replace(PLAIN, epochs=2)).run(folder)
    newest = Checkpoints(folder).paths()[-1] / "model.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.warns(DamagedCheckpointWarning):
        toy_engine(PLAIN).run(folder, resume=True)
    assert curve(folder) == curve(whole)


def test_a_loss_that_is_no_number_stops_the_run_and_names_what_to_know(tmp_path: Path) -> None:
    class Spoiled(Toy):
        def load(self, indices: Sequence[int], draws: Tensor | None) -> tuple[Tensor, Tensor]:
            images, labels = super().load(indices, draws)
            return torch.where(
                torch.as_tensor(indices)[:, None, None, None] == 11, math.nan, images
            ), labels

    folder = run_folder(tmp_path / "run")
    engine = toy_engine(replace(PLAIN, checkpoint_every=1, seed=2))
    order = [11 in labels for labels in _order(engine)]
    bad = order.index(True) + 1
    train = engine.training.split
    assert isinstance(train, Toy)
    engine.training = replace(engine.training, split=Spoiled(train.images, train.labels))
    with pytest.raises(DivergedError) as raised:
        engine.run(folder)
    message = str(raised.value)
    assert f"The loss is nan at step {bad} of 12" in message
    assert "learning rate 0.1" in message
    assert (f"step-{bad - 1:08d}" if bad > 1 else "none") in message
    assert not (folder / "checkpoints" / f"step-{bad:08d}").exists()
    (row,) = (row for row in Record.read(folder).metrics if row["kind"] == "diverged")
    assert (row["step"], row["epoch"], row["learning_rate"]) == (bad, bad / 4, 0.1)
    # A line for every step, and then one for this, whose loss is not finite.
    assert "loss" not in row
    resumed = toy_engine(replace(PLAIN, checkpoint_every=1, seed=2))
    resumed.run(folder, resume=True)
    assert all(row["kind"] != "diverged" for row in Record.read(folder).metrics)


def _order(engine: Engine) -> list[list[int]]:
    """The samples of each step of the first epoch."""
    numbered = Toy(torch.zeros(48, 2, 4, 4), torch.arange(48))
    return [labels.tolist() for _, labels in replace(engine.training, split=numbered).epoch(0)]


def test_weights_that_are_no_numbers_are_not_saved(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    engine = toy_engine(replace(PLAIN, checkpoint_every=2))
    weight = next(engine.model.parameters())

    def spoil(*_: object) -> None:
        if engine.step + 1 == 4:
            weight.data[0] = math.inf

    engine.optimizer.register_step_post_hook(spoil)
    with pytest.raises(DivergedError, match=r"A weight is not finite at step 4 .*step-00000002"):
        engine.run(folder)
    assert [path.name for path in Checkpoints(folder).paths()] == ["step-00000002"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"steps": 0},
        {"label_smoothing": 1.0},
        {"average": 1.5},
        {"clip": 0.0},
        {"clip": "adaptive:-1"},
        {"clip": "adaptive:"},
        {"clip": "adaptive2"},
        {"clip": "agc"},
        {"keep": 0},
        {"workers": -1},
        {"log_every": 0},
        {"evaluate_every": 0},
        {"accumulate": 0},
        {"warmup": -1.0},
    ],
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, float | str]) -> None:
    with pytest.raises(
        ValueError, match=f"{next(iter(wrong))} must be .*, got {next(iter(wrong.values()))}"
    ):
        replace(PLAIN, **wrong)
