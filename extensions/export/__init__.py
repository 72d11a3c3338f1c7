"""Programs with effects that leave the process, and those that come from another one."""
