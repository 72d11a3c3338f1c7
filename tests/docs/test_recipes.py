"""Recipes of which the page shows nothing: what the library has been given."""

import struct

from tests.docs import session
from tests.docs.pages import blocks_of
from tests.helpers import ROOT


def test_tensorboard_has_each_step(tmp_path):
    """With the record's value, step and time."""
    import tensorboardX.proto.event_pb2 as proto

    program, *recipes = blocks_of(ROOT / "docs/how-to/services.md")
    [recipe] = [block for block in recipes if "tensorboardX" in block.code]
    assert session.run([program, recipe], tmp_path, timeout=120) == ["", ""]
    [file] = (tmp_path / "runs/first").iterdir()
    data, seen = file.read_bytes(), []
    while data:
        (size,) = struct.unpack_from("<Q", data)  # and a checksum of four bytes ahead of the event and behind it
        event = proto.Event.FromString(data[12 : 12 + size])
        seen += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + size :]
    assert seen == [("step/loss", 0, 9.0), ("step/loss", 1, 2.25), ("step/loss", 2, 0.5625)]
