// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism bisect` over commits: one instruction more in a function of a kernel module, forty commits back; and a program
//! some of whose commits cannot be built.

mod guest;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use guest::{alone, kprism, ok, text};
use kprism_test::{APT, GCC, GIT, QEMU, SQL, needs, test, turn};
use serde_json::Value;

/// A module whose `/proc/planted` calls `work`, which begins with `planted`.
fn module(planted: &str) -> String {
    format!(
        "#include <linux/module.h>\n#include <linux/proc_fs.h>\n#include <linux/seq_file.h>\n\
         static int sum;\n\
         static __attribute__((noipa)) void planted_work(int n) {{ asm volatile(\"{planted}\"); WRITE_ONCE(sum, sum + n); }}\n\
         static int show(struct seq_file *m, void *v) {{ planted_work(1); seq_printf(m, \"%d\\n\", sum); return 0; }}\n\
         static int __init begin(void) {{ return proc_create_single(\"planted\", 0444, NULL, show) ? 0 : -ENOMEM; }}\n\
         static void __exit end(void) {{ remove_proc_entry(\"planted\", NULL); }}\n\
         module_init(begin);\nmodule_exit(end);\nMODULE_LICENSE(\"GPL\");\n"
    )
}

fn git(folder: &Path, arguments: &[&str]) -> String {
    let who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"];
    let output = Command::new("git").arg("-C").arg(folder).args(who).args(arguments).output();
    let output = output.expect("git is installed");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A commit of all files, named `title`.
fn commit(folder: &Path, title: &str) {
    git(folder, &["add", "."]);
    git(folder, &["commit", "--quiet", "-m", title]);
}

#[test]
fn an_instruction_planted_in_a_module_forty_commits_back() {
    needs(&[QEMU, APT, GCC, GIT]);
    turn(2, 0);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let repository = dir.path().join("repository");
    fs::create_dir(&repository).unwrap();
    git(&repository, &["init", "--quiet"]);
    for number in 0..50 {
        fs::write(repository.join("planted.c"), module(if number < 10 { "" } else { "nop" })).unwrap();
        fs::write(repository.join("NEWS"), format!("{number}\n")).unwrap();
        commit(&repository, &format!("number {number}"));
    }
    // Something that the user has not committed stays.
    fs::write(repository.join("NEWS"), "edited\n").unwrap();
    let probe = dir.path().join("release");
    let release = ok(&["lab", "run", "-q", "--unobserved", "-o", text(&probe), "--", "uname", "-r"]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/build-module.sh");
    let build = format!(
        "mkdir -p out && sh {} {} \"$PWD/out\" planted.c",
        text(&script.canonicalize().unwrap()),
        String::from_utf8_lossy(&release).trim()
    );
    let output = dir.path().join("bisect");
    let found = kprism(&[
        "bisect",
        "HEAD~49",
        "HEAD",
        "--repo",
        text(&repository),
        "-o",
        text(&output),
        "--build",
        &build,
        "--share",
        "out",
        "--before",
        "insmod /share/planted.ko",
        "--fail-if",
        "self_insns[planted_work] > +0",
        "--json",
        "--",
        "cat",
        "/proc/planted",
    ]);
    let said = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status.code(), Some(0), "{said}");
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert!(found["first_bad"]["title"].as_str().unwrap().starts_with("number 10 (Ann, "), "{found:#}");
    assert!(found["before"]["title"].as_str().unwrap().starts_with("number 9 (Ann, "), "{found:#}");
    let tried = found["tried"].as_array().unwrap();
    assert!((4..=10).contains(&tried.len()), "{}: {said}", tried.len());
    assert!(tried.iter().all(|tried| tried["state"] != "skipped"), "{found:#}");
    let verdict = &found["verdict"];
    assert_eq!(verdict["rules"][0]["change"], 1.0, "{verdict:#}");
    let work = &verdict["functions"].as_array().unwrap().iter().find(|f| f["function"] == "planted_work");
    let work = work.unwrap_or_else(|| panic!("it is named: {verdict:#}"));
    assert_eq!(work["module"], "[planted]");
    let insns = |side: usize| work["instructions"][side].as_u64().unwrap();
    assert_eq!(insns(1) - insns(0), 1);
    assert_eq!(fs::read_to_string(repository.join("NEWS")).unwrap(), "edited\n");
    assert_eq!(git(&repository, &["worktree", "list"]).lines().count(), 1);
    // GOOD, BAD, the first bad one and the one before it.
    let runs = fs::read_dir(&output).unwrap().map(|entry| entry.unwrap().path());
    let runs: Vec<PathBuf> =
        runs.filter(|path| path.extension().is_some_and(|extension| extension == "data")).collect();
    assert_eq!(runs.len(), 4);

    // A lake of them, by the place of their commits, names the same commit.
    let lake = dir.path().join("lake");
    for run in &runs {
        let id = run.file_stem().unwrap().to_str().unwrap();
        let place = git(&repository, &["rev-list", "--count", id]);
        let (place, commit) = (format!("position={}", place.trim()), format!("commit={id}"));
        ok(&[
            "lake",
            "add",
            "-q",
            text(run),
            "--to",
            text(&lake),
            "--suite",
            "s",
            "--label",
            &place,
            "--label",
            &commit,
        ]);
    }
    needs(&[SQL]);
    let query =
        "SELECT commit_id, module_name, insns_change FROM first_bad_commit WHERE name = 'planted_work'";
    let bad: Value = serde_json::from_slice(&ok(&["lake", "sql", text(&lake), query, "--json"])).unwrap();
    let first = found["first_bad"]["id"].as_str().unwrap_or_else(|| panic!("{found:#}"));
    let named = bad[0]["commit_id"].as_str().unwrap_or_else(|| panic!("{bad:#}"));
    assert!(first.starts_with(named), "{first}: {bad:#}");
    assert_eq!((&bad[0]["module_name"], &bad[0]["insns_change"]), (&"[planted]".into(), &1.into()));
    assert_eq!(bad.as_array().unwrap().len(), 1);
}

#[test]
fn commits_that_cannot_be_built_are_skipped_and_named() {
    needs(&[QEMU, APT, GCC, GIT]);
    turn(2, 1);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "--quiet"]);
    for (number, body) in ["", "(", "(", "for (volatile int n = 0; n < 1000; n++);", ""].iter().enumerate() {
        fs::write(dir.path().join("p.c"), format!("int main(void) {{ {body} return {number} > 9; }}\n"))
            .unwrap();
        commit(dir.path(), &format!("number {number}"));
    }
    let output = dir.path().join("bisect");
    let bisect = |good: &str, bad: &str, more: &[&str]| {
        let mut args = vec!["bisect", good, bad, "--repo", text(dir.path()), "-o", text(&output)];
        args.extend(["--build", "cc -O1 -static -o p p.c", "--share", "."]);
        args.extend(more);
        args.extend(["--", "/share/p"]);
        let output = kprism(&args);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, shown, said) = bisect("HEAD~4", "HEAD~1", &[]);
    assert_eq!(code, Some(1), "{shown}{said}");
    assert!(shown.starts_with("the first bad one is one of these"), "{shown}");
    for number in 1..=3 {
        assert!(shown.contains(&format!(" number {number} (Ann")), "{shown}");
    }
    assert_eq!(shown.matches("is skipped: the build failed").count(), 2, "{shown}");
    let (code, _, said) = bisect("HEAD~4", "HEAD", &["--fail-if", "insns > +1000"]);
    assert!(code == Some(2) && said.contains("BAD, HEAD, is not bad: insns > +1000"), "{said}");
    let (code, _, said) = bisect("HEAD~3", "HEAD", &[]);
    assert!(code == Some(2) && said.contains("GOOD, ") && said.contains("the build failed"), "{said}");
    let (code, _, said) = bisect("HEAD", "HEAD~4", &[]);
    assert!(code == Some(2) && said.contains("HEAD comes after HEAD~4"), "{said}");
    let (code, _, said) = bisect("HEAD~4", "HEAD", &["--fail-if", "tlb_misses > +0"]);
    assert!(code == Some(2) && said.contains("records the flow"), "{said}");
    assert!(git(dir.path(), &["status", "--porcelain"]).lines().all(|line| !line.contains("bisect")));
    fs::write(output.join(".gitignore"), "").unwrap();
    let (code, _, said) = bisect("HEAD~4", "HEAD~1", &[]);
    assert!(code == Some(2) && said.contains("choose another folder by -o"), "{said}");
    let (code, _, said) = bisect("nothing", "HEAD", &[]);
    assert!(code == Some(2) && said.contains("nothing: no such commit"), "{said}");
}

/// A command that fails does little, which is no reason to call its commit good.
#[test]
fn a_commit_whose_command_fails_is_skipped() {
    needs(&[QEMU, APT, GCC, GIT]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "--quiet"]);
    let work = "for (volatile int n = 0; n < 1000; n++);";
    for (number, body) in ["", work, "return 3;", work].iter().enumerate() {
        fs::write(dir.path().join("p.c"), format!("int main(void) {{ {body} return {number} > 9; }}\n"))
            .unwrap();
        commit(dir.path(), &format!("number {number}"));
    }
    let output = dir.path().join("bisect");
    let bisect = |program: &str| {
        let place = ["--repo", text(dir.path()), "-o", text(&output)];
        let how = ["--build", "cc -O1 -static -o p p.c", "--share", ".", "--", program];
        let output = kprism(&[&["bisect", "HEAD~3", "HEAD"][..], &place, &how].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, shown, said) = bisect("/share/p");
    assert_eq!(code, Some(0), "{shown}{said}");
    assert!(shown.lines().next().is_some_and(|line| line.contains(" number 1 (Ann")), "{shown}");
    let (code, _, said) = bisect("/share/mistyped");
    assert!(code == Some(2) && said.contains("the command could not be run"), "{said}");
}

kprism_test::main!();
