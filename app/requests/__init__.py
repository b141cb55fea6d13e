"""A request is split, stored, waited for, closed and answered here, without HTTP."""
