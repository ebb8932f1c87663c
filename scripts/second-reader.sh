#!/usr/bin/env bash
# Shows that SPEC.md is enough for a second implementation: scripts/read-vault.py was made from that page alone. This script compares what
# that reader and kithfs read from the same vaults.
#
#     scripts/second-reader.sh [--install] [--flips N] [--strict]
#
#   --install    install what the reader needs (as root on Debian)
#   --flips N    number of changes to each of the two vaults that are tampered with, one at a time (default 40)
#   --strict     fail if only one of the two notices such a change, even if neither returns wrong data. Without --strict this is printed
#
# Compares: the frozen vaults and the golden vectors; trees of all kinds of files under both suites, signed and unsigned, after changes in a
# mount; shares with members who came and left, nested shares, names under two folder keys and conflict copies of them, a fork before and
# after it was settled; a crash after which the journal has data that the files lack; a store that tries to break a reader; flipped bits.
# Exit status: 0 if the two agree (see --strict); 1 if not; 77 if the comparison cannot run here.
set -euo pipefail
case ${1-} in -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;; esac
flips=40
while [ $# -gt 0 ]; do
    case $1 in
        --install)
            export DEBIAN_FRONTEND=noninteractive
            packages=(python3 python3-cryptography python3-argon2)
            dpkg -s "${packages[@]}" >/dev/null 2>&1 ||
                { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null; }
            shift
            ;;
        --flips) flips=$2; shift 2 ;;
        --strict) export STRICT=yes; shift ;;
        *) echo "second-reader: no such option: $1; see --help" >&2; exit 2 ;;
    esac
done
here=$(cd -- "$(dirname -- "$0")/.." && pwd)
[ -n "${KITHFS-}" ] || [ -x "$here/target/release/kithfs" ] || (cd "$here" && cargo build --release --locked)
. "$here/scripts/scratch.sh"
/usr/bin/python3 -c 'import argon2, cryptography' 2>/dev/null || skip "python3-argon2 and python3-cryptography are not installed: see --install"
proof() { "$here/scripts/second-reader/proof.py" "$@"; }

# as PERSON COMMAND...: runs a command as a person, who has an identity, contacts and rollback databases of their own.
as() {
    local who=$1
    shift
    XDG_STATE_HOME=$work/$who/state XDG_CONFIG_HOME=$work/$who/config KITHFS_PASSPHRASE_FILE=$work/$who/passphrase "$@" 2>>"$work/log" ||
        { tail -n 5 "$work/log" >&2; return 1; }
}
person() {
    mkdir -p "$work/$1"
    head -c 24 /dev/urandom | base64 >"$work/$1/passphrase"
    as "$1" "$kithfs" identity new --kdf-memory 32 --kdf-passes 1 >/dev/null
}
knows() { as "$1" "$kithfs" contact add "$2" "$(as "$2" "$kithfs" identity export)" && as "$1" "$kithfs" contact verify "$2" --yes; }
reader() {
    local who=$1
    shift
    "$here/scripts/read-vault.py" --identity "$work/$who/config/kithfs/identity" --passphrase-file "$work/$who/passphrase" "$@"
}
own() { as ann "$kithfs" init --identity "$work/ann/config/kithfs/identity" "$@"; }

# agree WHAT PERSON VAULT [OPTION...]: checks that both export the same. The options are for the reader.
agree() {
    local what=$1 who=$2 from=$3
    shift 3
    rm -rf -- "$work/out-kithfs" "$work/out-reader"
    as "$who" "$kithfs" export --dev --suid "$from" "$work/out-kithfs" >/dev/null || die "$what: kithfs cannot export it"
    reader "$who" "$@" "$from" export --dev --suid "$work/out-reader" 2>"$work/said" || { cat "$work/said" >&2; die "$what: the reader cannot export it"; }
    proof compare "$work/out-kithfs" "$work/out-reader" >"$work/compared" || { cat "$work/compared" >&2; die "$what: the two differ"; }
    echo "$what: $(tail -n 1 "$work/compared")"
}

