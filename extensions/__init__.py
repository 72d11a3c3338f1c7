"""The extensions of the core: a folder for each feature.

An extension registers its hooks with the core, and nothing in the core imports an extension. So a folder can be
removed: its public names are gone then, and everything else is as before.
"""

import importlib
from pathlib import Path

for _file in sorted(Path(__path__[0]).glob("*/__init__.py")):
    importlib.import_module(f"{__name__}.{_file.parent.name}")
