#!/usr/bin/env bash
# git in a mount: clone, commits, branches, gc, fsck, a worktree; after a remount nothing is changed and every object is there.
set -euo pipefail
. "$(dirname -- "$0")/../scratch.sh"
need git
export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org

# A repository with some history, made outside.
git init -q -b main "$work/origin"
cd "$work/origin"
for round in 1 2 3 4 5 6 7 8; do
    mkdir -p "part$round"
    for file in $(seq 60); do seq "$round" $((round * file * 7)) >"part$round/file$file.txt"; done
    seq "$round" 20000 | shuf --random-source=<(yes "$round") >changing.txt
    git add -A && git commit -q -m "round $round"
done

make_vault && mount_vault
git clone -q "$work/origin" "$plain/clone"
cd "$plain/clone"
git fsck --strict --no-progress
[ -z "$(git status --porcelain)" ] || die "a fresh clone is not clean"
git checkout -q -b other HEAD~3
seq 500 >new.txt && git add new.txt && git commit -q -m new
git rebase -q main
git checkout -q main && git merge -q --no-edit other
git worktree add -q "$plain/tree" HEAD~2
git gc -q --aggressive --prune=now
git repack -qad
git fsck --strict --no-progress
head=$(git rev-parse HEAD)
cd "$work"
remount_vault
cd "$plain/clone"
[ -z "$(git status --porcelain)" ] || die "the clone is not clean after a remount"
[ "$(git rev-parse HEAD)" = "$head" ] || die "the head moved"
git fsck --strict --no-progress
git -C "$plain/tree" status --porcelain | { ! grep -q .; } || die "the worktree is not clean"
git clone -q "$plain/clone" "$work/back"
diff -r --exclude=.git "$plain/clone" "$work/back" || die "what came back differs"
cd "$work" && umount_vault && check_vault
