#!/usr/bin/env bash
# Shows where the daemon's time goes, layer by layer, for different loads on a vault in a scratch directory.
#
#     scripts/profile.sh [write|overwrite|read|random-read|create]...       default: all
#
# Needs perf(1) and root. Each sample of the daemon's threads is assigned to the innermost layer with a function on its stack. The table does
# not contain the kernel's work for the caller, or idle time: its last column shows for how much of the time the daemon was on a processor at
# all (200% means on two processors).
set -euo pipefail
. "$(dirname -- "$0")/scratch.sh"
need perf fio perl
[ "$(id -u)" -eq 0 ] || skip "perf needs root here"
[ $# -gt 0 ] || set -- write overwrite read random-read create
make_vault
printf '%s\n' '| load | ciphers | hashes | device | store | wake-ups | copies | rest | on a processor |' '|---|---:|---:|---:|---:|---:|---:|---:|---:|'

daemon_of() { "$kithfs" mounts --json | python3 -c 'import json, sys; print(next(m["pid"] for m in json.load(sys.stdin) if m["mountpoint"] == sys.argv[1]))' "$plain"; }
job() { DIR=$plain SIZE=256m fio --minimal "$here/benches/fio/$1.fio" >/dev/null; }
create() { perl -e 'chdir shift; for my $i (1 .. 5000) { open my $f, ">", "file$i" or die; syswrite $f, "k" x 4096; close $f }' "$plain"; }

for load; do
    case $load in
        write) fio=seq-write-fresh ;; overwrite) fio=seq-overwrite ;; read) fio=seq-read ;; random-read) fio=rand-read-4k ;; create) fio='' ;;
        *) die "unknown load $load" ;;
    esac
    mount_vault
    case $load in overwrite | read | random-read) [ -e "$plain/seq.dat" ] || job seq-write-fresh; remount_vault ;; write) rm -f "$plain/seq.dat" ;; esac
    pid=$(daemon_of)
    perf record -q -g -F 2000 -p "$pid" -o "$work/perf.data" >/dev/null 2>&1 &
    recorder=$!
    until [ -s "$work/perf.data" ]; do kill -0 "$recorder" || die "perf ended"; sleep 0.05; done
    ticks() { awk '{ print $14 + $15 }' "/proc/$pid/stat"; }
    before=$(ticks) from=$EPOCHREALTIME
    if [ -n "$fio" ]; then job "$fio"; else create; fi
    after=$(ticks) to=$EPOCHREALTIME
    kill -INT "$recorder"
    wait "$recorder" || true
    busy=$(awk -v t=$((after - before)) -v hz="$(getconf CLK_TCK)" -v s="$from" -v e="$to" 'BEGIN { printf "%.0f", 100 * t / hz / (e - s) }')
    perf script -i "$work/perf.data" -F ip,sym 2>/dev/null | perl -e '
        my ($load, $busy) = @ARGV;
        @ARGV = ();
        my @layers = (
            [ciphers => qr/ring_core|aes_gcm|ring::aead|chacha|poly1305|aws_lc|hctr2|xctr|polyval|aes::|crypto::aead/i],
            [hashes => qr/blake3|sha256|sha2|hkdf|hmac/i],
            [device => qr/^fuse_|fuse_dev/],
            [wakeups => qr/try_to_wake_up|^schedule|futex|__schedule|ttwu|pick_next|finish_task_switch/],
            [store => qr/^(__x64_sys_|do_sys|ksys_|vfs_|shmem_|ext4_|do_iter)/],
            [copies => qr/^__mem(move|cpy|set)_(avx|evex|sse|erms)/],
        );
        my (%count, $all, @stack);
        my $end = sub {
            return unless @stack;
            my $found = "rest";
            FRAME: for my $frame (@stack) { for my $layer (@layers) { if ($frame =~ $layer->[1]) { $found = $layer->[0]; last FRAME } } }
            $count{$found}++; $all++; @stack = ();
        };
        while (<STDIN>) { chomp; s/^\s+([0-9a-f]+\s+)?//; if ($_ eq "") { $end->() } else { push @stack, $_ } }
        $end->();
        $all ||= 1;
        printf "| %s | %s | %d%% |\n", $load, join(" | ", map { sprintf "%d%%", 100 * ($count{$_} // 0) / $all + 0.5 } qw(ciphers hashes device store wakeups copies rest)), $busy;
    ' "$load" "$busy"
    umount_vault
done
