"""``chord bench`` without a GPU, and the command that a result records."""

from __future__ import annotations

import argparse

import pytest

from chord_jit import cli, device
from chord_jit.bench import peers
from chord_jit.bench.cases import CASES
from chord_jit.cli import bench


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *words])


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(device, "present", lambda: False)
    assert cli.main(["bench", "--cases", "smoke"]) == 2
    captured = capsys.readouterr()
    assert "a GPU is needed" in captured.err and captured.out == ""


def test_a_missing_peer_is_named_with_a_remedy_that_works(monkeypatch, capsys):
    """The package is installed from its checkout: no index has it."""
    monkeypatch.setattr(device, "present", lambda: True)
    monkeypatch.setattr(peers, "available", lambda: False)
    assert cli.main(["bench", "--cases", "smoke", "--schedule", "none"]) == 2
    assert "pip install '.[bench]', in the checkout" in capsys.readouterr().err


def test_the_case_sets_are_those_of_the_table():
    assert set(bench.CASE_SETS) == set(CASES)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "chord bench --cases decode --rounds 500"),
        (
            ("--tokens", "1", "20", "--no-peer", "--commit", "abc", "--out", "/somewhere"),
            "chord bench --cases decode --tokens 1 20 --rounds 500 --no-peer",
        ),
        (
            ("--cases", "grouped", "--rows", "64", "128", "--layers", "ep8_down"),
            "chord bench --cases grouped --tokens 64 128 --layers ep8_down --rounds 500",
        ),
        (
            ("--cases", "tp8", "--rounds", "7", "--flush", "read", "--schedule", "w4a16_mma 8x128x512 s3", "--no-energy"),
            "chord bench --cases tp8 --rounds 7 --flush read --schedule 'w4a16_mma 8x128x512 s3' --no-energy",
        ),
    ],
)
def test_the_recorded_command_decides_the_numbers_and_names_no_place(words, wanted):
    assert bench.command(parsed(*words)) == wanted


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--cases", "absent"), ("--flush", "none")])
def test_bad_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        parsed(*words)
    assert refused.value.code == 2 and capsys.readouterr().err
