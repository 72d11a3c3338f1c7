"""Sites whose records may come."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

from effects._model.site import Site, site_from
from effects.lowering.host.native import native

MSG_SERIALIZE_CALLBACK = (
    "The compiled program cannot leave this process: it calls back the function `{name}` at {where}. A function cannot "
    "travel with a program: its name can. Decorate it with `@fx.register_callback('some.name')`, here and where the "
    "program will run."
)


class KnownSites:
    """Sites by their hash. Lowering registers a site before its program is loaded.

    What others can rebuild from its description stays for good: there are no more of them than lines in the source. A
    site with a function of the user's that is not registered may be made anew with every trace. It goes when no program
    has it and no record of it can come: the drain's leader takes it out.
    """

    def __init__(self) -> None:
        self._sites: dict[int, Site] = {}
        # The site of a record, if it is known by now.
        self.get: Callable[[int], Site | None] = self._sites.get
        self._lock = threading.Lock()  # for adding and taking out
        self._listeners: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._sites)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener()` before any site is registered from now on, and so before its program can be called."""
        self._listeners.append(listener)

    def register(self, site: Site) -> object:
        """Makes a site known. What is returned, if it is not None, a program keeps for as long as it may bring the
        site's records."""
        for listener in self._listeners:
            listener()
        with self._lock:
            if site.content.call is not None and site.content.call.pass_record:
                native.need_time(True)
            if not site.content.is_portable:
                self._sites.setdefault(site.id, site)
                return _Claim(site)
            if site.id not in self._sites:
                native.retain_site(site.id, site.description)
                if not site.content.asks_before_text and (plan := site.content.native_plan(site)) is not None:
                    native.set_plan(site.id, plan)
                self._sites[site.id] = site  # last: who is interrupted before does it all again
            return None

    def find(self, site_id: int) -> Site:
        """The site of a record. One that was not lowered here is rebuilt from what its program says of it."""
        site = self._sites.get(site_id)
        if site is None:
            site = self._sites.setdefault(site_id, site_from(native.site_description(site_id)))
            for inner in site.content.inner_sites:
                self._sites.setdefault(inner.id, inner)
        return site

    def forget(self, site_ids: list[int]) -> None:
        """Takes out those of the sites that no program has any more."""
        with self._lock:
            for site_id in site_ids:
                if native.site_holders(site_id) == 0:
                    self._sites.pop(site_id, None)


class _Claim:
    """A program's claim on a site with a function of the user's. It does not keep the function itself."""

    __slots__ = ("_name", "_release", "_site_id", "_where")

    def __init__(self, site: Site):
        self._site_id = site.id
        self._name, self._where = site.content.title, site.where
        native.retain_site(site.id, "")
        self._release = native.release_site  # last; and names of modules are gone when the interpreter ends

    def __del__(self) -> None:
        if hasattr(self, "_release"):
            self._release(self._site_id)

    def __reduce__(self) -> Any:
        raise pickle.PicklingError(MSG_SERIALIZE_CALLBACK.format(name=self._name, where=self._where))


known_sites: KnownSites = KnownSites()
"""Those of this process: there is one native module, which has one table of them."""
