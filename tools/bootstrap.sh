#!/usr/bin/env bash
# Sets up this checkout's own environment (.venv) and runs one of two things in it:
#   bash tools/bootstrap.sh demo [options of chord demo]    the main job
#   bash tools/bootstrap.sh test [options of pytest]        the tests
# Writes only below the checkout: .venv for the environment, .cache for what the demo compiles. The second run starts at once.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

die() {
    printf 'bootstrap: %s\n' "$@" >&2
    exit 2
}

say() { printf '== %s\n' "$*" >&2; }

supported() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 or 3.12 is needed; looked for ${PYTHON:+$PYTHON, }python3.11, python3.12, python3" \
        "install one, or name it: PYTHON=/path/to/python bash tools/bootstrap.sh ..."
}

# Where no NVIDIA GPU is seen, one known torch keeps the environment reproducible (and small where pip is offered a CPU build).
torch_requirement() {
    if nvidia-smi -L >/dev/null 2>&1; then echo 'torch>=2.11,<2.15'; else echo 'torch==2.13.0'; fi
}

set_up() {
    local python stamp
    stamp="$(cat pyproject.toml setup.py tools/bootstrap.sh | sha256sum)"
    if [[ -x .venv/bin/chord && "$(cat .venv/bootstrap.stamp 2>/dev/null)" == "$stamp" ]]; then return; fi
    if [[ ! -x .venv/bin/python ]] || ! supported .venv/bin/python; then
        python="$(find_python)"
        say "creating .venv with $("$python" --version)"
        "$python" -m venv --clear .venv || die "the venv module of $python failed; on Debian and Ubuntu install python3-venv"
    fi
    say "installing into .venv: torch, the CUDA 13.0 compiler and headers, test tools (a few minutes the first time)"
    .venv/bin/python -m pip install --progress-bar on "$(torch_requirement)" -e '.[demo,test]'
    echo "$stamp" >.venv/bootstrap.stamp
}

job="${1:-}"
[[ "$job" == demo || "$job" == test ]] || die "usage: bash tools/bootstrap.sh demo|test [options]"
shift
set_up
if [[ "$job" == demo ]]; then
    export CHORD_CACHE_DIR="${CHORD_CACHE_DIR:-$PWD/.cache}" CHORD_LOCK_DIR="${CHORD_LOCK_DIR:-$PWD/.cache/locks}"
    exec .venv/bin/chord demo "$@"
fi
exec .venv/bin/python -m pytest "$@"
