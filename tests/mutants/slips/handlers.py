"""Handlers that write files piece by piece."""

from tests.mutants.slip import Slip

ZIP = "extensions/handlers/npz.py"
EACH_PAGE = "tests/extensions/handlers/test_npz_killed.py::test_growing_zip_can_be_opened_after_each_page"

SLIPS = (
    Slip(
        "handlers.directory_in_steps",
        ZIP,
        "begin = min(end + _SEARCHED - self._size, to)",
        "begin = to",
        "While the directory of a large member is written, readers find none.",
        (EACH_PAGE,),
    ),
    Slip(
        "handlers.directory_in_a_page",
        ZIP,
        "while 0 < (in_last_page",
        "while 0 > (in_last_page",
        "A process that is killed leaves half of a directory's last record.",
        (EACH_PAGE,),
    ),
    Slip(
        "handlers.joined_type",
        "extensions/handlers/npz.py",
        "return np.result_type(*dtypes)",
        "return dtypes[0]",
        "A joined array has the type of its first piece.",
        ("tests/extensions/handlers/test_npz.py::test_npz_joins_pieces_of_several_types",),
    ),
)
