"""The kernels that cases launch, and the hash that ties a recorded result to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from chord_jit.bench import our_layer, ours, reader, sides
from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.whole_cases import WholeCase
from chord_jit.device import DeviceFacts
from chord_jit.errors import ChordError
from chord_jit.jit import headers, render
from chord_jit.jit.spec import KernelSpec


def specs(cases: Iterable[AnyCase], facts: DeviceFacts) -> list[KernelSpec]:
    """Every kernel of ours, readers included, that ``cases`` launch. A case without a kernel is left to fail in its turn."""
    found = [form.spec(facts.arch) for form in reader.FORMS]
    for case in cases:
        found += [spec for _, _, spec in _launches(case, facts) if spec is not None]
    return found


def fingerprint(cases: Iterable[AnyCase], facts: DeviceFacts) -> str:
    """SHA-256 over what ``cases`` launch on a GPU of these facts: for each call its schedule, its rendered source and every
    project header that the source reaches. Kernels that no case launches do not count."""
    texts: dict[KernelSpec, str] = {}

    def text(spec: KernelSpec) -> str:
        if spec not in texts:
            source = render.render(spec)
            texts[spec] = source + "".join(f"{name} {content}\n" for name, content in headers.closure(source).items())
        return texts[spec]

    parts = [text(form.spec(facts.arch)) for form in reader.FORMS]
    for case in cases:
        for name, schedule, spec in _launches(case, facts):
            parts += [name, schedule, "" if spec is None else text(spec)]
    return digest(part.encode() for part in parts)


def digest(parts: Iterable[bytes]) -> str:
    """SHA-256 over ``parts``, each length-prefixed so that no two lists run together."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _launches(case: AnyCase, facts: DeviceFacts) -> Iterator[tuple[str, str, KernelSpec | None]]:
    """Name, schedule and kernel of each call of ours in ``case``; no kernel where the call is refused."""
    if isinstance(case, WholeCase):
        yield from our_layer.launches(case, facts)
        return
    calls = [(case, swiglu) for swiglu in (False, True)[: 1 + case.layer.gated]] + [(other, False) for _, other in case.companions]
    for one, swiglu in calls:
        name = f"{one.name}{' swiglu' if swiglu else ''}"
        try:
            problem, schedule = ours.chosen(one, facts, swiglu=swiglu)
            yield name, str(schedule), sides.of(one).family.spec(problem, schedule)
        except ChordError as refused:
            yield name, type(refused).__name__, None
