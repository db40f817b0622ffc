"""The committed results as a page of the documentation, and as a table in the README.

    python -m skipless.paper.results_page

From the files in `results/cpu`, `docs/results.md` is written with its charts in
`docs/images/results`, and the table in `README.md` between its two marks.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from skipless.record import write_atomically
from skipless.report.sections import IMAGES, Section, chart_files, escaped, markdown, summary_table

from .reproduce import sections_of

RESULTS = Path("results/cpu")
START, END = "<!-- results: start -->", "<!-- results: end -->"

HEAD = """# Results

Every table and figure of the paper, run again at the scale `cpu`, and at the end three experiments
beyond it, which say what they do otherwise. They are the same networks at the same depths, with an
eighth of their channels, on 2,560 images of Fashion-MNIST, averaged down to 7 x 7 pixels (figure 5:
5,120 of CIFAR-10, to 8 x 8), for 5 epochs where the paper has 90, with batches of 64 where it has
1,024. What can be compared with the paper is the shape of a claim: who wins, and what happens with
depth. The accuracies themselves cannot; those in brackets are the paper's, on ImageNet.

Each cell is the best of its learning rates (`skipless.paper.scales` has them), as the mean
validation accuracy of its seeds with its standard error, on 2,000 images. K-FAC has one rate, 0.01
unless an item says otherwise, to save time: at depth 50 it was better than 0.001 and 0.003 for EOC
and TAT (one seed, 9 epochs), and 0.03 was a point better still for both (three seeds).
A difference of up to two standard errors counts as noise. A cell with one seed is taken to be no
more certain than the other; of two such cells, up to 2 points count as noise. That is about right
for K-FAC, whose seeds have a standard deviation of 0.6 (median over settings), and too little for
SGD, with a median of 1.6 and up to 13: verdicts on SGD from one seed are not to be relied on. As in
the paper, settings are chosen by the validation accuracy that is reported.

What to keep in mind, and why some claims do not hold, as far as we know:

- After 5 epochs, or 200 steps, nothing is trained to the end. Differences of optimisation count for
  more than in the paper, those of generalisation for less: EOC does not reach TAT's training
  accuracy (figure 7), and whatever takes fewer steps, such as larger batches, loses (table 8).
- K-FAC and BatchNorm do not get on here. The norm constraint of 0.0001, which is the paper's for
  CIFAR-10, keeps the ResNet of table 2 at 33 %; with 0.01 and a rate of 0.1 it reached 68 % (one
  seed). So where K-FAC trains networks with BatchNorm (tables 2, 3, 4, 11), that says little.
- Whether EOC trains 101 layers depends on the seed, which makes for large standard errors: some of
  its losses (tables 3 and 5) are large and still within two of them.
- On images of 7 x 7 pixels, whose last layers see one pixel, most taps of a Gaussian 3 x 3 kernel
  read padding, and the signal fades with depth; Delta kernels do not care (table 11).
- Figure 5 has 400 steps on CIFAR-10, too few: EOC is at chance at either depth. Table 7 has one
  rate for SGD and one seed, table 9 and the optimisers have one seed.
- Batches of one and two images have one learning rate, on account of their cost. With one image,
  BatchNorm labels 41 % of the training images of the last epoch right, by the statistics of each
  image itself, and 17 % of the validation images, by running ones. With 64 images,
  which make 48 steps of three epochs, vanilla networks lose; all the more with two classes at a
  time.
- After 5 epochs on the same images, a teacher adds nothing that three seeds could tell from noise;
  where the student has a fifth of the images, a setting tried after that, it adds almost three
  points (distillation).
- Inverses every 200 steps are few for runs of 400 (figure 6).
- Runs shared two cores with others, so seconds (figure 6, optimisers) are good to about a tenth;
  those of batch sizes and distillation, on a machine that was busy, say nothing.

This page is made from the records in `results/cpu`, by `make results`; `skipless reproduce ITEM`
makes new ones.

"""


def page(results: Path = RESULTS) -> tuple[str, dict[str, str], str]:
    """The text of the page, its charts by file name, and the README's table."""
    sections = sections_of(sorted(results.glob("*.jsonl")))
    text = (
        HEAD
        + "## In short\n\n"
        + _counted(sections)
        + summary_table(sections)
        + "\n"
        + markdown(sections)
    )
    return text, chart_files(sections), _by_item(sections)


def _counted(sections: list[Section]) -> str:
    verdicts = [verdict for section in sections for verdict in section.verdicts]
    count = lambda word: sum(verdict.word == word for verdict in verdicts)
    return (
        f"Of {len(verdicts)} claims, {count('holds')} hold and {count('does not hold')} do not; "
        f"{count('not run')} were not run.\n\n"
    )


def _by_item(sections: list[Section]) -> str:
    """A table of the items: how many of their claims hold, and the first of them."""
    rows = ["| item | claims that hold | the first of them |\n| :--- | :--- | :--- |\n"]
    for section in sections:
        words = [verdict.word for verdict in section.verdicts]
        first = section.verdicts[0]
        rows.append(
            f"| [{escaped(section.title)}](docs/results.md#{section.name}) "
            f"| {words.count('holds')} of {len(words)} "
            f"| {escaped(first.claim.rstrip('.'))}: **{first.word}** |\n"
        )
    return "".join(rows)


def with_table(readme: str, table: str) -> str:
    """The README with another table between its marks."""
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"README.md lacks the marks {START} and {END}. Put them back.")
    return f"{before}{START}\n{table}{END}{after}"


def write(root: Path) -> Path:
    """Write page, charts and table under `root`, and return the page."""
    text, charts, table = page(root / RESULTS)
    readme = root / "README.md"
    with_results = with_table(readme.read_text(encoding="utf-8"), table)
    images = root / "docs" / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    for old in images.glob("*.svg"):
        old.unlink()
    for name, drawing in charts.items():
        write_atomically(images / name, drawing)
    write_atomically(readme, with_results)
    write_atomically(root / "docs" / "results.md", text)
    return root / "docs" / "results.md"


if __name__ == "__main__":
    click.echo(write(Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
