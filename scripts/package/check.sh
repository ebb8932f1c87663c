#!/usr/bin/env bash
# Builds the packages, checks them with lintian and rpmlint, compares the files of the Arch package with those of the Debian package, and tests
# the Debian package in a fresh root made by mmdebstrap: it is installed, an ordinary user runs the demo with it, a vault stays usable after an
# upgrade, and a removal leaves nothing behind.
#
#     scripts/package/check.sh [--install] [--program FILE]
#
#   --install        install lintian, dpkg-dev, mmdebstrap, rpm, rpmlint, makepkg and pacman (which makepkg looks for) if they are missing
#   --program FILE   pack this program instead of building one
#
# Needs root, /dev/fuse and a Debian mirror (or the variable MIRROR).
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [ "${1-}" = --install ]; then
    shift
    "$here/tools.sh" lintian:lintian mmdebstrap:mmdebstrap dpkg-shlibdeps:dpkg-dev rpmbuild:rpm rpmlint:rpmlint makepkg:makepkg pacman:pacman-package-manager bsdtar:libarchive-tools fakeroot:fakeroot
fi
case $#:${1-} in 0: | 2:--program) ;; *) echo "usage: check.sh [--install] [--program FILE]" >&2; exit 1 ;; esac

"$here/package.sh" "$@" deb
"$here/package.sh" "$@" --revision 2 deb
"$here/package.sh" "$@" rpm
packages=$here/../target/package
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml")
deb=$(echo "$packages/kithfs_$version-1"_*.deb) newer=$(echo "$packages/kithfs_$version-2"_*.deb)

# The changelog names no bug, because there was no earlier package.
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$deb"
rpmlint --config "$here/package/rpmlint.toml" "$packages/kithfs-$version-1".*.rpm

root=$(mktemp -d)
arch=$(mktemp -d)
mounted=()
cleanup() {
    local status=$? at
    trap - EXIT
    # Unmounts a mount of kithfs that is left after a failure.
    while read -r at; do
        umount -- "$at" || umount -l -- "$at" || status=1
    done < <(awk -v below="$root/" 'index($5, below) == 1 && / - fuse/ { print $5 }' /proc/self/mountinfo)
    for at in "${mounted[@]}"; do
        umount -l -- "$at" || status=1
    done
    # Removes nothing as long as something is mounted below, because that would be removed too.
    if grep -q " $root/" /proc/self/mountinfo; then
        echo "package check: something is still mounted below $root" >&2
        exit 1
    fi
    rm -rf --one-file-system -- "$root" "$arch"
    exit "$status"
}
trap cleanup EXIT

# makepkg refuses to run as root. A user namespace makes root an ordinary user who can read root's Rust. --nodeps: Debian's packages have other
# names. build() runs for real, with a cargo that reads the manifest by the real one and then puts the packed program where a build with these
# arguments would leave it. This shows that build() has valid arguments and that package() looks where build() puts the program, not that the
# program compiles on Arch.
echo "package check: the PKGBUILD" >&2
(cd "$here/.." && git ls-files -z | tar --create --null --files-from=- | tar --extract --directory "$arch")
dpkg-deb --fsys-tarfile "$deb" | tar --extract --directory "$arch" --transform 's|^./usr/bin/kithfs$|./packed|' ./usr/bin/kithfs
mkdir "$arch/bin"
cat >"$arch/bin/cargo" <<EOF
#!/usr/bin/env bash
set -euo pipefail
# The list of dependencies asks the real one.
[ "\${1-}" = build ] || exec "$(command -v cargo)" "\$@"
echo "cargo \$*" >>"$arch/calls"
shift
target=\${CARGO_TARGET_DIR-} manifest=Cargo.toml profile=debug locked=no
while [ \$# -gt 0 ]; do
    case \$1 in
        --release) profile=release; shift ;;
        --locked) locked=yes; shift ;;
        --manifest-path) manifest=\$2; shift 2 ;;
        --target-dir) target=\$2; shift 2 ;;
        *) echo "cargo: unexpected argument \$1" >&2; exit 1 ;;
    esac
