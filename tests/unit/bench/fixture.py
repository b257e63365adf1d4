"""A made-up result in the shape that a run writes; no number in it was measured."""

from __future__ import annotations

import copy
from dataclasses import asdict

from chord_jit import device
from chord_jit.bench.cases import CASES

_PEER_STEPS = {"align": 7.0, "gate_up": 215.0, "swiglu": 5.0, "down": 110.0, "combine": 6.0}
_SPREAD = {"p10": 100.0, "p90": 110.0, "samples": 100}


def times(median: float) -> dict:
    return {"median": median, **_SPREAD}


def variant(median: float, **more) -> dict:
    return {"us": times(median), "sustained": {"us": median, "mj": 120.0, "watts": 690.0, "sm_mhz": 1700}, **more}


def row(tokens: int = 20, layer: str = "ep8_gate_up", **changes) -> dict:
    """An indexed row that meets every target of 20 tokens, gate/up."""
    made = {
        "case": f"{layer}_{tokens}", "family": "indexed", "layout": "indexed", "layer": layer, "size": tokens, "rows": 8 * tokens,
        "active": 46, "busiest": 7, "seed": 7, "bytes": 759_693_312, "flops": 2 * 8 * tokens * 4096 * 7168, "host_us": times(9.5),
        "variants": {
            "reader": variant(180.0, form="bulk"),
            "ours": variant(186.0, error=1.66e-3, schedule="w4a16_mma 16x128x512 s3"),
            "ours_swiglu": variant(185.0, error=2.2e-3, schedule="w4a16_mma 16x128x512 s3"),
            "peer_default": variant(214.0, error=2.4e-3, configuration="8x256x64"),
            "peer_best": variant(211.0, error=2.4e-3, configuration="8x128x64"),
        },
    }
    return {**made, **changes}


def grouped_row(name: str = "ep8_gate_up_offsets_128", **changes) -> dict:
    """A grouped row that meets every target of 128 rows per expert, gate/up, where 548 us are 658 TFLOP/s."""
    made = _of_case(name)
    made["variants"] = {
        "cublas": variant(1605.0, flops=2 * 8192**3),
        "ours": variant(548.0, error=1.9e-3, schedule="w4a16_wgmma 128x256x128 s3"),
        "ours_swiglu": variant(540.0, error=2.2e-3, schedule="w4a16_wgmma 128x256x128 s3"),
        "peer_default": variant(650.0, error=2.4e-3, configuration="160x256x64"),
        "peer_best": variant(600.0, error=2.4e-3, configuration="128x256x64"),
    }
    return {**made, **changes}


def prefill_row(name: str = "ep8_gate_up_prefill_4096", **changes) -> dict:
    """An indexed row that meets every target of 4096 routed rows, gate/up, where 455 us are 529 TFLOP/s."""
    made = _of_case(name)
    made["variants"] = {
        "cublas": variant(1605.0, flops=2 * 8192**3),
        "ours": variant(455.0, error=1.9e-3, schedule="w4a16_wgmma 96x256x128 s3 split2"),
        "ours_swiglu": variant(450.0, error=2.2e-3, schedule="w4a16_wgmma 96x256x128 s3 split2"),
        "peer_default": variant(560.0, error=2.4e-3, configuration="128x256x64"),
        "peer_best": variant(530.0, error=2.4e-3, configuration="96x256x64"),
    }
    return {**made, **changes}


def layer_row(name: str = "ep8_layer_20", **changes) -> dict:
    """A whole-layer row that meets every target of its case: 15 us of 285 beyond both products would be too many in decode."""
    made = _of_case(name)
    made["stand_ins"] = "align in Triton"
    made["variants"] = {
        "ours": variant(285.0, error=3.4e-3, schedule="w4a16_mma 16x128x512 s3; w4a16_mma 16x128x256 s3"),
        "gate_up": variant(186.0, error=2.2e-3, schedule="w4a16_mma 16x128x512 s3"),
        "down": variant(94.0, error=1.7e-3, schedule="w4a16_mma 16x128x256 s3"),
        "route": variant(7.0), "combine": variant(6.0, error=1.7e-3),
        "peer_default": variant(372.0, error=4.1e-3, configuration="indexed: 8x128x64; 8x256x128"),
        "peer_best": variant(362.0, error=4.1e-3, configuration="indexed: 8x128x64; 8x128x64"),
        **{f"peer_{step}": variant(us) for step, us in _PEER_STEPS.items()},
    }
    return {**made, **changes}


def equal_rows(us: float) -> dict:
    return variant(us, error=1.9e-3, schedule="w4a16_wgmma 128x256x128 s3")


def any_row(case) -> dict:
    if case.kind == "indexed":
        return row(case.size, case.layer.name)
    return {"prefill": prefill_row, "grouped": grouped_row, "layer": layer_row}[case.kind](case.name)


def _of_case(name: str) -> dict:
    """What a row says of the case of that name."""
    case = next(case for cases in CASES.values() for case in cases if case.name == name)
    return {
        "case": name, "family": case.family, "kind": case.kind, "layout": case.layout, "layer": case.layer.name, "size": case.size,
        "rows": case.rows, "active": case.active, "busiest": case.busiest, "seed": case.seed, "bytes": case.bytes, "flops": case.flops,
        "host_us": times(14.0),
    }  # fmt: skip


def result(*rows: dict, **changes) -> dict:
    """A run of these rows, or of every case of its set."""
    made = {
        "schema": 2, "case_set": "decode", "date": "2026-11-30T05:00:00+00:00", "gpu": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0",
        "clocks": {"driver": "580.1", "max_sm_mhz": 1980, "memory_mhz": 3201, "power_limit_w": 700.0},
        "peer": {"name": "humming-kernels", "version": "0.1.20"}, "commit": "0123456789abcdef", "command": "chord bench --cases decode",
        "override": "", "flush": "write", "reader_bar": {"bytes": 760_000_000, "us": 180.0, "form": "bulk"}, "kernels_hash": "ab" * 32,
        "facts": asdict(device.target("sm_90a")), "failures": [],
    }
    made |= changes
    made["rows"] = list(rows) or changes.get("rows") or [any_row(case) for case in CASES[made["case_set"]]]
    return copy.deepcopy(made)
