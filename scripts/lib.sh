# shellcheck shell=bash
# What the scripts share: tools, builds, sections with their times. Sourced, with
# `set -euo pipefail` in force and the current directory at the top of the tree.

ROOT=$PWD
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
# shellcheck disable=SC2034 # used by the scripts that source this
LIBRARY=${GPUPOOL_LIB:-$TARGET/release/libgpupool.so}
# shellcheck disable=SC2034
NO_GRACE_TARGET=$TARGET/no-grace
# shellcheck disable=SC2034
SIM=$ROOT/target/sim
# shellcheck disable=SC2034
PROGRAMS=${PROGRAMS:-$ROOT/target/programs}

# A preload or options of the caller's must not reach compilers and tests, and
# an option set for this shell would make a test's result depend on it.
clean_environment() {
    unset LD_PRELOAD
    local name
    for name in $(compgen -e); do
        case $name in
            GPUPOOL_LIB | GPUPOOL_NOGRACE_LIB | GPUPOOL_PREBUILT | GPUPOOL_TEST_REPEAT) ;;
            GPUPOOL_* | SIMCUDA_*) unset "$name" ;;
        esac
    done
}

say() { printf '%s\n' "$*" >&2; }

die() {
    say "${0##*/}: $*"
    exit 1
}

have() { command -v "$1" > /dev/null 2>&1; }

# Cargo is often installed without being in the PATH of a non-login shell.
find_cargo() {
    have cargo && return
    if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    have cargo
}

# install_packages TOOL=PACKAGE…: what is missing, where that can be done.
install_packages() {
    local missing=() pair
    for pair in "$@"; do
        have "${pair%%=*}" || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" -ne 0 ] || ! have apt-get; then
        die "missing: ${missing[*]}; install them first (as root on Debian: apt-get install ${missing[*]})"
    fi
    say "installing ${missing[*]}"
    {
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    } >&2 || die "apt-get could not install ${missing[*]}"
}

# Everything that a build needs.
need_build_tools() {
    install_packages gcc=build-essential python3=python3
    find_cargo || die "cargo is missing: install Rust 1.88 or later"
}

# need_component COMMAND COMPONENT: a part of the Rust toolchain.
need_component() {
    cargo "$1" --version > /dev/null 2>&1 && return
    have rustup || die "cargo $1 is missing: install the Rust component $2"
    rustup component add "$2" >&2 || die "rustup could not add $2"
}

build_library() { cargo build --release; }

# The negative control: the safety tests must fail with this one.
build_no_grace() {
    cargo build --release -p gpupool-preload --features unsafe-no-grace --target-dir "$NO_GRACE_TARGET"
}

# The simulated driver, the runtime's stand-in, and the test programs.
build_tests() { scripts/build-tests; }

# ---- sections -------------------------------------------------------------------

PASSED=0
FAILED=0
FAILURES=()

# section NAME COMMAND…: runs it, with its time; a failure is counted and the
# script goes on.
section() {
    local name=$1 start=$SECONDS result=ok
    shift
    say "== $name"
    if "$@"; then
        PASSED=$((PASSED + 1))
    else
        FAILED=$((FAILED + 1))
        FAILURES+=("$name")
        result=FAILED
    fi
    say "== $name: $result, $((SECONDS - start)) s"
}

# count PASSED FAILED NAME: adds single tests to the summary.
count() {
    PASSED=$((PASSED + $1))
    FAILED=$((FAILED + $2))
    [ "$2" -eq 0 ] || FAILURES+=("$2 in $3")
}

# The last line that a script prints, and its result.
summary() {
    [ ${#FAILURES[@]} -eq 0 ] || printf 'failed: %s\n' "${FAILURES[@]}"
    printf '%d passed, %d failed\n' "$PASSED" "$FAILED"
    [ "$FAILED" -eq 0 ]
}
