// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which tasks a view is about.

use kprism_flow::model::{NO_PARENT, Profile};

/// A choice of tasks. The default takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Thread or process ids; empty takes all.
    pub pids: Vec<u32>,
    /// Names with `*` and `?`; empty takes all.
    pub comms: Vec<String>,
}

impl Filter {
    /// For each task of the profile, whether it is taken.
    pub fn tasks(&self, profile: &Profile) -> Vec<bool> {
        let takes = |pid, tgid, comm: &str| {
            (self.pids.is_empty() || self.pids.contains(&pid) || self.pids.contains(&tgid))
                && (self.comms.is_empty() || self.comms.iter().any(|c| glob(c, comm)))
        };
        profile.tasks.iter().map(|t| takes(t.pid, t.tgid, &t.comm)).collect()
    }
}

/// For each node, its task; `None` below roots that belong to no task.
pub(crate) fn task_of_nodes(profile: &Profile) -> Vec<Option<u32>> {
    let mut task_of = vec![None; profile.nodes.len()];
    for (task, t) in profile.tasks.iter().enumerate() {
        if let Some(slot) = task_of.get_mut(t.root as usize) {
            *slot = Some(task as u32);
        }
    }
    for (i, node) in profile.nodes.iter().enumerate() {
        if node.parent != NO_PARENT {
            task_of[i] = task_of[node.parent as usize];
        }
    }
    task_of
}

/// Matches a whole text against a pattern of `*` (any characters) and `?` (one). Linear in both but for
/// the last star, to which it goes back.
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    (p, t) = (at + 1, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("ls", "ls", true),
            ("ls", "lsd", false),
            ("k*/?", "kworker/0", true),
            ("*a*b", "xaxbxb", true),
            ("*a*b", "xaxbxc", false),
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