# mounted VAULT: mounts it at $plain. The daemon is a child, so that it can be killed by its process id.
daemon=
mounted() {
    mkdir -p "$plain"
    XDG_STATE_HOME=$work/ann/state KITHFS_PASSPHRASE_FILE=$work/ann/passphrase \
        "$kithfs" mount -f "$1" "$plain" --identity "$work/ann/config/kithfs/identity" -o dev,suid >/dev/null 2>>"$work/log" &
    daemon=$!
    until mountpoint -q "$plain"; do
        kill -0 "$daemon" 2>/dev/null || { tail -n 5 "$work/log" >&2; die "the mount has failed"; }
        sleep 0.05
    done
}
unmounted() { as ann "$kithfs" umount "$plain"; wait "$daemon"; }

echo "== the frozen vaults and the golden vectors"
mkdir "$work/frozen"
proof frozen "$here/tests/vaults/v1" "$work/frozen" || die "the frozen vaults differ"
proof vectors "$here/tests/vectors" || die "the vectors differ"

# Combines the files from before some writes with the journals from after them. The synced data is then in a journal only, and so is the
# record that a file was just created.
crash() {
    local made tries=200
    rm -rf -- "$work/crashed"
    mounted "$vault"
    ls "$vault" >"$work/before"
    : >"$plain/just made"
    until compgen -G "$vault/+created-*" >/dev/null; do
        [ $((tries -= 1)) -gt 0 ] || die "$1: no journal of files that were made has come"
        sleep 0.1
    done
    cp -a "$vault" "$work/crashed"
    proof overwrite "$plain"
    kill -KILL "$daemon"
    wait "$daemon" 2>/dev/null || true
    umount -l "$plain"
    made=$(ls "$vault" | grep -v '^+' | grep -vxFf "$work/before")
    truncate --size 0 "$work/crashed/$made"
    rm -f -- "$work/crashed"/+journal-* "$work/crashed"/+created-*
    cp -a "$vault"/+journal-* "$vault"/+created-* "$work/crashed"
    agree "$1, a crash" ann "$work/crashed"
    grep -q 'note: +journal-' "$work/said" || die "the reader has not said that there is a journal"
    proof overwritten "$work/out-reader" || die "what was synced is not there"
    [ -f "$work/out-reader/just made" ] || die "what was just made is not there"
}

echo "== trees"
person ann && person bob && person eve
for one in bob eve; do knows ann "$one"; done
knows bob ann
proof tree "$work/tree"
for options in '--cipher aes --chunk-size 4K' '--cipher chacha --chunk-size 256K --signed' '--cipher aes --chunk-size 4M --signed' '--cipher chacha --chunk-size 16K'; do
    rm -rf -- "$vault"
    # shellcheck disable=SC2086
    own $options "$vault"
    as ann "$kithfs" import "$work/tree" "$vault"
    mounted "$vault"
    proof change "$plain"
    unmounted
    agree "$options" ann "$vault"
    [[ $options = *4M* ]] || crash "$options"
done

echo "== shares"
rm -rf -- "$vault"
own --chunk-size 4K "$vault"
proof small "$work/small"
as ann "$kithfs" import "$work/small" "$vault"
mounted "$vault"
proof attribute "$plain" "$plain/projects" "$plain/projects/nested"
unmounted
as ann "$kithfs" share create "$vault/projects"
as ann "$kithfs" share add "$vault/projects" bob --role writer
as ann "$kithfs" share add "$vault/projects" eve --role admin
shared=$vault/$(as ann "$kithfs" map "$vault" projects)
for one in bob eve; do
    as ann "$kithfs" share invite "$vault/projects" "$one" -o "$work/$one/invitation"
    as "$one" "$kithfs" accept --yes "$work/$one/invitation"
    as "$one" "$kithfs" import "$work/small/sizes" "$shared/by $one"
