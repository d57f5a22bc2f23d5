//! Programs that people use.

use crate::scene::{compare, has};

/// Some files of different kinds and sizes.
const FILES: &str = r#"
    mkdir -p in/deep/deeper
    seq 1 200000 > in/numbers
    head -c 3000001 /dev/zero | tr '\0' 'x' > in/deep/large
    printf 'short' > in/short; : > in/empty; chmod 640 in/short; chmod 755 in/deep/large
    ln -s ../short in/deep/link; ln in/numbers in/deep/hard; mkfifo in/pipe
    touch -d 2001-02-03T04:05:06.789 in/short in/numbers in/deep in/empty
"#;

#[test]
fn cp_copies_a_tree_with_everything_that_belongs_to_it() {
    compare(
        FILES,
        "cp -a in out; cp -r in/deep again; cp --sparse=always in/deep/large sparse; cmp in/numbers out/numbers",
    );
}

#[test]
fn dd_writes_appends_and_syncs() {
    compare(
        FILES,
        "dd if=in/numbers of=a bs=4k status=none
         dd if=in/numbers of=b bs=100k conv=fsync status=none
         dd if=in/short of=b oflag=append conv=notrunc status=none
         dd if=in/numbers of=c bs=1000 seek=7 count=3 status=none
         dd if=in/short of=c bs=1 seek=100 conv=notrunc status=none
         dd if=in/deep/large of=d bs=1M oflag=direct,dsync status=none
         dd if=/dev/zero of=e bs=1M count=9 status=none; dd if=e of=f bs=3M iflag=direct status=none; cat c | wc -c",
    );
}

#[test]
fn tar_packs_and_unpacks() {
    compare(
        FILES,
        "tar cf a.tar in; mkdir out; tar xpf a.tar -C out; tar czSf b.tgz in; tar df a.tar -C out; rm a.tar b.tgz",
    );
}

#[test]
fn rsync_brings_a_tree_up_to_date() {
    if !has(&["rsync"]) {
        return;
    }
    compare(
        FILES,
        "rsync -aH in/ out/; echo more >> in/numbers; rm in/empty; rsync -aH --delete --inplace in/ out/
         rsync -aHc --delete in/ again/; rsync -aHnci in/ out/; touch -d 2001-02-03 in out again in/numbers */numbers",
    );
}

#[test]
fn sed_edits_in_place() {
    compare(
        FILES,
        "sed -i s/1/one/g in/numbers; sed -i.bak s/short/long/ in/short; sed -n 1,3p in/numbers; cat in/short*",
    );
}

#[test]
fn git_clones_commits_collects_and_checks() {
    if !has(&["git"]) {
        return;
    }
    compare(
        FILES,
        "git init -q -b main a; cd a; cp -r ../in/deep .; git add .; git commit -qm one; git rev-parse HEAD
         cp ../in/numbers .; git add .; git commit -qm two; git status --short
         git clone -q --no-hardlinks . ../b; cd ../b; git -c gc.auto=0 gc -q --aggressive --prune=now; git fsck --full --strict
         git checkout -q HEAD~1; git status --short; git log --oneline --all; git rev-parse HEAD; cd ..
         git -C b count-objects -v | grep -v size; git -C a worktree add -q ../c HEAD~1; git -C c status --short
         rm -rf a/.git b/.git c",
    );
}

#[test]
fn sqlite_keeps_its_databases() {
    if !has(&["sqlite3"]) {
        return;
    }
    let work = "create table t(a integer primary key, b text);
        with recursive n(i) as (select 1 union all select i+1 from n where i < 3000)
        insert into t select i, hex(i * 7919) || hex(zeroblob(50)) from n;
        update t set b = b || 'x' where a % 3 = 0; delete from t where a % 7 = 0; vacuum;
        pragma integrity_check; select count(*), sum(length(b)) from t;";
    compare(
        "",
        &format!(
            "sqlite3 plain.db \"{work}\"; sqlite3 wal.db \"pragma journal_mode=wal; {work}\"
             sqlite3 map.db \"pragma mmap_size=10000000; {work}\"
             sqlite3 wal.db 'select count(*) from t; pragma wal_checkpoint(truncate)'; sqlite3 plain.db .dump | cksum
             sqlite3 wal.db .dump | cksum; rm *.db"
        ),
    );
}

