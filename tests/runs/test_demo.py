"""`make demo` on a small scale, and its page in a browser."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from browser import chromium
from skipless.models import create_model
from skipless.record import Record
from skipless.report.comparison import Tuning
from skipless.runs.demo import NETWORKS, RATES, DemoNetwork, configure, main
from skipless.runs.place import OUTCOME, Place

RATE = 0.003
GRID = [Tuning(RATE, clipped) for clipped in (False, True)]
SEEDS = (0, 1)


SMALL = [
    replace(n, configuration=replace(n.configuration, width=0.0625, epochs=1, batch_size=359))
    for n in NETWORKS
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return main(tmp_path_factory.mktemp("out"), SMALL, rates=(RATE,), seeds=SEEDS, workers=1)


def trained(page: Path, network: DemoNetwork, setting: Tuning, seed: int) -> bool:
    return (Place(page.parent / "demo").run(configure(network, setting, seed)) / OUTCOME).exists()


@pytest.mark.parametrize("network", SMALL, ids=lambda network: network.label)
def test_every_setting_is_tried_and_one_of_them_with_every_seed(
    page: Path, network: DemoNetwork
) -> None:
    assert [trained(page, network, setting, SEEDS[0]) for setting in GRID] == [True, True]
    assert sorted(trained(page, network, setting, SEEDS[1]) for setting in GRID) == [False, True]


def test_clipping_is_what_the_settings_differ_in() -> None:
    given = [configure(NETWORKS[1], setting, 7) for setting in GRID]
    assert given[0] != given[1]
    assert given[1] == replace(given[0], clip=1.0)
    assert (given[0].lr, given[0].seed) == (RATE, 7)


def test_another_demo_trains_again(page: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(page.parent, tmp_path / "out"))
    run = Place(copy / "demo").run(configure(SMALL[0], GRID[0], SEEDS[0]))
    (run / "metrics.jsonl").write_text("")
    main(copy, SMALL[:1], rates=(RATE,), seeds=SEEDS, workers=1)
    assert Record.read(run).series("validation", "epoch")[1] == [1.0]


def test_picture_and_table_are_of_the_same_runs(page: Path) -> None:
    table = (page.parent / "demo.md").read_text(encoding="utf-8").splitlines()
    assert [row.split("|")[1].strip() for row in table[2:]] == [n.label for n in SMALL]
    picture = (page.parent / "demo.svg").read_text(encoding="utf-8")
    for row in table[2:]:
        assert f">{row.split('|')[-2].strip()}<" in picture


def test_the_page_describes_all_networks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for network in NETWORKS:
        assert network.label in text
        assert network.description in text


def test_a_browser_shows_the_page_without_complaint(page: Path) -> None:
    with chromium() as browser:
        browser.go(page)
        assert browser.console() == []
        sizes = browser.run(
            "return [...document.querySelectorAll('figure svg.chart')]"
            ".map(svg => svg.getBoundingClientRect()).map(box => [box.width, box.height])"
        )
    # C map, layer by layer, loss, accuracy, learning rates without and with clipping
    assert len(sizes) == 6
    assert min(size for pair in sizes for size in pair) > 150


def test_the_networks_are_of_one_depth_and_only_the_resnet_has_shortcuts_and_norms() -> None:
    built = [
        create_model(
            n.configuration.model,
            in_chans=1,
            num_classes=10,
            img_size=8,
            width=n.configuration.width,
            shortcut_weight=n.configuration.shortcut_weight,
        )
        for n in NETWORKS
    ]
    assert {n.configuration.model for n in NETWORKS} == {"resnet50"}
    norms = [sum("BatchNorm" in type(m).__name__ for m in net.modules()) for net in built]
    assert norms[:2] == [0, 0]
    assert norms[2] >= 48
    rest = {replace(n.configuration, shortcut_weight=None, method=None, eta=None) for n in NETWORKS}
    assert len(rest) == 1, "all else is equal"
    assert min(RATES) <= max(RATES) / 100
