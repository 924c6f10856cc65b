// SPDX-License-Identifier: MIT OR Apache-2.0
//! The value of `--like-host`: this machine, or a run whose guest took over the values of its recording machine.
//!
//! In: what was typed. Out: the values. A run is named to record its command once more, on whichever machine.

use std::path::Path;

use kprism_lab::LikeHost;
use kprism_store::Run;

use crate::goto;

/// The values of this machine if `text` is empty, otherwise those that the guest of the run in this folder took over.
///
/// # Errors
/// There is no such run, or it was recorded without `--like-host`.
pub fn parse(text: &str) -> Result<LikeHost, String> {
    if text.is_empty() {
        return Ok(LikeHost::of_this_machine());
    }
    let run = Run::open(Path::new(text)).map_err(|error| error.to_string())?;
    let manifest = run.manifest().map_err(|error| error.to_string())?;
    let place = run.manifest_path();
    let recorded = goto::like_host(&manifest).map_err(|error| format!("{}: {error:#}", place.display()))?;
    recorded
        .ok_or_else(|| format!("{text}: its guest took nothing over: it was recorded without --like-host"))
}

#[cfg(test)]
mod tests {
    use kprism_store::{Manifest, OptionKey, RunKind};

    use super::*;

    #[test]
    fn values_are_this_machines_or_those_of_a_run() {
        assert!(parse("").unwrap().variables.keys().all(|name| name != "PATH"));
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("run");
        let text = folder.to_str().unwrap();
        assert!(parse(text).unwrap_err().contains(text));
        let run = Run::create(&folder).unwrap();
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        run.write_manifest(&manifest).unwrap();
        assert!(parse(text).unwrap_err().contains("without --like-host"));
        let mode = serde_json::json!({"huge_pages": {"enabled": "never"}, "limits": {}, "variables": {}});
        manifest.set(OptionKey::LikeHost, mode);
        run.write_manifest(&manifest).unwrap();
        assert_eq!(parse(text).unwrap().huge_pages["enabled"], "never");
    }
}
