"""The items beyond the paper on batches and teachers: what they run, and how they judge."""

from dataclasses import replace

import pytest

from skipless.paper import ITEMS
from skipless.paper.results import Results, Trial
from skipless.paper.scales import SCALES
from skipless.runs.outcome import Outcome, TrainingCurve, ValidationCurve
from skipless.runs.place import run_key

HOLDS, NOT, OPEN, MISSING = "holds", "does not hold", "undecided", "not run"


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
    planned = ITEMS["batch_sizes"].plan(scale)
    for own in planned:
        size, _, classes = own.cell.column.partition(", of ")
        given = own.experiment.final
        assert given.batch_size == int(size)
        assert given.classes_per_batch == (int(classes.split()[0]) if classes else None)
    assert (
        len({(own.experiment.final.epochs, own.experiment.final.train_size) for own in planned})
        == 1
    )


@pytest.mark.parametrize("scale", SCALES)
def test_a_student_learns_from_a_resnet_and_the_images_of_its_scale(scale):
    planned = ITEMS["distillation"].plan(scale)
    taught = [own for own in planned if own.cell.column.startswith("taught")]
    assert {own.experiment.final.teacher_weight for own in taught} == {0.5, 0.9, 1.0}
    alone = next(o.experiment.final for o in planned if o.cell.row.startswith("ResNet"))
    for own in taught:
        assert own.teacher is not None
        assert own.experiment.final.teacher == run_key(own.teacher)
        # The ResNet of the table, at a rate of its own.
        assert replace(own.teacher, lr=None, l2=alone.l2) == replace(alone, lr=None)
    assert not any(own.teacher for own in planned if own not in taught)


@pytest.mark.parametrize(
    ("teacher", "taught", "expected"),
    [
        ((0.80, 0.81, 0.82), (0.78, 0.79, 0.80), (HOLDS, HOLDS)),  # 5 of 7 points
        ((0.80, 0.81, 0.82), (0.75, 0.76, 0.77), (HOLDS, NOT)),
        ((0.80, 0.81, 0.82), (0.725, 0.73, 0.742), (NOT, NOT)),
        ((0.70, 0.71, 0.72), (0.77, 0.78, 0.785), (HOLDS, OPEN)),  # no gap to close
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
    verdicts = [verdict.word for verdict in ITEMS["distillation"].verdicts(found)]
    assert tuple(verdicts[:2]) == expected
    assert verdicts[3] == MISSING


def test_each_claim_on_batches_reads_its_own_columns():
    for number, column in enumerate(("1", "2", "64, of 2 classes", "8, of 1 class")):
        for better in (0.9, 0.3):
            cells = {
                ("ResNet, BatchNorm", column): (0.6, 0.61, 0.62),
                ("vanilla, TReLU", column): (better, better + 0.01, better),
            }
            found = ITEMS["batch_sizes"].verdicts(results("batch_sizes", cells))
            expected = HOLDS if better > 0.5 else NOT
            assert [verdict.word for verdict in found] == [
                expected if n == number else MISSING for n in range(6)
            ]
