#!/usr/bin/env bash
# Builds packages in target/package: a Debian package, an RPM package, and a tarball with an installer.
#
#     scripts/package.sh [--program FILE] [--revision N] [deb | rpm | tar]...     default: deb and tar
#
#   --program FILE   pack this program instead of building one
#   --revision N     revision of the packages (default 1)
#
# A program built here contains no paths of this machine, and every file has the time SOURCE_DATE_EPOCH (default: that of the last commit), so
# that two builds can be compared (scripts/reproduce.sh). The SPDX list of dependencies needs Python 3.11; `deb` needs dpkg-dev, and `rpm` needs rpm.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
program='' revision=1
while [ $# -gt 0 ]; do
    case $1 in
        --program) program=$2; shift 2 ;;
        --revision) revision=$2; shift 2 ;;
        *) break ;;
    esac
done
[ $# -gt 0 ] || set -- deb tar
umask 022

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml)
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct)}"
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC
machine=$(uname -m)

if [ -z "$program" ]; then
    # Gives Rust and C sources names that are the same on every machine.
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    export RUSTFLAGS="--remap-path-prefix=$PWD=/kithfs --remap-path-prefix=$cargo_home=/cargo ${RUSTFLAGS-}"
    export CFLAGS="-ffile-prefix-map=$PWD=/kithfs -ffile-prefix-map=$cargo_home=/cargo ${CFLAGS-}"
    cargo build --release --locked
    program=$(cargo metadata --no-deps --format-version 1 | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/kithfs
fi

out=target/package
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
strip --strip-unneeded -o "$work/program" "$program"
scripts/package/stage.sh "$work/program" "$work/staged"

make_deb() {
    local root=$work/deb architecture depends size
    cp -a "$work/staged" "$root"
    architecture=$(dpkg --print-architecture)
    # dpkg-shlibdeps looks at debian/control of a source package; a minimal one is enough.
    mkdir -p "$work/source/debian"
    printf 'Source: kithfs\n\nPackage: kithfs\nArchitecture: any\n' >"$work/source/debian/control"
    depends=$(cd "$work/source" && dpkg-shlibdeps -O "$root/usr/bin/kithfs" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
    {
        sed '/^@MIT@/,$d' scripts/package/copyright
        sed 's/^$/./; s/^/ /' LICENSE-MIT
        sed '1,/^@MIT@/d' scripts/package/copyright
    } >"$root/usr/share/doc/kithfs/copyright"
    printf 'kithfs (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' \
        "$version-$revision" "$maintainer" "$(date -R -d "@$SOURCE_DATE_EPOCH")" |
        gzip -9n >"$root/usr/share/doc/kithfs/changelog.Debian.gz"
    gzip -9n <CHANGELOG.md >"$root/usr/share/doc/kithfs/changelog.gz"
    mkdir "$root/DEBIAN"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    size=$(du -k -s --apparent-size "$root/usr" | cut -f 1)
    cat >"$root/DEBIAN/control" <<EOF
Package: kithfs
Version: $version-$revision
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $size
Depends: $depends, fuse3
Section: utils
Priority: optional
Description: encrypted filesystem for people who share
 A vault is an ordinary directory of ciphertext, on a disk, a network share or
 in a synced folder. kithfs shows it as plain files. Any folder in it can be
 shared with other people's public keys.
EOF
    find "$root" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
    dpkg-deb --root-owner-group -Zxz --build "$root" "$out/kithfs_$version-${revision}_$architecture.deb" >&2
}

make_rpm() {
    mkdir "$work/licences"
    cp -- LICENSE-* "$work/licences"
    rpmbuild -bb --quiet --define "version $version" --define "revision $revision" --define "staged $work/staged" --define "licences $work/licences" --define "_topdir $work/rpm" \
        --define "use_source_date_epoch_as_buildtime 1" --define "clamp_mtime_to_source_date_epoch 1" \
        --define "_buildhost localhost" scripts/package/kithfs.spec >&2
    cp "$work"/rpm/RPMS/*/*.rpm "$out"
}

make_tar() {
    local name=kithfs-$version-$machine
    mkdir "$work/$name"
    cp -a "$work/staged" "$work/$name/files"
    cp -- LICENSE-* README.md scripts/package/install.sh "$work/$name"
    tar --create --directory "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" "$name" |
        gzip -9n >"$out/$name.tar.gz"
}

maintainer='The kithfs developers <kithfs@packages.invalid>'
for kind in "$@"; do
    case $kind in
        deb | rpm | tar) "make_$kind" ;;
        *) echo "package: unknown kind $kind (deb, rpm or tar)" >&2; exit 1 ;;
    esac
done
ls -l "$out" >&2
