"""Where a tuning's work is done: compiled and measured by processes of this host, or of a cluster, behind one seam (``seam``)."""
