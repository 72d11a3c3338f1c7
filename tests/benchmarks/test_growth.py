"""Whether cost that grows faster than the size is seen as such, on made-up figures."""

from __future__ import annotations

import pytest

from benchmarks._growth import scaling
from benchmarks._measure import Figure

SIZES = (1, 10, 100, 1000, 10_000)


def growth(exponent, whole, fixed=0.0):
    """The ratio of the growth where cost is this power of the size, and something beside it."""
    figures = {
        ("ours", size): Figure(tuple(noise * (fixed + size**exponent) for noise in (1.0, 1.1, 0.9, 1.0, 1.05)))
        for size in SIZES
    }
    result = scaling(figures, of="things", per="thing", ours="ours", whole=whole)
    return result.ratios[0]


@pytest.mark.parametrize(
    ("exponent", "whole", "met"),
    [(1, True, True), (0.5, True, True), (1.3, True, False), (2, True, False), (0, False, True), (0.3, False, False)],
)
def test_cost_may_grow_as_the_size_does(exponent, whole, met):
    """That of all linearly, that of a part not at all."""
    ratio = growth(exponent, whole)
    assert ratio.value == pytest.approx(10**exponent)
    assert ratio.met is met


def test_what_is_the_same_for_all_sizes_hides_no_growth():
    """At the smallest sizes it is nearly all that there is."""
    assert growth(2, whole=True, fixed=50.0).met is False


@pytest.mark.parametrize(("ours", "met"), [(0.5, True), (0.8, False)])
def test_cost_may_grow_as_that_of_the_same_without_effects_does(ours, met):
    """Where what is without effects gets slower with the size too."""
    figures = {
        (name, size): Figure((size**exponent,) * 5)
        for name, exponent in {"ours": ours, "plain": 0.5}.items()
        for size in SIZES
    }
    result = scaling(figures, of="things", per="thing", ours="ours", plain="plain", beside_plain=True)
    assert result.ratios[0].label == "ours / plain, ten times the things"
    assert result.ratios[0].value == pytest.approx(10 ** (ours - 0.5))
    assert result.ratios[0].met is met


def test_ratios_of_each_size():
    """Against JAX's own and against none, also where a contender has one figure for all sizes."""
    figures = {
        (name, size): Figure((cost,) * 5) for name, cost in {"ours": 2.0, "jaxs": 20.0}.items() for size in SIZES
    }
    same = {"plain": Figure((1.0,) * 5)}
    result = scaling(figures, of="things", per="thing", ours="ours", jaxs="jaxs", plain="plain", same=same)
    ratios = {ratio.label: ratio.value for ratio in result.ratios[1:]}
    assert ratios.keys() == {f"{size:,}: {pair}" for size in SIZES for pair in ("ours / plain", "jaxs / ours")}
    assert ratios["1,000: jaxs / ours"] == 10
    assert ratios["1,000: ours / plain"] == 2
    assert list(result.figures).count("plain") == 1
