#!/usr/bin/env bash
# Build the image without a container engine and without a registry of images, as root on a Debian
# with buildah, debootstrap and Rust: `deploy/image/build.sh [TAG]`.
#
# Stand-ins for the bases are made of Debian's packages and of this machine's Rust, under the names
# that the Dockerfile asks for, once; `buildah rmi` them to have them made again.
set -euo pipefail
cd "$(dirname "$0")/../.."

tag=${1:-hms-memory-gateway}
rust=$(sed -n 's/^ARG RUST=//p' Dockerfile)
python=$(sed -n 's/^ARG PYTHON=//p' Dockerfile)
release=${python##*-}
debian=debian:$release-slim
# Whatever this machine trusts between itself and its package registries.
certificates=/etc/ssl/certs/ca-certificates.crt

say() {
    printf '%(%T)T %s\n' -1 "$*"
}

# base NAME FROM MAKE: commit what MAKE does to a container of FROM as NAME, unless it is there.
base() {
    local container
    if buildah inspect --type image "$1" >/dev/null 2>&1; then
        say "$1 is there"
        return
    fi
    say "making a stand-in for $1"
    container=$(buildah from --pull=never "$2")
    "$3" "$container"
    buildah commit --quiet --rm "$container" "$1" >/dev/null
}

# As the official image: no caches of apt, no manuals, no translations.
make_debian() {
    local root
    root=$(buildah mount "$1")
    debootstrap --variant=minbase --include=ca-certificates "$release" "$root"
    printf 'Dir::Cache::%s "";\n' pkgcache srcpkgcache >"$root/etc/apt/apt.conf.d/no-caches"
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt/* "$root"/var/cache/debconf/*-old \
        "$root"/usr/share/{doc,man,locale}/*
}

install_in() {
    buildah run --isolation chroot "$1" -- sh -ec "
        apt-get update
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ${*:2}
        apt-get clean
        rm -rf /var/lib/apt/lists/*"
}

make_rust() {
    local toolchain
    toolchain=$(rustc --print sysroot)
    install_in "$1" gcc libc6-dev
    tar -C "$toolchain" --exclude=src -c bin lib | tar -C "$(buildah mount "$1")/usr/local" -x
    buildah config --env CARGO_HOME=/usr/local/cargo "$1"
}

make_python() {
    install_in "$1" python3 python3-venv
    ln -s /usr/bin/python3 "$(buildah mount "$1")/usr/local/bin/python"
}

base "$debian" scratch make_debian
base "$rust" "$debian" make_rust
base "$python" "$debian" make_python

say "building $tag; the engine takes minutes the first time"
buildah build --isolation chroot --pull=never --layers --format docker --tag "$tag" \
    --volume "$certificates:$certificates:ro" .
say "$tag is built, $(buildah images --format '{{.Size}}' "$tag")"
