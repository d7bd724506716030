"""Child processes: forked in milliseconds, given objects and functions of any module, ended with all that they started."""
