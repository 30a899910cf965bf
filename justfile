# Shorthands for `cargo xtask`, which CONTRIBUTING.md describes. Nothing is done here that is not done there.

# List the targets
default:
    @just --list

# Everything that needs no root: format, house rules, layering, lints, tests, documentation
check:
    cargo xtask check

# csi-sanity against the simulated platform and against hotbay up; needs Go, once
csi:
    cargo xtask csi

# Tests on loop devices; needs root
root:
    cargo xtask root

# Tests in a virtual machine with drives of its own
guest:
    cargo xtask guest

alias test-guest := guest

# Tests on a real Kubernetes cluster
k8s:
    cargo xtask k8s

alias test-k8s := k8s

# The cluster of those tests, by hand: build, up, down
rig *args:
    cargo xtask rig {{args}}

# The fuzzer, the model checker's full bounds and long simulations: hours
soak:
    cargo xtask soak

# Hours on a real Kubernetes cluster
soak-k8s:
    cargo xtask soak-k8s

# Set up this machine, then check and root
test:
    scripts/test

# Set up this machine, then run the demo
demo *args:
    scripts/demo {{args}}

# Only the house rules
tidy:
    cargo xtask tidy

# Format the code
fmt:
    cargo fmt --all
