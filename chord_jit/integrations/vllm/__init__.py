"""Our kernels under vLLM's Humming backend: the entry point ``vllm.general_plugins``. ``docs/integrations.md`` shows its use."""

from __future__ import annotations


def register() -> None:
    """Puts our kernels into this process's ``vllm.utils.humming``, for the layers that they serve; again is harmless.

    vLLM calls it in every process, API server included. It touches no GPU and imports nothing of the package ``humming``.
    """
    from chord_jit.integrations.vllm import overlay

    overlay.install()
