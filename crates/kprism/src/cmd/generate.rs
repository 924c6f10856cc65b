// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism completions` and `kprism man`: made from the same definitions that parse the command line.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::exit::Outcome;

/// Options of `kprism completions`.
#[derive(Debug, clap::Args)]
pub struct CompletionsArgs {
    /// Shell to write the completions for
    pub shell: clap_complete::Shell,
}

/// Options of `kprism man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Write the pages of all commands into this folder, instead of the main page to standard output
    pub folder: Option<PathBuf>,
}

/// Prints the completion script.
pub fn completions(args: &CompletionsArgs, out: &mut dyn Write) -> Result<Outcome> {
    // The generator panics when its writer fails (a closed pipe), so it gets a buffer.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Cli::command(), "kprism", &mut script);
    out.write_all(&script)?;
    Ok(Outcome::Done)
}

/// Prints or writes man pages.
pub fn man(args: &ManArgs, out: &mut dyn Write) -> Result<Outcome> {
    let command = crate::Cli::command();
    match &args.folder {
        Some(folder) => {
            std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
            clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())?;
        }
        None => clap_mangen::Man::new(command).render(out)?,
    }
    Ok(Outcome::Done)
}
