"""What extends the core: a folder for each feature.

An extension registers with the core what the core asks for, and nothing in the core imports one. So a folder can be
taken out: its public names are gone then, and everything else is as before.
"""

import importlib
import pkgutil

for _extension in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_extension.name}")
