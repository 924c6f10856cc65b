// SPDX-License-Identifier: MIT OR Apache-2.0
//! Bisection over the commits of repositories made here.

use std::path::Path;
use std::process::Command;

use kprism_bisect::git::{Bisection, Step, ends};
use kprism_test::{GIT, needs, test};

/// Runs git, which must succeed.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let output =
        Command::new("git").arg("-C").arg(folder).args(arguments).output().expect("git is installed");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A repository with this many commits; number n writes n into the file `n`.
fn repository(folder: &Path, commits: usize) {
    git(folder, &["init", "--quiet"]);
    for number in 0..commits {
        add(folder, number, "n");
    }
}

/// Commits a file with its number.
fn add(folder: &Path, number: usize, file: &str) {
    std::fs::write(folder.join("n"), number.to_string()).unwrap();
    std::fs::write(folder.join(file), number.to_string()).unwrap();
    git(folder, &["add", "n", file]);
    let who = ["-c", "user.name=Ann", "-c", "user.email=ann@example.org"];
    let message = format!("number {number}");
    git(folder, &[&who[..], &["commit", "--quiet", "-m", &message]].concat());
}

fn number(bisection: &Bisection) -> usize {
    std::fs::read_to_string(bisection.worktree().join("n")).unwrap().parse().unwrap()
}

#[test]
fn the_first_bad_commit_is_found_and_the_repository_is_as_it_was() {
    needs(&[GIT]);
    let dir = tempfile::tempdir().unwrap();
    repository(dir.path(), 41);
    let before = git(dir.path(), &["status", "--porcelain=v2", "--branch"]);
    let worktree = dir.path().join(".git/tree");
    let (good, bad) = ends(dir.path(), "HEAD~40", "HEAD").unwrap();
    // A worktree whose folder is on a disk that is not there: git keeps it, and so must we.
    let away = dir.path().join(".git/away");
    git(dir.path(), &["worktree", "add", "--quiet", "--detach", away.to_str().unwrap()]);
    std::fs::remove_dir_all(&away).unwrap();
    let bisection = Bisection::open(dir.path(), &worktree, &bad).unwrap();
    let mut step = bisection.start(&good, &bad).unwrap();
    let mut tried = 0;
    let first = loop {
        step = match step {
            // A build leaves a file that git knows changed.
            Step::Try(..) => {
                let word = if number(&bisection) >= 7 { "bad" } else { "good" };
                std::fs::write(worktree.join("n"), "changed").unwrap();
                bisection.mark(word).unwrap()
            }
            Step::First(commit) => break commit,
            Step::OneOf(_) => panic!("none was skipped"),
        };
        tried += 1;
    };
    assert!(first.title.starts_with("number 7 (Ann, "), "{}", first.title);
    assert!(tried <= 6, "{tried}");
    drop(bisection);
    assert!(!worktree.exists());
    assert_eq!(git(dir.path(), &["status", "--porcelain=v2", "--branch"]), before);
    assert_eq!(git(dir.path(), &["worktree", "list"]).lines().count(), 2);
    assert_eq!(git(dir.path(), &["for-each-ref", "refs/bisect"]), "");
}

#[test]
fn commits_that_cannot_be_judged_are_named() {
    needs(&[GIT]);
    let dir = tempfile::tempdir().unwrap();
    repository(dir.path(), 4);
    let (good, bad) = ends(dir.path(), "HEAD~3", "HEAD").unwrap();
    let bisection = Bisection::open(dir.path(), &dir.path().join(".git/tree"), &bad).unwrap();
    let mut step = bisection.start(&good, &bad).unwrap();
    while let Step::Try(..) = step {
        step = bisection.mark("skip").unwrap();
    }
    let Step::OneOf(all) = step else { panic!("{step:?}") };
    assert_eq!(all.len(), 3, "{all:?}");
}

#[test]
fn what_is_no_range_of_commits_is_refused() {
    needs(&[GIT]);
    let dir = tempfile::tempdir().unwrap();
    let refused = |good, bad| format!("{:#}", ends(dir.path(), good, bad).unwrap_err());
    assert!(refused("HEAD~1", "HEAD").contains("not a git repository"));
    repository(dir.path(), 2);
    assert!(refused("--help", "HEAD").starts_with("--help: no such commit in "));
    assert_eq!(refused("HEAD", "HEAD~0"), "HEAD and HEAD~0 are the same commit");
    assert_eq!(refused("HEAD", "HEAD~1"), "HEAD comes after HEAD~1: GOOD is the older one");
}

/// A build writes a file that some of the commits track: git's own checkout refuses to replace it.
#[test]
fn a_file_of_a_build_stops_nothing() {
    needs(&[GIT]);
    let dir = tempfile::tempdir().unwrap();
    repository(dir.path(), 8);
    (8..16).for_each(|number| add(dir.path(), number, "out"));
    let worktree = dir.path().join(".git/tree");
    let (good, bad) = ends(dir.path(), "HEAD~15", "HEAD").unwrap();
    let bisection = Bisection::open(dir.path(), &worktree, &bad).unwrap();
    bisection.check_out(&good).unwrap();
    std::fs::write(worktree.join("out"), "of a build").unwrap();
    let mut step = bisection.start(&good, &bad).unwrap();
    let first = loop {
        step = match step {
            Step::Try(..) => {
                let word = if number(&bisection) >= 7 { "bad" } else { "good" };
                std::fs::write(worktree.join("out"), "of a build").unwrap();
                bisection.mark(word).unwrap()
            }
            Step::First(commit) => break commit,
            Step::OneOf(_) => panic!("none was skipped"),
        };
    };
    assert!(first.title.starts_with("number 7 (Ann, "), "{}", first.title);
}

/// One that was killed left its worktree: it is taken away, and so is one whose folder alone is gone.
#[test]
fn an_earlier_bisection_is_in_nobodys_way() {
    needs(&[GIT]);
    let dir = tempfile::tempdir().unwrap();
    repository(dir.path(), 2);
    let (_, bad) = ends(dir.path(), "HEAD~1", "HEAD").unwrap();
    let worktree = dir.path().join(".git/tree");
    std::mem::forget(Bisection::open(dir.path(), &worktree, &bad).unwrap());
    std::mem::forget(Bisection::open(dir.path(), &worktree, &bad).unwrap());
    std::fs::remove_dir_all(&worktree).unwrap();
    drop(Bisection::open(dir.path(), &worktree, &bad).unwrap());
    assert_eq!(git(dir.path(), &["worktree", "list"]).lines().count(), 1);
    // That of another repository, too.
    let other = tempfile::tempdir().unwrap();
    repository(other.path(), 2);
    let (_, bad_there) = ends(other.path(), "HEAD~1", "HEAD").unwrap();
    std::mem::forget(Bisection::open(dir.path(), &worktree, &bad).unwrap());
    let bisection = Bisection::open(other.path(), &worktree, &bad_there).unwrap();
    assert_eq!(number(&bisection), 1);
}

kprism_test::main!();
