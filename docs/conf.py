"""How the site is built: see docs/development.md."""

import effects

project = "token-effects"
author = "The token-effects developers"
project_copyright = f"2026, {author}"
version = release = effects.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

html_theme = "furo"
html_title = f"{project} {version}"

# Markdown. A link to a page, a heading or a file that is not there is a warning, and a warning fails the build.
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
nitpicky = True
# The documents of Python, NumPy and JAX are elsewhere. Of our names, those of the public face must be in the reference.
nitpick_ignore_regex = [("py:.*", r"(?!effects\.).*|effects\.(_|dispatch\.).*")]

# The reference. Docstrings have Google's sections, and code between single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False
napoleon_use_ivar = True
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app):
    app.connect("source-read", _lead_to_index)
    app.connect("autodoc-process-signature", _leave_out_signature)


def _lead_to_index(app, page, source):
    """The README is part of the page `index`, so links to it lead there."""
    source[0] = source[0].replace("(../README.md", "(index.md")


def _leave_out_signature(app, what, name, thing, options, signature, returns):
    """A class whose docstring says no arguments is not for users to make."""
    if what in ("class", "exception") and signature and "Args:" not in (thing.__doc__ or ""):
        return "", None
    return None
