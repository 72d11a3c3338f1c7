"""How the site is built: see docs/development.md."""

import re
from pathlib import Path

import effects

project = "token-effects"
author = "The token-effects developers"
project_copyright = f"2026, {author}"
version = release = effects.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

html_theme = "furo"
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]

# Markdown. A link to a page, a heading or a file that is not there is a warning, and a warning fails the build.
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
nitpicky = True
# The documents of Python, NumPy and JAX are elsewhere. Of our names, those of the public face must be in the reference.
nitpick_ignore_regex = [("py:.*", r"(?!effects\.).*|effects\.(_|dispatch\.|extensions\.|lowering\.\w+\.).*")]

# The reference. Docstrings have Google's sections, and code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"  # not what a program shows


def setup(app):
    app.connect("source-read", _lead_to_index)
    app.connect("source-read", _list_names)
    app.connect("autodoc-process-signature", _leave_out_signature)
    app.connect("viewcode-follow-imported", _find_errors)


def _lead_to_index(app, page, source):
    """READMEs are parts of pages, so links to them lead there."""
    source[0] = source[0].replace("(../README.md", "(index.md")
    source[0] = re.sub(r"\(\.\./extensions/(\w+)/README\.md", r"(inside/\1.md", source[0])


def _list_names(app, page, source):
    """The index of the reference has each name of its pages, with the first sentence of its docstring."""
    if page != "reference/index":
        return
    lists = []
    for name in re.search(r"```{toctree}[^`]*", source[0])[0].split()[2:]:
        text = (Path(app.srcdir) / "reference" / f"{name}.md").read_text()
        if names := re.findall(r"^\.\. auto\w+:: (.*)$", text, re.MULTILINE):
            rows = "\n".join(f"   ~{each}" for each in names)
            title = text.partition("\n")[0].removeprefix("# ")
            table = f".. autosummary::\n   :nosignatures:\n\n{rows}"
            lists.append(f"## [{title}]({name}.md)\n\n```{{eval-rst}}\n{table}\n```\n")
    source[0] = source[0].replace("<!-- names -->", "\n".join(lists))


def _leave_out_signature(app, what, name, thing, options, signature, returns):
    """A class whose docstring says no arguments is not for users to make."""
    if what in ("class", "exception") and signature and "Args:" not in (thing.__doc__ or ""):
        return "", None
    return None


def _find_errors(app, module, name):
    """Exceptions call `effects` their module, but their source is in another one."""
    if module == "effects" and hasattr(effects._errors, name.partition(".")[0]):
        return "effects._errors"
    return None
