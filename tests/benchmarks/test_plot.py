"""The pictures of the documentation are those of the committed baselines."""

from __future__ import annotations

import json

import pytest

from benchmarks import _gate, _plot
from benchmarks.__main__ import main
from tests.helpers import ROOT

BASELINES = sorted(_gate.FOLDER.glob("*.json"))


def test_baselines_have_what_the_pictures_show():
    """There is one for each version of JAX that the package supports and the figures are from."""
    assert BASELINES
    for file in BASELINES:
        cases = json.loads(file.read_text())["cases"]
        labels = {(name, ratio["label"]) for name, case in cases.items() for ratio in case["ratios"]}
        assert _plot.BARS.keys() <= labels
        assert all(cases[name]["curve"] for name in _plot.CURVES)


def test_every_picture_is_in_the_documentation():
    """In the file that has the figures, and with light text where the page is dark."""
    page = (ROOT / "docs/performance.md").read_text()
    for name in ["performance", *_plot.CURVES]:
        assert f"(images/{name}.svg)" in page
        assert "prefers-color-scheme: dark" in (ROOT / f"docs/images/{name}.svg").read_text()


def test_baseline_is_not_worse_than_itself(capsys):
    """The command reads it, shows it and compares it."""
    for file in BASELINES:
        assert main(["--read", str(file), "--gate", str(file)]) == 0
        assert "0 of " in capsys.readouterr().out


def test_command_draws_all_pictures(tmp_path):
    """From the baselines."""
    pytest.importorskip("matplotlib")
    main(["--read", *map(str, BASELINES), "--plot", str(tmp_path)])
    assert {file.stem for file in tmp_path.iterdir()} == {"performance", *_plot.CURVES}
