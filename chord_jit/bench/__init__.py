"""The bench tool: fixed cases, fresh values, and our kernels timed against a read-only kernel and against a peer."""
