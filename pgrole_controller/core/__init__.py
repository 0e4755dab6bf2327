"""Every decision, as pure functions over frozen values. No I/O, no async, no clock, no logging."""