done
[ "\$locked" = yes ] || { echo "cargo: the PKGBUILD must build with --locked" >&2; exit 1; }
"$(command -v cargo)" metadata --no-deps --locked --offline --format-version 1 --manifest-path "\$manifest" >/dev/null
install -D "$arch/packed" "\$target/\$profile/kithfs"
EOF
chmod +x "$arch/bin/cargo"
# CARGO_TARGET_DIR, which a builder may have set, must not lead build() and package() apart.
(cd "$arch/scripts/package" && PATH=$arch/bin:$PATH CARGO_TARGET_DIR=$arch/elsewhere unshare --user --map-user=1000 --map-group=1000 makepkg --nodeps >&2)
[ "$(grep -c '^cargo build ' "$arch/calls")" = 1 ]
[ ! -e "$arch/elsewhere" ]
pkg=$(echo "$arch/scripts/package/kithfs-$version-1-$(uname -m)".pkg.tar.*)
[ "$("$arch/scripts/package/pkg/kithfs/usr/bin/kithfs" --version)" = "kithfs $version" ]
bsdtar -tf "$pkg" usr | grep '[^/]$' | sort >"$arch/of-arch"
# Arch has no /usr/sbin, zsh's directory has another name, and the licences are elsewhere than Debian's copyright and changelog.
{
    dpkg-deb --fsys-tarfile "$deb" | tar --list | sed 's|^\./||' | grep '[^/]$' | grep -vE 'doc/kithfs/(copyright|changelog.*)$' |
        sed -e 's|^usr/sbin/|usr/bin/|' -e 's|zsh/vendor-completions|zsh/site-functions|'
    printf 'usr/share/licenses/kithfs/LICENSE-%s\n' APACHE MIT
} | sort | diff -u - "$arch/of-arch"

# mmdebstrap copies all mounts into its own mount namespace. With --propagation slave, unmounts elsewhere still reach the copies, and the
# mounts of mmdebstrap reach nothing else.
unshare --mount --propagation slave mmdebstrap --quiet --variant=minbase --include=ca-certificates bookworm "$root" "${MIRROR:-http://deb.debian.org/debian}"
# A /dev of its own, because that of a container may give /dev/fuse to root alone.
mount --bind /proc "$root/proc"
mounted+=("$root/proc")
mount -t tmpfs -o mode=755 none "$root/dev"
mounted+=("$root/dev")
for node in 'null 1 3' 'zero 1 5' 'urandom 1 9' 'random 1 8' 'tty 5 0' 'fuse 10 229'; do
    read -r name major minor <<<"$node"
    mknod -m 666 "$root/dev/$name" c "$major" "$minor"
done
ln -s /proc/self/fd "$root/dev/fd"
# Every booted Debian has this link; fusermount3 reads it when an ordinary user unmounts.
ln -s /proc/self/mounts "$root/etc/mtab"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "$@"; }
as_user() { chroot --userspec=1000:1000 "$root" env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=/home/user "$@"; }

files() { (cd "$root" && find etc usr/{bin,sbin,lib,share} var/lib/dpkg/info -name '*kithfs*' | sort); }
cp -- "$deb" "$root/first.deb"
cp -- "$newer" "$root/newer.deb"
inside apt-get -qq update
inside apt-get -qq install -y --no-install-recommends /first.deb >/dev/null
inside useradd --uid 1000 --create-home user

install -m 755 "$here/demo.sh" "$root/usr/local/bin/kithfs-demo"
as_user mkdir -p /home/user/files
as_user sh -c 'echo "a file of an ordinary user" > /home/user/files/note'
as_user env KITHFS=/usr/bin/kithfs kithfs-demo /home/user/files
as_user sh -c 'kithfs completion bash > /dev/null && [ -r /usr/share/man/man1/kithfs.1.gz ] && [ -r /usr/lib/systemd/user/kithfs@.service ]'
as_user kithfs --version --json | grep '"fusermount3": true' >/dev/null
grep -q '"purl"' "$root/usr/share/doc/kithfs/kithfs.spdx.json"

# The new version must read a vault of the old one.
as_user sh -c 'echo passphrase > ~/passphrase && chmod 600 ~/passphrase'
vault() { as_user kithfs "$@" --passphrase-file /home/user/passphrase; }
vault init /home/user/vault
vault put /home/user/vault note /home/user/files/note
# mount(8) finds the program by the name mount.kithfs.
inside mkdir /mnt/plain
inside mount -t kithfs /home/user/vault /mnt/plain -o ro,passphrase_file=/home/user/passphrase
[ "$(cat "$root/mnt/plain/note")" = "a file of an ordinary user" ]
inside kithfs umount /mnt/plain
inside apt-get -qq install -y /newer.deb >/dev/null
[ "$(vault cat /home/user/vault note)" = "a file of an ordinary user" ]

inside apt-get -qq purge -y kithfs >/dev/null
left=$(files)
[ -z "$left" ] || { echo "package check: left behind after the removal: $left" >&2; exit 1; }
echo "package check: installed, used by an ordinary user, upgraded and removed" >&2
