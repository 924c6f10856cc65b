// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options that were typed, so that a command can refuse those that it would not honour.
//!
//! In: what clap parsed. Out: [`Given`], which each view of a command asks with the options it honours. One command may have
//! several views (`record tlb --method`, `report cover --compare`); an option of another view must not be taken and ignored.

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

use crate::cmd::guest_args::{GUEST, GUEST_PLACE};

/// Options that every command honours.
const ALWAYS: [&str; 6] = ["verbose", "quiet", "color", "strict", "input", "on"];

/// Options that one view alone honours, with that view.
const HOMES: [(&[&str], &str); 10] = [
    (&["min_percent"], "`report tree`"),
    (&["depth"], "`report tree` and `script calls`"),
    (&["event", "period"], "--method perf"),
    (&["ptat", "pmd", "room"], "--method ptat"),
    (&["geometry"], "--method model and user"),
    (&GUEST, "a guest"),
    (&GUEST_PLACE, "a guest"),
    (
        &["each", "compare", "source_dir", "source_prefix", "build_dir", "since_boot", "by_flow", "merge"],
        "coverage",
    ),
    (&["under", "patch", "cover_lines"], "`diff` of coverage"),
    (&["relative"], "`export -o FOLDER.gcda`"),
];

/// The options and arguments of a subcommand that stand on the command line: their ids, and how they are typed.
#[derive(Debug, Clone, Default)]
pub struct Given {
    typed: Vec<(String, String)>,
    /// Options typed before a subcommand that has its own, and the subcommand.
    before: Option<(String, String)>,
}

impl Given {
    /// Options typed for the innermost subcommand.
    pub fn of(mut command: &Command, mut matches: &ArgMatches) -> Self {
        let is_typed = |matches: &ArgMatches, arg: &clap::Arg| {
            matches.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine)
        };
        let mut before = None;
        while let Some((name, inner)) = matches.subcommand() {
            let Some(next) = command.find_subcommand(name) else { break };
            let own = command.get_arguments().find(|arg| !arg.is_global_set() && is_typed(matches, arg));
            if let Some(long) = own.and_then(clap::Arg::get_long) {
                before = Some((format!("--{long}"), name.to_owned()));
            }
            (command, matches) = (next, inner);
        }
        let given = command.get_arguments().filter(|arg| is_typed(matches, arg));
        let shown = |arg: &clap::Arg| match arg.get_long() {
            Some(long) => format!("--{long}"),
            None => arg
                .get_value_names()
                .and_then(|names| names.first())
                .map_or_else(String::new, |n| n.to_string()),
        };
        let typed = given.map(|arg| (arg.get_id().to_string(), shown(arg))).collect();
        Self { typed, before }
    }

    /// Refuses an option that stands before a subcommand, where it would be taken for the outer command and ignored.
    ///
    /// # Errors
    /// Names it.
    pub fn in_place(&self) -> Result<()> {
        match &self.before {
            Some((option, subcommand)) => {
                bail!(
                    "{option} has no effect before `{subcommand}`: write it after `{subcommand}`, if it belongs there"
                )
            }
            None => Ok(()),
        }
    }

    /// Refuses what is not in `honoured`: ids of options, one or several in a text, with blanks between them.
    ///
    /// # Errors
    /// Names the first option that `view` would ignore.
    pub fn only(&self, view: &str, honoured: &[&str]) -> Result<()> {
        let known = |id: &str| {
            ALWAYS.contains(&id) || honoured.iter().any(|ids| ids.split(' ').any(|honoured| honoured == id))
        };
        match self.typed.iter().find(|(id, _)| !known(id)) {
            Some((id, shown)) => {
                let home = HOMES.iter().find(|(ids, _)| ids.contains(&id.as_str()));
                let home = home.map(|(_, home)| format!("; it is for {home}")).unwrap_or_default();
                bail!("{shown} does not go with {view}: it would change nothing there{home}")
            }
            None => Ok(()),
        }
    }

    /// The first of `ids` that was typed, as it was typed.
    pub fn first(&self, ids: &[&str]) -> Option<&str> {
        let is_one = |(id, _): &&(String, String)| ids.contains(&id.as_str());
        self.typed.iter().find(is_one).map(|(_, shown)| shown.as_str())
    }

    /// Refuses the first of `ids` that was typed: this input has nothing that it could change.
    ///
    /// # Errors
    /// Names it.
    pub fn none_of(&self, input: &str, ids: &[&str]) -> Result<()> {
        match self.first(ids) {
            Some(shown) => bail!("{shown} does not go with {input}: it would change nothing there"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn what_is_typed_and_not_honoured_is_refused() {
        let command = Command::new("kprism").subcommand(
            Command::new("report")
                .arg(Arg::new("subject").value_name("SUBJECT"))
                .arg(Arg::new("rows").long("limit").default_value("40"))
                .arg(Arg::new("pids").long("task")),
        );
        let given = |line: &str| {
            let matches = command.clone().try_get_matches_from(line.split(' ')).unwrap();
            Given::of(&command, &matches)
        };
        assert!(
            given("kprism report tlb").only("`report tlb`", &["subject"]).is_ok(),
            "a default is not typed"
        );
        let given = given("kprism report tlb --task 1");
        assert!(given.only("`report tlb`", &["subject", "rows pids"]).is_ok());
        assert!(given.in_place().is_ok());
        let error = given.only("`report tlb`", &["subject rows"]).unwrap_err();
        assert_eq!(error.to_string(), "--task does not go with `report tlb`: it would change nothing there");
    }

    #[test]
    fn options_before_a_subcommand_are_refused() {
        let command = Command::new("kprism").subcommand(
            Command::new("report")
                .arg(Arg::new("rows").long("limit"))
                .arg(Arg::new("input").long("input").global(true))
                .subcommand(Command::new("tlb").arg(Arg::new("rows").long("limit"))),
        );
        let given = |line: &str| {
            let matches = command.clone().try_get_matches_from(line.split(' ')).unwrap();
            Given::of(&command, &matches)
        };
        assert!(given("kprism report --input x tlb --limit 1").in_place().is_ok());
        let error = given("kprism report --limit 1 tlb").in_place().unwrap_err();
        assert_eq!(
            error.to_string(),
            "--limit has no effect before `tlb`: write it after `tlb`, if it belongs there"
        );
    }
}
