"""The extensions of the core: a folder for each feature.

An extension registers its hooks with the core, and nothing in the core imports an extension. So a folder can be
removed: its public names are gone then, and everything else is as before.
"""

import importlib
import pkgutil

for _extension in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_extension.name}")
