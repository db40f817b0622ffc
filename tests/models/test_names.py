"""Names of networks, and answers to wrong ones."""

import pytest

from skipless.models import create_model, list_models
from skipless.models.create import nearest_wide_depths, parse_name


def test_the_well_known_networks_are_listed_by_pattern() -> None:
    assert {"resnet50", "resnet101", "wide_resnet100", "wide_resnet304", "mlp50"} < {*list_models()}
    assert list_models("wide_*0") == ["wide_resnet40", "wide_resnet100"]
    assert list_models("resnet1?") == ["resnet18"]
    assert list_models("vgg*") == []


@pytest.mark.parametrize("name", list_models())
def test_every_listed_name_is_one_with_or_without_a_colon(name: str) -> None:
    family, depth = parse_name(name)
    assert name == f"{family}{depth}"
    assert parse_name(f"{family}:{depth}") == (family, depth)


def test_any_depth_of_an_mlp_and_any_6n_plus_4_of_a_wide_resnet_is_taken() -> None:
    assert parse_name("mlp:1") == ("mlp", 1)
    assert parse_name("mlp777") == ("mlp", 777)
    legal = {6 * n + 4 for n in range(1, 60)}
    for depth in range(1, 300):
        if depth in legal:
            assert parse_name(f"wide_resnet{depth}") == ("wide_resnet", depth)
            continue
        with pytest.raises(ValueError, match="6n \\+ 4"):
            parse_name(f"wide_resnet{depth}")
        nearest = nearest_wide_depths(depth)
        below, above = (
            {d for d in legal if d < depth},
            {d for d in legal if d > depth},
        )
        assert set(nearest) == {*([max(below)] if below else []), min(above)}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnet51", r"Did you mean resnet50.*mlp takes any depth"),
        ("resent50", r"Did you mean resnet50.*wide_resnet any depth 6n \+ 4"),
        ("wide_resnet:101", r"Use wide_resnet100 or wide_resnet106\."),
        ("wide_resnet4", r"Use wide_resnet10\."),
        ("mlp0", r"mlp takes any depth"),
        ("mlp", r"mlp takes any depth"),
        ("", r"There are resnet18, .*, resnet200; mlp takes any depth"),
    ],
)
def test_a_wrong_name_is_answered_by_the_nearest_right_ones(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=f"There is no model '{name}'.*{hint}"):
        create_model(name)
