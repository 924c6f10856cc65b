// SPDX-License-Identifier: MIT OR Apache-2.0
//! A list of runs, divided among workers. Input: a file with one path a line, and `k/n`. Output: the worker's paths.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};

/// The `number`-th of `of` workers, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parts = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((number, of)) if number < of => Ok(Shard { number, of }),
            _ => bail!("expected K/N, with K from 0 to N-1, such as 0/8"),
        }
    }
}

impl Shard {
    /// The worker's part of the list: every `of`-th path.
    pub fn pick(self, all: Vec<PathBuf>) -> Vec<PathBuf> {
        all.into_iter().skip(self.number).step_by(self.of).collect()
    }
}

/// Reads a list of paths, one a line. Empty lines and lines that begin with `#` are no paths.
///
/// # Errors
/// The file cannot be read, or is not text.
pub fn read_list(file: &Path) -> Result<Vec<PathBuf>> {
    let text = match file == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()).context("standard input")?,
        false => std::fs::read_to_string(file).with_context(|| file.display().to_string())?,
    };
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(PathBuf::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_disjoint_and_whole() {
        let all: Vec<PathBuf> = (0..11).map(|n| PathBuf::from(n.to_string())).collect();
        let mut joined: Vec<PathBuf> = ["0/3", "1/3", "2/3"]
            .iter()
            .flat_map(|text| text.parse::<Shard>().unwrap().pick(all.clone()))
            .collect();
        joined.sort_by_key(|path| path.to_str().unwrap().parse::<u32>().unwrap());
        assert_eq!(joined, all);
        for wrong in ["3/3", "0/0", "1", "-1/3", "a/b"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }
}
