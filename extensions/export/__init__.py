"""Programs with effects that leave the process, and those that come from another one."""

_PAGE = "docs/guide/export.md"
