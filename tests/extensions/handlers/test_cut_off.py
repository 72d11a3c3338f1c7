"""Adding to files whose last line has no end: a writer was killed or had no room, or somebody else has written them."""

from __future__ import annotations

import csv
import json

import pytest

import effects as fx
from tests.extensions.handlers.common import read_csv

_TEXT = 'é, "quoted"\nand on another line: 日本'

_first = fx.jit(lambda x: fx.log("step", x=x, note=_TEXT))
_last = fx.jit(lambda x: fx.log("end", x=x, note=_TEXT, é={"a": [x, _TEXT]}))


@pytest.mark.parametrize("make", [fx.CsvHandler, fx.JsonLinesHandler])
def test_records_are_whole_wherever_a_file_was_cut_off(make, handled, tmp_path):
    """What was left of the last one is a line of its own between the others, also within a character or quotes."""
    path = tmp_path / "file"
    handled(make(path), _first, 1)
    end_of_first = path.stat().st_size
    handled(make(path, append=True), _last, 2)
    written, (first, last) = path.read_bytes(), _read(make, path)
    for size in range(end_of_first, len(written) + 1):
        path.write_bytes(written[:size])
        handled(make(path, append=True), _first, 3)
        kept, *torn, added = _read(make, path)
        assert kept == first and added["event"] == "step" and added["time"] > last["time"], size
        assert len(torn) == (size > end_of_first), size
    assert torn == [last]


def _read(make, path):
    """The records of a file; None for a line that is no JSON. What is no text is shown as such."""
    if make is fx.CsvHandler:
        with open(path, newline="", encoding="utf-8", errors="replace") as file:
            return list(csv.DictReader(file))
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            records.append(None)
    return records


@pytest.mark.parametrize("left", [None, "", "a line", '{"a":', '{"a": 1}'])
def test_last_line_stays(left, handled, tmp_path):
    """Whoever has written it, it gets its line's end. The file need not be there."""
    path = tmp_path / "run.jsonl"
    if left is not None:
        path.write_text(f"another line\n{left}")
    for x in (1, 2):
        handled(fx.JsonLinesHandler(path, append=True), _first, x)
    *before, first, second = path.read_text().splitlines()
    assert before == ([] if left is None else f"another line\n{left}".splitlines())
    assert [json.loads(added)["fields"]["x"] for added in (first, second)] == [1, 2]


_HEAD = "event,level,time,device,lane,x,fields"


@pytest.mark.parametrize(
    "rows", [[], ["step,20,1.5,0,[],1,"], ['step,20,1.5,0,[],1,"{""y"": 2}"', "step,20,1.5,0,[],2,"]]
)
@pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
def test_table_without_an_end_of_its_last_line_is_added_to(rows, end_of_line, handled, tmp_path):
    """As editors leave one: all its rows stay."""
    path = tmp_path / "run.csv"
    path.write_bytes(end_of_line.join([_HEAD, *rows]).encode())
    before = read_csv(path)
    handled(fx.CsvHandler(path, append=True), fx.jit(lambda x: fx.log("step", x=x)), 3)
    *same, added = read_csv(path)
    assert same == before and added["x"] == "3"


@pytest.mark.parametrize("text", ["a,b", "a,b\n1,2\n", "event,level\n", "event,le", "événement"])
def test_file_that_is_no_such_table_is_left_alone(text, tmp_path):
    """It is not taken for the beginning of one."""
    path = tmp_path / "run.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="was asked to add lines to .*run.csv', whose first line is"):
        fx.CsvHandler(path, append=True)
    assert path.read_text(encoding="utf-8") == text