#[test]
fn files_are_replaced_by_rename() {
    compare(
        FILES,
        "for i in 1 2 3 4 5; do seq $i 20000 > t; mv t state; head -1 state; done
         mv -n in/short state; mv --exchange in/short in/empty 2>/dev/null || true; mv in moved; cat moved/short",
    );
}

#[test]
fn files_grow_shrink_and_have_holes() {
    compare(
        FILES,
        "truncate -s 5M hole; printf x | dd of=hole bs=1 seek=3000000 conv=notrunc status=none; truncate -s 4M hole
         for i in 1 2 3; do echo line $i >> log; done; cat log; truncate -s 3 log; echo >> log; cat log
         fallocate -l 100000 full; fallocate -p -o 4096 -l 8192 in/deep/large; stat -c %s full in/deep/large
         cp --sparse=auto hole copy; cmp hole copy; : > in/numbers; echo new > in/short; wc -c < in/numbers",
    );
}

#[test]
fn links_count_and_open_files_outlive_their_names() {
    compare(
        FILES,
        "echo a > a; ln a b; echo b >> b; cat a; stat -c %h a; rm a; stat -c %h b; ln -s b c; cat c; readlink c
         exec 3> gone; echo hidden >&3; rm gone; echo more >&3; exec 4<&3; cat /proc/self/fd/3; exec 3>&- 4<&-
         mkdir d; touch d/x; rmdir d 2>/dev/null || echo full; rm -r d; ls",
    );
}

#[test]
fn modes_owners_times_and_attributes_are_kept() {
    if !has(&["setfattr", "setfacl"]) {
        return;
    }
    compare(
        "",
        "umask 027; echo a > a; mkdir d; umask 0; echo b > b; touch -d 1999-12-31T23:59:59.5 a; chmod 4711 b; chown 1:2 d
         setfattr -n user.note -v hello a; getfattr -d a; setfacl -m u:1:rw a; getfacl -c a; stat -c '%a %Y' a
         echo more >> b; touch -r a b; setfacl -d -m g:3:rx d; touch d/inherits; getfacl -c d/inherits; mkdir d/too
         getfattr -d a b; touch -d 1960-01-01T00:00:00.25 a; stat -c %y a",
    );
}

#[test]
fn other_users_own_what_they_create() {
    compare(
        "chmod 777 .",
        "as() { setpriv --reuid 1234 --regid 2345 --groups 7 \"$@\"; }
         as sh -c 'umask 022; echo mine > mine; mkdir dir; ln -s mine link; mkfifo fifo; stat -c \"%u %g %a\" mine dir'
         chgrp 7 dir; chmod 2775 dir; as sh -c 'echo a > dir/a; mkdir dir/b'; stat -c '%u %g %a' dir/a dir/b
         echo root > root; chmod 640 root; as cat root 2>/dev/null || echo denied; chgrp 7 root; as cat root
         chmod 6777 root; as sh -c 'echo x >> root'; stat -c %a root; mkdir -m 1777 sticky; touch sticky/r
         as rm -f sticky/r 2>/dev/null || echo kept",
    );
}

#[test]
fn programs_fork_exec_and_run_what_they_have_written() {
    if !has(&["gcc"]) {
        return;
    }
    compare(
        "printf 'int main(){puts(\"made here\");return 0;}' > a.c",
        "gcc -w -include stdio.h -o dynamic a.c; gcc -w -static -include stdio.h -o static a.c; ./dynamic; ./static
         cp static copy; ./copy; (echo from a child > child; sh -c 'echo grandchild >> child'); cat child
         printf '#!/bin/sh\\necho script $1' > s; chmod +x s; ./s 1; echo 'echo again' >> s; ./s 2
         rm dynamic static copy",
    );
}

#[test]
fn a_listing_is_right_while_files_come_and_go() {
    compare(
        "mkdir d",
        "i=0; while [ $i -lt 3000 ]; do : > d/f$i; i=$((i+1)); done; ls d | wc -l; find d -type f | wc -l
         find d -name '*7' -delete; ls -l d | wc -l; ls -U d | sort | tail -1; rm -r d",
    );
}
