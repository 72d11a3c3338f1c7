"""What the documentation must have: all public names, messages as they are, and links that lead somewhere."""

import ast
import pickle
import re
import types

import pytest
from markdown_it import MarkdownIt

import effects as fx
from effects import lowering, testing
from effects.cli import COMMANDS
from tests.docs.pages import PAGES
from tests.helpers import ROOT, public_names

REFERENCE = "\n".join(page.read_text() for page in sorted((ROOT / "docs/reference").glob("*.md")))
OF_LOWERING = [
    name for name, value in vars(lowering).items() if name[0] != "_" and not isinstance(value, types.ModuleType)
]


def test_readme_is_short():
    """It is read in one go; everything else is in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("effects", public_names() - {*testing.__all__}),
        ("effects.testing", testing.__all__),
        ("effects.lowering", OF_LOWERING),
    ],
    ids=["effects", "effects.testing", "effects.lowering"],
)
def test_reference_has_every_public_name_once(module, names):
    """Functions, classes and exceptions, from their docstrings."""
    documented = re.findall(rf"^\.\. auto\w+:: {re.escape(module)}\.(\w+)$", REFERENCE, re.MULTILINE)
    assert set(documented) == set(names), "each has a line in a page of docs/reference"
    assert len(documented) == len(names)


def test_reference_has_every_setting_and_command():
    """Settings are in the docstring of `Config`, commands on their page."""
    settings = re.findall(r"(\w+)=", repr(fx.config))
    assert [name for name in settings if f"`{name}` (`EFFECTS_{name.upper()}`)" not in (fx.Config.__doc__ or "")] == []
    page = (ROOT / "docs/reference/command-line.md").read_text()
    assert [command.name for command in COMMANDS if f"effects {command.name}" not in page] == []


def _texts():
    """All texts of the packages, one below the other. Those that Python puts together are one."""
    for package in ("effects", "lowering", "dispatch", "extensions"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


def test_troubleshooting_quotes_messages_as_they_are():
    """A heading of the third level is a part of a message, but below the first heading of the second."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    messages = page[page.index("## Formats and arguments") :]
    texts = "\n".join(_texts())
    quoted = re.findall(r"^### (.*)$", messages, re.MULTILINE)
    assert len(quoted) > 20
    assert [quote for quote in quoted for part in quote.split("...") if part.strip() not in texts] == []


def test_code_is_not_clipped():
    """A line of code is no longer than the site is wide, on a screen of 1,440 pixels. What programs show is wrapped."""
    long = [
        (page.name, line)
        for page in PAGES
        if page.name != "design.md"
        for block in MarkdownIt().parse(page.read_text())
        if block.type in ("fence", "code_block") and block.info != "text"
        for line in block.content.splitlines()
        if len(line) > 104
    ]
    assert long == []


def test_reference_index_has_a_sentence_for_each_name():
    """A docstring begins with a sentence, which the index of the reference shows."""
    things = [thing for name in sorted(public_names()) if callable(thing := getattr(fx, name))]
    assert [thing for thing in things if not (thing.__doc__ or "").partition("\n\n")[0].endswith((".", ":"))] == []


def _anchors(page):
    """The headings of a page as links name them."""
    for token in (tokens := iter(MarkdownIt().enable("table").parse(page.read_text()))):
        if token.type == "heading_open":
            text = "".join(part.content for part in next(tokens).children or [])
            yield re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


LINKS = [
    (page, str(part.attrs.get("href") or part.attrs.get("src")))
    for page in [*PAGES, ROOT / "CHANGELOG.md", *sorted(ROOT.glob("*/README.md"))]
    for token in MarkdownIt().enable("table").parse(page.read_text())
    for part in token.children or []
    if part.type in ("link_open", "image")
]


def test_links_lead_somewhere():
    """To a file of the repository, and a heading of it. Links to elsewhere are not followed."""
    assert len(LINKS) > 50
    broken = []
    for page, link in LINKS:
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in _anchors(target)):
            broken.append((str(page.relative_to(ROOT)), link))
    assert broken == []


@pytest.mark.parametrize(
    "error", [fx.FormatError, fx.FutureError, fx.MissingTokenRule, fx.NotDifferentiable, fx.BarrierTimeout]
)
def test_errors_name_a_page_that_is_there(error):
    text = str(error("Something is wrong."))
    path, _, anchor = text.removeprefix("Something is wrong. See ").removesuffix(".").partition("#")
    assert (ROOT / path).is_file(), text
    assert not anchor or anchor in _anchors(ROOT / path)
    assert str(pickle.loads(pickle.dumps(error("Something is wrong.")))) == text


PLAIN = {"TypeError", "ValueError", "RuntimeError", "NotImplementedError"}
WITHOUT_PAGE = {  # what they say is Python's or JAX's own, is caught, or names what to write instead
    *("dispatch/runtime/outputs.py", "effects/_model/line.py", "lowering/batching.py"),
    *("effects/_config.py", "extensions/asynchronous/host_runs.py", "effects/_removed.py"),
    "effects/_jax/primitives.py",  # the seam imports nothing of the package; the text has the page
}


def _product():
    """The source files of the product."""
    for folder in ("effects", "lowering", "dispatch", "extensions"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_errors_of_pythons_own_classes_name_a_page():
    """They are made by functions that know the page of the module, but for a few."""
    found = {
        str(file.relative_to(ROOT))
        for file in _product()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)
        if isinstance(node.exc.func, ast.Name) and node.exc.func.id in PLAIN
    }
    assert found == WITHOUT_PAGE


PAGES_OF_ERRORS = {
    page: file.relative_to(ROOT)
    for file in _product()
    for page in re.findall('^_PAGE = "(.*)"$', file.read_text(), re.M)
}


@pytest.mark.parametrize("page", PAGES_OF_ERRORS)
def test_pages_of_errors_are_there(page):
    path, _, anchor = page.partition("#")
    assert (ROOT / path).is_file(), PAGES_OF_ERRORS[page]
    assert not anchor or anchor in _anchors(ROOT / path), PAGES_OF_ERRORS[page]


@pytest.mark.parametrize(
    ("call", "page"),
    [
        (lambda: fx.print("{}", 1, level="loud"), "docs/how-to/filters.md"),  # of its module
        (lambda: fx.sites(7), "docs/how-to/filters.md"),  # of a package
        (lambda: fx.print(7), "docs/troubleshooting.md"),  # of none
    ],
)
def test_errors_of_pythons_own_classes_end_with_the_nearest_page(call, page):
    with pytest.raises(TypeError, match=rf" See {page}\.$"):
        call()
