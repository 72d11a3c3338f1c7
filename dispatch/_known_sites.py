"""Sites whose records may come."""

from __future__ import annotations

import pickle
import threading
from typing import Any

from dispatch._sink import native
from effects import _errors as errors
from effects._model.site import Site, site_from

_sites: dict[int, Site] = {}
"""By hash. Lowering adds a site before its program is loaded. What others can rebuild from its description stays for
good: there are no more of them than lines in the source. A site with a function of the user's that is not registered
may be made anew with every trace. It goes when no program has it and no record of it can come: the drain's leader takes
it out."""

_lock = threading.Lock()  # adding and taking out


class _Holder:
    """A program's claim on a site."""

    __slots__ = ("_release", "_site_id")

    def __init__(self, site_id: int):
        self._site_id = site_id
        self._release = native.release_site  # names of modules are gone when the interpreter ends

    def __del__(self) -> None:
        self._release(self._site_id)

    def __reduce__(self) -> Any:
        site = _sites[self._site_id]
        raise pickle.PicklingError(errors.MSG_SERIALIZE_CALLBACK.format(name=site.content.title, where=site.where))


def meet(site: Site) -> object:
    """Makes a site known. What is returned, if anything, is to be kept for as long as it must be."""
    with _lock:
        known = site.id in _sites
        _sites.setdefault(site.id, site)
        if not site.content.is_portable:
            native.retain_site(site.id, "")
            return _Holder(site.id)
        if not known:
            native.retain_site(site.id, site.description)
            if (plan := site.content.native_plan(site)) is not None:
                native.set_plan(site.id, plan)
        return None


def forget(site_ids: list[int]) -> None:
    """Takes out sites that nobody has any more."""
    with _lock:
        for site_id in site_ids:
            if native.site_holders(site_id) == 0:
                _sites.pop(site_id, None)


def find_site(site_id: int) -> Site:
    """The site of a record. One that was not lowered here is rebuilt from what its program says of it."""
    site = _sites.get(site_id)
    if site is None:
        site = _sites.setdefault(site_id, site_from(native.site_description(site_id)))
    return site
