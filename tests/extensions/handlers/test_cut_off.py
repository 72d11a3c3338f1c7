"""Adding to files whose last line has no end: a writer was killed or had no room, or somebody else has written them."""

from __future__ import annotations

import json

import pytest

import effects as fx
from tests.extensions.handlers.common import read_csv, read_lines

_TEXT = 'é, "quoted"\nand on another line: 日本'

_first = fx.jit(lambda x: fx.log("step", x=x, note=_TEXT))
_last = fx.jit(lambda x: fx.log("end", x=x, note=_TEXT, é={"a": [x, _TEXT]}))


def _is_whole(make, record, whole):
    """Whether a record is as it was written. A row that was cut off ahead of `fields` looks like one without them."""
    return record == whole or (make is fx.CsvHandler and record == whole | {"fields": ""})


@pytest.mark.parametrize(("make", "read"), [(fx.CsvHandler, read_csv), (fx.JsonLinesHandler, read_lines)])
def test_records_are_whole_wherever_a_file_was_cut_off(make, read, handled, tmp_path):
    """What was left of the last one is removed before others are added, also within a character, quotes or the names of
    columns; a record that lacks the end of its line only stays."""
    path = tmp_path / "file"
    handled(make(path), _first, 1)
    end_of_first = path.stat().st_size
    handled(make(path, append=True), _last, 2)
    written, (first, last) = path.read_bytes(), read(path)
    for size in [*range(60), *range(end_of_first - 2, len(written) + 1)]:
        path.write_bytes(written[:size])
        handled(make(path, append=True), _first, 3)
        *before, added = read(path)
        assert added["event"] == "step" and added["time"] > last["time"]
        assert before[:1] == [first] * (size >= end_of_first - 1), size
        assert all(_is_whole(make, record, last) for record in before[1:]), size
        assert len(before) == 2 or size < len(written) - 1
    assert before == [first, last]


@pytest.mark.parametrize("left", ["", "a line", '{"a":', "}", '{"a": 1}', '{"effect": 1}', "12"])
def test_last_line_of_somebody_else_stays(left, handled, tmp_path):
    """What cannot be the beginning of a record is not removed: it gets its line's end."""
    path = tmp_path / "run.jsonl"
    path.write_text("another line\n" + left)
    handled(fx.JsonLinesHandler(path, append=True), _first, 1)
    *before, added = path.read_text().splitlines()
    assert before == ["another line", left][: 1 + bool(left)] and json.loads(added)["fields"]["x"] == 1


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


@pytest.mark.parametrize("size", [*range((1 << 20) - 3, (1 << 20) + 3), 1 << 21, 3_000_001])
def test_large_table_that_was_cut_off_keeps_its_rows(size, handled, tmp_path):
    """Also where cells of many lines go past what is read at a time."""
    path = tmp_path / "run.csv"
    row = 'step,20,1.5,0,[],"{}",\n'.format('a ""quoted"" word\n' * 5_000)
    path.write_text(f"{_HEAD}\n{row * 50}"[:size])
    handled(fx.CsvHandler(path, append=True), fx.jit(lambda x: fx.log("step", x=x)), 3)
    *before, added = read_csv(path)
    assert len(before) == (size - len(_HEAD)) // len(row) and added["x"] == "3"


@pytest.mark.parametrize("text", ["a,b", "a,b\n1,2", "event,level\n", "event,time", "événement"])
def test_file_that_is_no_such_table_is_left_alone(text, tmp_path):
    """It is not taken for the beginning of one."""
    path = tmp_path / "run.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="was asked to add lines to .*run.csv', whose first line is"):
        fx.CsvHandler(path, append=True)
    assert path.read_text(encoding="utf-8") == text
