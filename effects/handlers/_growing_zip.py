"""A zip file that grows, and that can be opened whatever becomes of the process that writes it."""

from __future__ import annotations

import contextlib
import io
import os
import time
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

_LAST = 22
"""Bytes of the last record of a directory, which says where the directory begins."""
_SEARCHED = 60_000
"""Readers look for that record in the last 64 KiB of a file, and take the last one that they find."""
_LARGEST = 24_000
"""Bytes of the largest directory with which members are added: it must fit there, and more."""
_PAGE = 4096
"""What lies in one page is written as a whole or not at all, also if the process is killed."""


class GrowingZip:
    """Members are added behind the directory of those before, and a new directory comes behind them.

    A process may be killed within any write. So the file must end, at any moment, with a directory, or with one and
    less than 64 KiB behind it:

    1. Copies of the directory are written further and further behind, with less than that between them, until there is
       room for the member ahead of the last copy.
    2. The member is written there.
    3. A directory that has the member is written behind the last copy.

    What is no longer used stays in the file. No thread may write while another one does.

    Args:
        file: A file without a buffer, for reading and writing. One that is empty becomes a zip file without members.

    Raises:
        zipfile.BadZipFile: if it is something else.
    """

    def __init__(self, file: io.FileIO):
        self._file = file
        self._members: list[zipfile.ZipInfo] = []
        self._end = 0  # of the newest directory
        self._size = 0  # of the largest
        if file.seek(0, os.SEEK_END):
            with zipfile.ZipFile(file) as archive:
                self._members = archive.infolist()
            start = max(0, file.seek(0, os.SEEK_END) - (1 << 16) - _LAST)
            file.seek(start)
            self._end = start + file.readall().rfind(b"PK\5\6") + _LAST
            file.truncate(self._end)  # what a process that was killed left behind it
            self._size = len(_directory(self._members, self._end))
        else:
            self._end = self._write_directory(0, [])

    @property
    def is_full(self) -> bool:
        """Whether the directory has become too large for more members."""
        return self._size > _LARGEST

    def add(self, name: str, content: BinaryIO) -> None:
        """Adds a member with the content of a file. If it cannot be written, this file is as it was."""
        member = zipfile.ZipInfo(name, time.localtime()[:6])
        member.CRC = 0
        for block in _blocks(content):
            member.CRC = zlib.crc32(block, member.CRC)
            member.file_size = member.compress_size = member.file_size + len(block)
        member.header_offset = self._end
        header = member.FileHeader()
        try:
            end = self._move_directory(self._end + len(header) + member.file_size)
            self._file.seek(self._end)
            for block in (header, *_blocks(content)):
                self._write(block)
            self._end = self._write_directory(end, [*self._members, member])
        except BaseException:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            raise
        self._members.append(member)

    def _move_directory(self, to: int) -> int:
        """Has the file end with a copy of the directory that begins here or behind it. Returns where the copy ends."""
        begin = end = self._end
        while begin < to:
            begin = min(end + _SEARCHED - self._size, to)
            end = self._write_directory(begin, self._members)
        return end

    def _write_directory(self, at: int, members: list[zipfile.ZipInfo]) -> int:
        """Writes one here, or so much behind that its last record lies in one page. Returns where it ends."""
        directory = _directory(members, at)
        while 0 < (in_last_page := (at + len(directory)) % _PAGE) < _LAST:
            at += _LAST - in_last_page
            directory = _directory(members, at)
        self._file.seek(at)
        self._write(directory)
        self._size = max(self._size, len(directory))
        return at + len(directory)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._file.write(rest) or 0 :]


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    file.seek(0)
    return iter(lambda: file.read(1 << 20), b"")


def _directory(members: list[zipfile.ZipInfo], at: int) -> bytes:
    """The directory of these members, as it stands at this place of a file."""
    out = _At(at)
    with zipfile.ZipFile(out, "w") as archive:
        archive.filelist.extend(members)
    return out.getvalue()


class _At(io.BytesIO):
    """A file in memory, whose first byte is at this place."""

    def __init__(self, at: int):
        super().__init__()
        self._at = at

    def tell(self) -> int:
        return super().tell() + self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return super().seek(offset - self._at, whence) + self._at
