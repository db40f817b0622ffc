"""The items beyond the paper on batches and teachers: what they run, and how they judge."""

import pytest

from skipless.paper import ITEMS
from skipless.paper.results import Results, Trial
from skipless.paper.scales import SCALES
from skipless.runs.outcome import Outcome, TrainingCurve, ValidationCurve


def results(item: str, cells: dict[tuple[str, str], tuple[float, ...]]) -> Results:
    curves = ValidationCurve([], [], []), TrainingCurve([], [], [], [])
    trials = (
        Trial(row, column, {}, seed, Outcome(False, top1, 1.0, top1, 1.0, 9, *curves, "", {}, {}))
        for (row, column), seeds in cells.items()
        for seed, top1 in enumerate(seeds)
    )
    return Results(item, "cpu", {}, tuple(trials))


@pytest.mark.parametrize("scale", SCALES)
def test_batches_are_as_large_as_their_column_says_for_the_same_epochs(scale):
    runs = ITEMS["batch_sizes"].runs(scale)
    for run in runs:
        size, _, classes = run.cell.column.partition(", of ")
        given = run.configuration
        assert given.batch_size == int(size)
        assert given.classes_per_batch == (int(classes.split()[0]) if classes else None)
    assert len({(run.configuration.epochs, run.configuration.train_size) for run in runs}) == 1


@pytest.mark.parametrize("scale", SCALES)
def test_a_student_learns_from_the_resnet_of_its_seed_and_the_images_of_its_scale(scale):
    runs = ITEMS["distillation"].runs(scale)
    alone = {run.configuration for run in runs if run.cell.row.startswith("ResNet")}
    taught = [run for run in runs if run.cell.column.startswith("taught")]
    assert {run.configuration.teacher_weight for run in taught} == {0.5, 0.9, 1.0}
    for run in taught:
        assert run.teacher is not None
        assert run.teacher.seed == run.seed
        assert run.teacher.norm == "batch"
        # At the scale full it is one of those that are searched over, with its own penalty on top.
        assert run.teacher in alone or scale != "cpu"
    assert not any(run.teacher for run in runs if run not in taught)


@pytest.mark.parametrize(
    ("teacher", "taught", "expected"),
    [
        ((0.80, 0.81, 0.82), (0.775, 0.785, 0.78), (True, True)),  # 4 of 7 points
        ((0.80, 0.81, 0.82), (0.76, 0.77, 0.765), (True, False)),
        ((0.80, 0.81, 0.82), (0.735, 0.75, 0.74), (False, False)),
        ((0.70, 0.71, 0.72), (0.77, 0.78, 0.785), (True, False)),  # no gap to close
    ],
)
def test_a_teacher_has_to_help_by_more_than_noise_and_by_half_of_the_gap(teacher, taught, expected):
    found = results(
        "distillation",
        {
            ("ResNet, BatchNorm", "alone"): teacher,
            ("vanilla, TReLU", "alone"): (0.73, 0.74, 0.75),
            ("vanilla, TReLU", "taught, share 0.9"): taught,
        },
    )
    verdicts = [verdict.holds for verdict in ITEMS["distillation"].verdicts(found)]
    assert tuple(verdicts[:2]) == expected
    assert verdicts[3] is None


def test_each_claim_on_batches_reads_its_own_columns():
    for number, column in enumerate(("1", "2", "64, of 2 classes", "8, of 1 class")):
        for better in (0.9, 0.3):
            cells = {
                ("ResNet, BatchNorm", column): (0.6, 0.61, 0.62),
                ("vanilla, TReLU", column): (better, better + 0.01, better),
            }
            found = ITEMS["batch_sizes"].verdicts(results("batch_sizes", cells))
            assert [verdict.holds for verdict in found] == [
                better > 0.5 if n == number else None for n in range(6)
            ]
