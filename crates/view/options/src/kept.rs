// SPDX-License-Identifier: MIT OR Apache-2.0
//! The file in use: found as the command line says (`--options-file`, `--no-options-file`, `--profile`), applied, and shown.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command};

use crate::apply::{Kept, apply};
use crate::file::{NAME, OptionsFile, find};

/// The file in use, and its options.
#[derive(Debug, Default)]
pub struct KeptOptions {
    file: Option<OptionsFile>,
    profile: Option<String>,
    kept: Vec<Kept>,
    /// The words of the command that was typed.
    command: Vec<String>,
}

/// The process's command line with the options of its file.
static COMPLETE: OnceLock<Vec<OsString>> = OnceLock::new();

/// The words of this process's command line after its name, with the options of the file that [`definition`] found, as if they had been
/// typed: for another machine, which has no such file.
pub fn command_line() -> Vec<OsString> {
    COMPLETE.get().cloned().unwrap_or_else(|| std::env::args_os().skip(1).collect())
}

/// The definition in which the options of the file are the defaults of the command that was typed.
///
/// On another machine that runs this command line (`is_complete`), it has these options already.
///
/// # Errors
/// The file cannot be read, or names what does not exist.
pub fn definition(definition: Command, is_complete: bool) -> Result<(Command, KeptOptions)> {
    if is_complete {
        return Ok((definition, KeptOptions::default()));
    }
    let line: Vec<OsString> = std::env::args_os().collect();
    let (definition, options) = definition_of(definition, &line)?;
    if options.file.is_some() {
        let _ = COMPLETE.set(options.complete(line.into_iter().skip(1).collect()));
    }
    Ok((definition, options))
}

/// The same for another command line, whose first word is the program's name.
///
/// # Errors
/// As [`definition`].
pub fn definition_of(definition: Command, line: &[OsString]) -> Result<(Command, KeptOptions)> {
    // Nearly always there is no file, and the line need not be read by all definitions twice.
    let may_name_one = line.iter().any(|word| {
        let word = word.as_encoded_bytes();
        word.starts_with(b"--o") || word.starts_with(b"--p")
    });
    if !may_name_one && std::env::current_dir().is_ok_and(|folder| matches!(find(&folder), Ok(None))) {
        return Ok((definition, KeptOptions::default()));
    }
    let Ok(typed) = definition.clone().ignore_errors(true).try_get_matches_from(line) else {
        // Help, or the version.
        return Ok((definition, KeptOptions::default()));
    };
    // They are written into files for other machines.
    let ignores = matches!(typed.subcommand_name(), Some("completions" | "man") | None);
    if ignores || typed.get_flag("no_options_file") {
        return Ok((definition, KeptOptions::default()));
    }
    let profile = typed.get_one::<String>("profile").cloned();
    let path = match typed.get_one::<PathBuf>("options_file") {
        Some(path) => Some(path.clone()),
        None => find(&std::env::current_dir().context("the current folder")?)?,
    };
    let Some(path) = path else {
        anyhow::ensure!(profile.is_none(), "--profile: there is no {} here or above", NAME);
        return Ok((definition, KeptOptions::default()));
    };
    let file = OptionsFile::read(&path)?;
    let command = words_of(&typed);
    let (definition, kept) = apply(definition, &typed, &file, profile.as_deref())?;
    Ok((definition, KeptOptions { file: Some(file), profile, kept, command }))
}

/// The words of the command that was typed, in full.
fn words_of(typed: &ArgMatches) -> Vec<String> {
    let mut words = Vec::new();
    let mut matches = typed;
    while let Some((name, inner)) = matches.subcommand() {
        words.push(name.to_owned());
        matches = inner;
    }
    words
}

impl KeptOptions {
    /// A command line with the options that hold.
    fn complete(&self, typed: Vec<OsString>) -> Vec<OsString> {
        let mut options = Vec::new();
        for Kept { entry, .. } in self.kept.iter().filter(|kept| kept.overridden.is_none()) {
            let option = &entry.option;
            match (entry.is_switch, &entry.values[..]) {
                (true, [on]) if on == "true" => options.push(OsString::from(format!("--{option}"))),
                (true, _) => {}
                (false, values) => {
                    options.extend(values.iter().map(|value| OsString::from(format!("--{option}={value}"))));
                }
            }
        }
        let at = self.after_command(&typed);
        let mut words = typed;
        words.splice(at..at, options);
        words
    }

    /// The place after the words of the command. They may be abbreviated, and options of any command may be among them.
    fn after_command(&self, typed: &[OsString]) -> usize {
        let mut at = 0;
        for name in &self.command {
            while let Some(word) = typed.get(at) {
                let word = word.to_string_lossy();
                let takes_next = ["--options-file", "--profile", "--color"].contains(&&*word);
                at += if takes_next { 2 } else { 1 };
                if !word.is_empty() && name.starts_with(&*word) {
                    break;
                }
            }
        }
        at.min(typed.len())
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_go_after_the_command() {
        let text = "[record.probe]\nlimit = 3\nnames = ['a', 'b']\nfast = true\nslow = false\n";
        let file = OptionsFile::parse(text, Path::new(NAME)).unwrap();
        let kept = file.entries.iter().map(|entry| Kept { entry: entry.clone(), overridden: None }).collect();
        let command = vec!["record".to_owned(), "probe".to_owned()];
        let options = KeptOptions { file: Some(file), profile: None, kept, command };
        let complete = |line: &str| {
            let words = options.complete(line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect::<Vec<_>>().join(" ")
        };
        let expected = "--fast --limit=3 --names=a --names=b";
        assert_eq!(complete("record probe f -- cmd"), format!("record probe {expected} f -- cmd"));
        assert_eq!(complete("--profile rec -q rec pro f"), format!("--profile rec -q rec pro {expected} f"));
    }
}