done
as ann "$kithfs" share create "$vault/projects/nested"
as eve "$kithfs" share create "$shared/made by eve"
as eve "$kithfs" import "$work/small/links" "$shared/made by eve/links"
for within in nested "made by eve"; do as ann "$kithfs" share add "$vault/projects/$within" bob --role reader; done
agree "shares" ann "$vault"
# A member who does not know yet that eve has left creates names that other members create too. A sync tool delivers these entries.
rm -rf -- "$work/offline"
cp -a "$vault" "$work/offline"
offline=$work/offline/$(as ann "$kithfs" map "$work/offline" projects)
declare -A older
for at in "$work/offline/projects" "$vault/projects"; do
    [ "$at" != "$vault/projects" ] || as ann "$kithfs" share remove "$vault/projects" eve
    for given in short "$(printf 'l%.0s' {1..200})" "$(printf 'm%.0s' {1..220})" "$(printf 'n%.0s' {1..240})"; do
        echo "$at" | as ann "$kithfs" put "${at%/projects}" "projects/file $given"
        as ann "$kithfs" mkdir "${at%/projects}" "projects/d${given:0:220}"
        echo "$at" | as ann "$kithfs" put "${at%/projects}" "projects/d${given:0:220}/$given"
        for made in "file $given" "d${given:0:220}"; do
            # The first is the stored name under the old key.
            : "${older[$made]:=$(as ann "$kithfs" map "${at%/projects}" "projects/$made")}"
        done
    done
done
cp -an "$offline/." "$shared"
# A sync tool's conflict copies of both, beside entries that really have such names.
for given in "file short" dshort "file $(printf 'l%.0s' {1..200})" "d$(printf 'l%.0s' {1..200})"; do
    case $given in
        d*) as ann "$kithfs" mkdir "$vault" "projects/$given (1)" && echo real | as ann "$kithfs" put "$vault" "projects/$given (1)/real" ;;
        *) echo real | as ann "$kithfs" put "$vault" "projects/$given (1)" ;;
    esac
    newer=$(as ann "$kithfs" map "$vault" "projects/$given")
    [ "$newer" != "${older[$given]}" ] || die "projects/$given has one name under two keys"
    for at in "$vault/$newer" "$vault/${older[$given]}"; do
        [ -e "$at" ] || die "projects/$given is not there under two keys"
        for suffix in ' (1)' ' (moved 01234567)' '.sync-conflict-20260102-101112-ABCDEFG' -MACHINE '~' ' (conflict copy ~)'; do
            cp -a "$at" "$at$suffix"
        done
    done
done
# A storage host moves entries into a directory in which they never were.
into=$vault/$(as ann "$kithfs" map "$vault" "projects/d$(printf 'l%.0s' {1..200})")
for at in "$vault/${older[file short]}" "$vault/${older[dshort]}"; do cp -a "$at" "$into"; done
agree "a member has left" ann "$vault"
agree "a member who stays, by their memory of the share" bob "$shared" --memory "$(ls "$work"/bob/state/kithfs/shares/????????????????????????????????????????????????????????????????)"
fingerprint=$(as ann "$kithfs" identity show | grep -oE '([0-9A-Z]{4}-){4}[0-9A-Z]{4}')
agree "the same by their invitation" bob "$shared" --invitation "$work/bob/invitation" --fingerprint "$fingerprint"
status=0
reader eve --invitation "$work/eve/invitation" --fingerprint "$fingerprint" "$shared" check 2>/dev/null || status=$?
[ "$status" = 3 ] || die "the reader lets in a member who has left: exit status $status"
as ann "$kithfs" share rekey --eager "$vault/projects"
agree "all sealed anew" ann "$vault"

echo "== a fork"
rm -rf -- "$vault" "$work/other"
own --signed --chunk-size 4K "$vault"
as ann "$kithfs" import "$work/small" "$vault"
# Their files count on one side because they may write there, and on the other because an inventory lists them.
for one in bob eve; do
    as ann "$kithfs" share add "$vault" "$one" --role writer
    as ann "$kithfs" share invite "$vault" "$one" -o "$work/$one/invitation"
    as "$one" "$kithfs" accept --yes "$work/$one/invitation"
    as "$one" "$kithfs" import --identity "$work/$one/config/kithfs/identity" "$work/small" "$vault/by $one"
done
cp -a "$vault" "$work/other"
as ann "$kithfs" share remove "$vault" bob
# ann's record of the one side would keep her from accepting the other, and from seeing the fork.
rm -rf -- "$work/ann/state"
as ann "$kithfs" share remove "$work/other" eve
as ann "$kithfs" import "$work/small/sizes" "$work/other/there"
rm -rf -- "$work/ann/state"
as ann "$kithfs" import "$work/small/sizes" "$vault/here"
cp -an "$work/other/." "$vault"
rm -rf -- "$work/ann/state"
agree "two lists of members" ann "$vault"
keep=$(find "$vault" -maxdepth 1 -name '+manifest-4-*' | sort | head -n 1)
as ann "$kithfs" share settle --keep "${keep##*-}" "$vault"
agree "settled" ann "$vault"

