// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file in use: found as the command line says (`--config`, `--no-config`, `--profile`), applied, and shown.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Command;
use clap::error::{ContextKind, ContextValue};

use crate::apply::{Kept, apply};
use crate::file::{NAME, OptionsFile, find};

/// The file in use, and its options.
#[derive(Debug, Default)]
pub struct KeptOptions {
    file: Option<OptionsFile>,
    profile: Option<String>,
    kept: Vec<Kept>,
}

/// The definition in which the options of the file are the defaults of the command that was typed.
///
/// # Errors
/// The file cannot be read, or names what does not exist.
pub fn definition(definition: Command) -> Result<(Command, KeptOptions)> {
    let Ok(typed) = definition.clone().ignore_errors(true).try_get_matches() else {
        // Help, or the version.
        return Ok((definition, KeptOptions::default()));
    };
    // They are written into files for other machines.
    let ignores = matches!(typed.subcommand_name(), Some("completions" | "man") | None);
    if ignores || typed.get_flag("no_config") {
        return Ok((definition, KeptOptions::default()));
    }
    let profile = typed.get_one::<String>("profile").cloned();
    let path = match typed.get_one::<PathBuf>("config") {
        Some(path) => Some(path.clone()),
        None => find(&std::env::current_dir().context("the current folder")?)?,
    };
    let Some(path) = path else {
        anyhow::ensure!(profile.is_none(), "--profile: there is no {} here or above", NAME);
        return Ok((definition, KeptOptions::default()));
    };
    let file = OptionsFile::read(&path)?;
    let (definition, kept) = apply(definition, &typed, &file, profile.as_deref())?;
    Ok((definition, KeptOptions { file: Some(file), profile, kept }))
}

impl KeptOptions {
    /// The file.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// The file, and each of its options with the table that it stands in, a line each. Of options for the command that was
    /// typed, those that do not hold are marked.
    pub fn lines(&self) -> Vec<String> {
        let Some(file) = &self.file else { return Vec::new() };
        let profile = self.profile.as_ref().map(|name| format!(", profile {name}")).unwrap_or_default();
        let mut lines = vec![format!("options of {}{profile}", file.path.display())];
        for entry in &file.entries {
            if entry.profile.is_some() && entry.profile != self.profile {
                continue;
            }
            let why =
                self.kept.iter().find(|kept| kept.entry == *entry).and_then(|kept| kept.overridden.as_ref());
            let why = why.map(|why| format!("  (not used: {why})")).unwrap_or_default();
            let table = entry.profile.iter().map(|name| format!("profile.{name}.")).collect::<String>();
            let section = entry.section.join(".");
            lines.push(format!("  [{table}{section}] {} = {}{why}", entry.option, entry.values.join(", ")));
        }
        let others: Vec<&str> =
            file.profiles().into_iter().filter(|name| Some(*name) != self.profile.as_deref()).collect();
        if !others.is_empty() {
            lines.push(format!("  other profiles: {}", others.join(", ")));
        }
        lines
    }

    /// The line of the file whose value clap refuses.
    pub fn place_of(&self, error: &clap::Error) -> Option<String> {
        let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else { return None };
        let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else { return None };
        let name = arg.trim_start_matches('-').split([' ', '=']).next()?;
        let holds = |kept: &&Kept| kept.overridden.is_none() && kept.entry.option == name;
        // A path is joined to the file's folder.
        let says = |kept: &&Kept| kept.entry.values.iter().any(|own| value.ends_with(own.as_str()));
        let entry = &self.kept.iter().find(|kept| holds(kept) && says(kept))?.entry;
        Some(format!("{}:{}", self.path()?.display(), entry.line))
    }
}
