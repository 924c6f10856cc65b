// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commits between two, tried in the order of `git bisect`, in a worktree of its own.
//!
//! In: a repository, a good and a bad revision, and for each commit checked out whether it is good. Out: the next commit, or
//! the first bad one. `git bisect` keeps its state in the worktree, so a bisection that the user has under way in the
//! repository is not touched. The worktree goes when [`Bisection`] is dropped.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// A bisection that is under way.
#[derive(Debug)]
pub struct Bisection {
    repository: PathBuf,
    worktree: PathBuf,
}

/// A commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// Its hash.
    pub id: String,
    /// The first line of its message, its author and date.
    pub title: String,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// The worktree holds this commit now: try it. The text is git's own: how many are left.
    Try(Commit, String),
    /// The first bad commit.
    First(Commit),
    /// One of these is the first bad commit: the others could not be judged.
    OneOf(Vec<Commit>),
}

impl Bisection {
    /// Makes the worktree in `worktree`, which must not exist or be one of an earlier bisection, at commit `bad`. Other
    /// worktrees of the repository are left alone, those too whose folders are not there at the moment.
    ///
    /// # Errors
    /// git is missing, or a worktree cannot be made there.
    pub fn open(repository: &Path, worktree: &Path, bad: &Commit) -> Result<Self> {
        let bisection = Bisection { repository: repository.to_owned(), worktree: worktree.to_owned() };
        if worktree.exists() {
            // Left by a bisection that was killed, maybe of another repository.
            if git(repository, &["worktree", "remove", "--force", text(worktree)?]).is_err() {
                std::fs::remove_dir_all(worktree).with_context(|| worktree.display().to_string())?;
            }
        }
        // Forced: if only the folder of an earlier one is gone, git still knows it.
        git(repository, &["worktree", "add", "--force", "--quiet", "--detach", text(worktree)?, &bad.id])?;
        Ok(bisection)
    }

    /// The folder in which commits are checked out.
    pub fn worktree(&self) -> &Path {
        &self.worktree
    }

    /// Checks out a commit. Files that git does not know, as of a build, stay.
    ///
    /// # Errors
    /// git refuses.
    pub fn check_out(&self, commit: &Commit) -> Result<()> {
        git(&self.worktree, &["checkout", "--quiet", "--force", "--detach", &commit.id]).map(drop)
    }

    /// Begins, with a good and a bad commit known.
    ///
    /// # Errors
    /// As of git: the bad one is no descendant of the good one, for instance.
    pub fn start(&self, good: &Commit, bad: &Commit) -> Result<Step> {
        // git's own checkout would refuse to replace files that a build left and the next commit knows.
        self.step(&["bisect", "start", "--no-checkout", &bad.id, &good.id])
    }

    /// Says that the commit that is checked out is `good`, `bad` or `skip`, and goes on.
    ///
    /// # Errors
    /// As of git.
    pub fn mark(&self, word: &str) -> Result<Step> {
        self.step(&["bisect", word])
    }

    fn step(&self, arguments: &[&str]) -> Result<Step> {
        let output = run(&self.worktree, arguments)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match outcome(&said) {
            Outcome::First(id) => Ok(Step::First(commit(&self.worktree, &id)?)),
            Outcome::OneOf(ids) => {
                Ok(Step::OneOf(ids.iter().map(|id| commit(&self.worktree, id)).collect::<Result<_>>()?))
            }
            Outcome::Other if !output.status.success() => {
                bail!(
                    "git {}: {}{}",
                    arguments.join(" "),
                    said,
                    String::from_utf8_lossy(&output.stderr).trim()
                )
            }
            Outcome::Other => {
                let left = said.lines().next().unwrap_or_default().trim_start_matches("Bisecting: ");
                let next = commit(&self.worktree, "BISECT_HEAD")?;
                self.check_out(&next)?;
                Ok(Step::Try(next, left.to_owned()))
            }
        }
    }
}

impl Drop for Bisection {
    fn drop(&mut self) {
        // If that fails, the folder is left, and the next bisection there removes it.
        let path = self.worktree.to_string_lossy();
        let _ = run(&self.repository, &["worktree", "remove", "--force", &path]);
    }
}

/// The end of a bisection, by git's words.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    First(String),
    OneOf(Vec<String>),
    Other,
}

/// Reads what `git bisect` printed (builtin/bisect.c, bisect.c: `bisect_next_all`, `exit_if_skipped_commits`).
fn outcome(said: &str) -> Outcome {
    let is_id = |text: &str| matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let first = said.lines().find_map(|line| line.strip_suffix(" is the first bad commit"));
    if let Some(id) = first.filter(|id| is_id(id)) {
        return Outcome::First(id.to_owned());
    }
    let mut lines = said.lines().skip_while(|line| !line.starts_with("The first bad commit could be any of"));
    match lines.next() {
        Some(_) => Outcome::OneOf(lines.filter(|line| is_id(line)).map(str::to_owned).collect()),
        None => Outcome::Other,
    }
}

/// The good and the bad commit that two revisions of a repository name.
///
/// # Errors
/// The folder is no repository, one of them names no commit, they are the same, or the good one comes after the bad one.
pub fn ends(repository: &Path, good: &str, bad: &str) -> Result<(Commit, Commit)> {
    if !run(repository, &["rev-parse", "--git-dir"])?.status.success() {
        bail!("{}: not a git repository", repository.display());
    }
    let (first, last) = (commit(repository, good)?, commit(repository, bad)?);
    if first == last {
        bail!("{good} and {bad} are the same commit");
    }
    if run(repository, &["merge-base", "--is-ancestor", &last.id, &first.id])?.status.success() {
        bail!("{good} comes after {bad}: GOOD is the older one");
    }
    Ok((first, last))
}

/// The commit that a revision of a repository names.
///
/// # Errors
/// It names none.
pub fn commit(folder: &Path, revision: &str) -> Result<Commit> {
    let named = format!("{revision}^{{commit}}");
    let output = run(folder, &["rev-parse", "--verify", "--quiet", "--end-of-options", &named])?;
    if !output.status.success() {
        bail!("{revision}: no such commit in {}", folder.display());
    }
    let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let title = git(folder, &["log", "-1", "--date=short", "--format=%s (%an, %ad)", &id])?.trim().to_owned();
    Ok(Commit { id, title })
}

/// Runs git, which must succeed, and returns its standard output.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = run(folder, arguments)?;
    if !output.status.success() {
        if kprism_signals::end_requested() {
            return Err(kprism_lab::Error::Interrupted.into());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!(
            "git {}: {}",
            arguments.join(" "),
            if why.is_empty() { output.status.to_string() } else { why }
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn run(folder: &Path, arguments: &[&str]) -> Result<std::process::Output> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder).args(["-c", "advice.detachedHead=false"]).args(arguments);
    command.env("LC_ALL", "C").env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
    // Ctrl-C is for kprism, which ends the search itself; it reaches a terminal's whole process group.
    command.process_group(0);
    command.output().context("git is needed to bisect over commits: apt-get install git")
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))
}