echo "== a store that tries to break a reader"
rm -rf -- "$vault"
XDG_CONFIG_HOME=$work/nobody XDG_STATE_HOME=$work/nobody KITHFS_PASSPHRASE_FILE=$work/ann/passphrase \
    "$kithfs" init --kdf-memory 32 --kdf-passes 1 "$vault" >/dev/null 2>>"$work/log"
# Reads with the vault's own identity. The time limit ends a reader that would wait for ever.
reads() { timeout 100 "$here/scripts/read-vault.py" --passphrase-file "$work/ann/passphrase" "$vault" "$@" 2>"$work/said"; }
# Nested directories, deeper than Python's recursion limit, the longest path and the limit on open descriptors.
depth=2500
proof deep "$work/deep" $depth
mkdir "$work/deep/"$'e\e[2Jscape\nname'
ln -s $'\e[1mbold' "$work/deep/link"
XDG_CONFIG_HOME=$work/nobody XDG_STATE_HOME=$work/nobody KITHFS_PASSPHRASE_FILE=$work/ann/passphrase \
    "$kithfs" import --no-rollback-memory "$work/deep" "$vault" 2>>"$work/log"
(ulimit -n 1024 && reads export "$work/deep-out") || { head -n 5 "$work/said" >&2; die "the reader cannot export a deep tree"; }
proof deepest "$work/deep-out" $depth || die "the deepest file is not there"
reads ls >"$work/list" || die "the reader cannot list names with escape sequences"
! reads ls $'d/\e[2J' || die "the reader lists what is not there"
for text in "$work/list" "$work/said"; do
    ! LC_ALL=C grep -q $'[\x01-\x09\x0b-\x1f\x7f]' "$text" || die "an escape sequence of a name reaches the terminal"
done
[ "$(wc -l <"$work/list")" = 3 ] || die "a name forges a line of a listing"
mv "$vault/+identity" "$work/taken"
ln -s "$work/taken" "$vault/+identity"
for what in "a link" "a FIFO"; do
    status=0
    reads ls >/dev/null || status=$?
    [ "$status" = 1 ] || die "the reader opens $what for the vault's own identity: exit status $status"
    rm -- "$vault/+identity" && mkfifo "$vault/+identity"
done
echo "a deep tree, escape sequences, a linked identity and a FIFO: nothing trips it"

echo "== flips"
# Tampers with two vaults at the same time, one of them signed. Each contains a share that a member has left, and a nested share in it.
tamper() {
    local to=$work/flips-$1 number=$2
    shift 2
    mkdir -p "$to/work"
    own --chunk-size 4K "$@" "$to/vault"
    as ann "$kithfs" import "$work/small" "$to/vault"
    as ann "$kithfs" share create "$to/vault/projects"
    as ann "$kithfs" share add "$to/vault/projects" bob --role writer
    as ann "$kithfs" share create "$to/vault/projects/nested"
    as ann "$kithfs" share remove "$to/vault/projects" bob
    XDG_STATE_HOME=$to/state XDG_CONFIG_HOME=$work/ann/config KITHFS_PASSPHRASE_FILE=$work/ann/passphrase KITHFS_NO_ROLLBACK_MEMORY=1 \
        READER_IDENTITY=$work/ann/config/kithfs/identity proof flips "$flips" "$number" "$kithfs" "$to/vault" "$to/work" >"$to/said"
}
tampering=()
tamper one $RANDOM --cipher aes & tampering+=($!)
tamper two $RANDOM --cipher chacha --signed & tampering+=($!)
before_cleanup() { for one in "${tampering[@]}"; do kill "$one" 2>/dev/null && wait "$one"; done; }
for one in "${tampering[@]}"; do
    wait "$one" || { cat "$work"/flips-*/said >&2; die "tampering: something is wrong"; }
done
tampering=()
cat "$work"/flips-*/said
if grep -q '^differ: ' "$work"/flips-*/said; then
    echo "second-reader: neither returns wrong data; the changes that only one of them has noticed are listed above"
else
    echo "second-reader: the two agree"
fi
