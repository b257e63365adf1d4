"""Locks and processes that fork while they hold one."""

from __future__ import annotations

import os
import signal
import time

import pytest

from chord_jit import knobs
from chord_jit.jit import locks
from chord_jit.jit.notices import CacheWarning
from chord_jit.jit.roots import lock_root
from tests.toy.processes import start, wait_for

DIGEST = "c" * 64


def test_v8_a_child_that_outlives_the_killed_holder_does_not_keep_its_lock(place, tmp_path):
    """As a data loader's worker that was forked while a kernel was compiled."""
    body = f"""
with locks.held({DIGEST!r}) as alone:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    (folder / "child.new").write_text(str(child))
    (folder / "child.new").rename(folder / "child")
    time.sleep(60)"""
    (parent,) = start(tmp_path, body)
    wait_for((tmp_path / "child").exists)
    child = int((tmp_path / "child").read_text())
    try:
        with knobs.scope(CHORD_LOCK_TIMEOUT="0.1"), pytest.warns(CacheWarning), locks.held(DIGEST) as early:
            assert not early, "the holder lives"
        parent.kill()
        parent.wait()
        started = time.monotonic()
        with knobs.scope(CHORD_LOCK_TIMEOUT="20"), locks.held(DIGEST) as alone:
            assert alone and time.monotonic() - started < 10
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close(), parent.stderr.close()


def test_a_child_that_ends_leaves_the_lock_with_its_parent(place):
    with locks.held(DIGEST) as alone:
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with knobs.scope(CHORD_LOCK_TIMEOUT="0.1"), pytest.warns(CacheWarning), locks.held(DIGEST) as second:
            assert alone and not second
    with locks.held(DIGEST) as again:
        assert again


def test_the_folder_and_its_files_are_for_the_owner_alone(place):
    with locks.held(DIGEST):
        assert lock_root().stat().st_mode & 0o777 == 0o700
        assert (lock_root() / f"{DIGEST}.lock").stat().st_mode & 0o777 == 0o600


def test_a_fifo_in_place_of_a_lock_file_does_not_hang(place):
    lock_root().mkdir(parents=True, mode=0o700)
    os.mkfifo(lock_root() / f"{DIGEST}.lock")
    with locks.held(DIGEST) as alone:
        assert alone


def test_an_interrupted_wait_leaves_nothing_open(place, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    with locks.held(DIGEST):
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            with locks.held(DIGEST):
                pass
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_link_in_place_of_a_lock_file_is_not_followed(place, tmp_path):
    target = tmp_path / "precious"
    target.write_text("x")
    lock_root().mkdir(parents=True, mode=0o700)
    (lock_root() / f"{DIGEST}.lock").symlink_to(target)
    with pytest.warns(CacheWarning, match="no compile locks"), locks.held(DIGEST) as alone:
        assert not alone
    assert target.read_text() == "x" and target.stat().st_nlink == 1
