"""What the plugin says: each line once a process, through vLLM's own log."""

from __future__ import annotations

import logging

#: vLLM formats and shows what its logger's children say.
LOG = logging.getLogger("vllm.chord_jit")
_said: set[str] = set()


def note(line: str) -> None:
    """One line of the log, unless it was said before: layers of one kind say the same."""
    if line not in _said:
        _said.add(line)
        LOG.info("chord_jit: %s", line)
