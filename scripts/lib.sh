# Shell code of scripts/test, scripts/demo, scripts/setup-guest, scripts/setup-rig, scripts/root-tree and .ci/run, which
# source this file and run in the repository's root. It makes a machine that has only apt and rustup ready: programs, the toolchain, a
# place for what cargo builds.
# shellcheck shell=bash

# A relative folder is meant from where the script was called.
case "${CARGO_TARGET_DIR:-/}" in
/*) ;;
*) export CARGO_TARGET_DIR="$PWD/$CARGO_TARGET_DIR" ;;
esac
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# A fresh rustup is in nobody's path yet, and comes before a distribution's cargo, which does not know
# rust-toolchain.toml. Programs for administration are not in everybody's path.
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/sbin:/sbin"

say() { printf '== %s\n' "$*"; }

die() {
    printf '!! %s\n' "$*" >&2
    exit 1
}

# can_be_root: whether as_root would work: as root, or by a sudo that needs no password or has somebody to ask.
can_be_root() {
    [ "$(id -u)" -eq 0 ] || { command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; }
}

# as_root COMMAND...: runs it as root, by itself or through sudo.
as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -- "$@"; fi
}

# install_missing "PROGRAM:PACKAGES"...: installs, by apt, the packages of the programs that are not here.
install_missing() {
    local pair packages=()
    for pair in "$@"; do
        # shellcheck disable=SC2206 # several packages, separated by spaces
        command -v "${pair%%:*}" >/dev/null || packages+=(${pair#*:})
    done
    if [ "${#packages[@]}" -eq 0 ]; then
        say "all programs needed are installed"
        return
    fi
    command -v apt-get >/dev/null || die "please install: ${packages[*]} (there is no apt here to do it)"
    can_be_root || die "please install as root: ${packages[*]}"
    say "installing by apt: ${packages[*]}"
    as_root apt-get update -qq
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${packages[@]}"
}

# What rustc needs to build anything at all, and what the product calls.
for_product=("cc:gcc libc6-dev" "blkid:util-linux" "losetup:mount")
# What the tests call on top of it.
for_tests=("git:git" "curl:curl" "mount:mount" "sfdisk:fdisk" "mkfs.ext4:e2fsprogs"
    "mkfs.xfs:xfsprogs" "mkfs.btrfs:btrfs-progs" "nbdkit:nbdkit" "nbdfuse:libnbd-bin"
    "fio:fio" "ip:iproute2" "systemd-analyze:systemd")
# What the tests in a virtual machine call on top of that.
for_guest=("qemu-system-x86_64:qemu-system-x86" "mkfs.ext4:e2fsprogs" "sfdisk:fdisk" "blkid:util-linux" "losetup:mount"
    "strip:binutils")
# What a Kubernetes cluster for tests calls, beside what scripts/setup-rig unpacks.
for_rig=("unshare:util-linux" "nsenter:util-linux" "mount:mount" "ip:iproute2" "nft:nftables"
    "strip:binutils")

# use_rust: sees to the toolchain that rust-toolchain.toml names, and puts what cargo builds outside the clone.
use_rust() {
    command -v cargo >/dev/null || die "Rust is missing: install rustup from https://rustup.rs, then try again"
    local wanted version place
    wanted=$(sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml)
    if command -v rustup >/dev/null && ! rustup toolchain list | grep "^$wanted-" >/dev/null; then
        say "fetching Rust $wanted with rustup"
        rustup toolchain install "$wanted" --no-self-update --profile minimal \
            --component clippy --component rustfmt
    fi
    version=$(rustc --version | cut -d ' ' -f 2)
    [ "$version" = "$wanted" ] || say "Rust $version is used; rust-toolchain.toml names $wanted"
    if [ -z "${CARGO_TARGET_DIR:-}" ]; then
        # One folder per compiler and set of dependencies, outside the clone: a fresh clone builds only its own crates.
        place=$(sha256sum Cargo.lock | cut -c 1-12)
        export CARGO_TARGET_DIR="${XDG_CACHE_HOME:-$HOME/.cache}/hotbay/target-$version-$place"
    fi
    say "Rust $version builds into $CARGO_TARGET_DIR"
}
