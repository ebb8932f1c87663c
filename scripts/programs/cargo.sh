#!/usr/bin/env bash
# cargo in a mount: a full build, a second build that does nothing, and one after a change that builds only what has changed. The same after a
# remount.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need cargo
make_vault && mount_vault
cargo new -q --vcs none --bin "$plain/project" --name project
cd "$plain/project"
for n in $(seq 40); do
    echo "pub fn value() -> u64 { (1..=$n).map(|x: u64| x * x).sum() }" >"src/m$n.rs"
done
{
    for n in $(seq 40); do echo "mod m$n;"; done
    echo 'fn main() { println!("{}", 0'
    for n in $(seq 40); do echo " + m$n::value()"; done
    echo '); }'
} >src/main.rs
export CARGO_INCREMENTAL=1 CARGO_TERM_COLOR=never
unset CARGO_TARGET_DIR
wanted=$(awk 'BEGIN { for (n = 1; n <= 40; n++) { s += n * n; t += s } print t }')
build() { cargo build --offline 2>&1; }
rebuilt() { build | grep Compiling >/dev/null; }
rebuilt || die "the first build built nothing"
[ "$(target/debug/project)" = "$wanted" ] || die "the program computes something else"
! rebuilt || die "a second build found something to do: times are not kept"
cd "$work" && remount_vault && cd "$plain/project"
! rebuilt || die "a build after a remount found something to do: times are not kept"
echo 'pub fn value() -> u64 { 0 }' >src/m40.rs
rebuilt || die "a change was not noticed"
[ "$(target/debug/project)" = $((wanted - 22140)) ] || die "the incremental build computes something else"
cd "$work" && umount_vault && check_vault
