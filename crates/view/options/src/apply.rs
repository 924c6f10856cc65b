// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the file's options the defaults of a command.

use std::any::TypeId;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};

use crate::file::{Entry, OptionsFile};

/// Table of the options of a guest; and the heading of these options in help texts.
const GUEST: &str = "guest";
const GUEST_HEADING: &str = "Guest";

/// Options whose values are texts that begin with a path.
const PATHS_TOO: [&str; 3] = ["share", "module", "with-module"];

/// An option of the file, and whether it holds for the command that was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// The option in its file.
    pub entry: Entry,
    /// Why it does not hold; `None` if it does.
    pub overridden: Option<String>,
}

/// Lays the file's options, and over them those of the profile, under what was typed.
///
/// # Errors
/// The file names an unknown command, option or profile, a value that no switch has, or two options that exclude each other.
pub fn apply(
    definition: Command,
    typed: &ArgMatches,
    file: &OptionsFile,
    profile: Option<&str>,
) -> Result<(Command, Vec<Kept>)> {
    // clap finds arguments of a built definition by their places: it can be asked, but not changed.
    let mut built = definition.clone();
    built.build();
    if let Some(name) = profile
        && !file.profiles().contains(&name)
    {
        let known = file.profiles().join(", ");
        let known = if known.is_empty() { "none".to_owned() } else { known };
        bail!("{}: there is no profile {name}; it has: {known}", file.path.display());
    }
    for entry in &file.entries {
        check(&built, entry, &file.path)?;
    }
    let mut words = Vec::new();
    let (mut command, mut matches) = (&built, typed);
    while let Some((name, inner)) = matches.subcommand() {
        let Some(next) = command.find_subcommand(name) else { break };
        words.push(next.get_name().to_owned());
        (command, matches) = (next, inner);
    }

    // Later ones win: a command's own over those of any guest, the profile's over both.
    let rank = |entry: &Entry| (entry.profile.is_some(), entry.section[0] != GUEST);
    let holds = |entry: &&Entry| {
        (entry.profile.is_none() || entry.profile.as_deref() == profile)
            && (entry.section == words || entry.section[0] == GUEST)
    };
    let mut entries: Vec<&Entry> = file.entries.iter().filter(holds).collect();
    entries.sort_by_key(|entry| rank(entry));
    let mut kept: Vec<Kept> = Vec::new();
    for entry in entries {
        // A command without a guest does not have its options.
        let Some(arg) = find(command, entry) else { continue };
        let overridden = is_typed(matches, arg).then(|| "it was typed".to_owned()).or_else(|| {
            let excludes = |other: &&&Arg| is_typed(matches, other);
            let others = excluded(command, arg);
            let other = others.iter().find(excludes)?;
            Some(format!("--{} was typed", other.get_long().unwrap_or_default()))
        });
        kept.retain(|other| other.entry.option != entry.option);
        kept.push(Kept { entry: entry.clone(), overridden });
    }
    let hold = || kept.iter().filter(|kept| kept.overridden.is_none());
    for one in hold() {
        let excluded: Vec<&str> = find(command, &one.entry)
            .map(|arg| excluded(command, arg))
            .unwrap_or_default()
            .iter()
            .filter_map(|arg| arg.get_long())
            .collect();
        if let Some(other) = hold().find(|other| excluded.contains(&other.entry.option.as_str())) {
            bail!(
                "{}:{}: `{}` cannot be used with `{}` of line {}",
                file.path.display(),
                one.entry.line,
                one.entry.option,
                other.entry.option,
                other.entry.line
            );
        }
    }
    let mut defaults = Vec::new();
    for one in hold() {
        let Some(arg) = find(command, &one.entry) else { continue };
        if one.entry.is_switch && one.entry.values == ["false"] {
            continue;
        }
        let base = file.path.parent().unwrap_or(Path::new(""));
        let values = one.entry.values.iter().map(|value| value_of(arg, value, base));
        defaults.push((arg.get_id().clone(), values.collect::<Vec<_>>()));
    }
    Ok((with_defaults(definition, &words, &defaults), kept))
}

fn with_defaults(command: Command, words: &[String], defaults: &[(clap::Id, Vec<String>)]) -> Command {
    match words.split_first() {
        Some((first, rest)) => command.mut_subcommand(first, |inner| with_defaults(inner, rest, defaults)),
        None => defaults.iter().fold(command, |command, (id, values)| {
            command.mut_arg(id, |arg| arg.default_values(values.clone()))
        }),
    }
}

fn is_typed(matches: &ArgMatches, arg: &Arg) -> bool {
    // A command that failed to parse may not know all of its arguments.
    let id = arg.get_id().as_str();
    matches.try_contains_id(id).is_ok() && matches.value_source(id) == Some(ValueSource::CommandLine)
}

/// The options that exclude `arg`, whichever of them says so.
fn excluded<'a>(command: &'a Command, arg: &Arg) -> Vec<&'a Arg> {
    let says = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|found| found.get_id() == other.get_id())
    };
    command
        .get_arguments()
        .filter(|other| other.get_id() != arg.get_id() && (says(arg, other) || says(other, arg)))
        .collect()
}

/// The option of a command that an entry names.
fn find<'a>(command: &'a Command, entry: &Entry) -> Option<&'a Arg> {
    let is_guests = entry.section[0] == GUEST;
    command.get_arguments().find(|arg| {
        arg.get_long() == Some(entry.option.as_str())
            && !arg.is_global_set()
            && (!is_guests || arg.get_help_heading() == Some(GUEST_HEADING))
    })
}

/// Refuses an entry that no command has.
fn check(definition: &Command, entry: &Entry, path: &Path) -> Result<()> {
    let place = format!("{}:{}", path.display(), entry.line);
    let arg = if entry.section == [GUEST] {
        every_command(definition).into_iter().find_map(|command| find(command, entry))
    } else {
        let mut command = definition;
        for word in &entry.section {
            // Abbreviations are for typing.
            let next = command.get_subcommands().find(|next| next.get_name() == word);
            command = next.ok_or_else(|| {
                anyhow::anyhow!("{place}: [{}] is no command, and not [guest]", entry.section.join("."))
            })?;
        }
        if command.has_subcommands() && command.is_subcommand_required_set() {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            bail!("{place}: [{}] has commands of its own: {}", entry.section.join("."), names.join(", "));
        }
        find(command, entry)
    };
    let Some(arg) = arg else {
        bail!("{place}: `{}` is no option of [{}]", entry.option, entry.section.join("."));
    };
    let takes_value = arg.get_action().takes_values();
    if takes_value && entry.is_switch {
        bail!("{place}: `{}` takes a value, not true or false", entry.option);
    }
    if !takes_value && !entry.is_switch {
        bail!("{place}: `{}` is a switch: true or false is expected", entry.option);
    }
    let many = matches!(arg.get_action(), clap::ArgAction::Append);
    if entry.values.len() != 1 && !many {
        bail!("{place}: `{}` takes one value", entry.option);
    }
    Ok(())
}

fn every_command(definition: &Command) -> Vec<&Command> {
    let mut all = vec![definition];
    let mut at = 0;
    while at < all.len() {
        all.extend(all[at].get_subcommands());
        at += 1;
    }
    all
}

/// A path of the file is relative to the file's folder.
fn value_of(arg: &Arg, value: &str, base: &Path) -> String {
    let long = arg.get_long().unwrap_or_default();
    let is_path = arg.get_value_parser().type_id() == TypeId::of::<PathBuf>() || PATHS_TOO.contains(&long);
    // A module without a slash or suffix is a name, as is a kernel's package; `-` is standard input.
    let is_name = (long.contains("module") && !value.contains('/') && !value.ends_with(".ko"))
        || (long == "kernel" && value.starts_with("linux-image-"))
        || value == "-";
    if !is_path || is_name || value.starts_with('/') || base.as_os_str().is_empty() {
        return value.to_owned();
    }
    base.join(value).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition() -> Command {
        let guest = |command: Command| {
            command
                .arg(Arg::new("smp").long("smp").default_value("1").help_heading(GUEST_HEADING))
                .arg(
                    Arg::new("kernel")
                        .long("kernel")
                        .value_parser(clap::value_parser!(PathBuf))
                        .help_heading(GUEST_HEADING),
                )
                .arg(
                    Arg::new("tree")
                        .long("tree")
                        .conflicts_with("kernel")
                        .value_parser(clap::value_parser!(PathBuf))
                        .help_heading(GUEST_HEADING),
                )
                .arg(Arg::new("fast").long("fast").action(clap::ArgAction::SetTrue))
                .arg(Arg::new("share").long("share").action(clap::ArgAction::Append))
        };
        Command::new("kprism")
            .subcommand(Command::new("lab").subcommand_required(true).subcommand(guest(Command::new("run"))))
            .subcommand(Command::new("report").arg(Arg::new("limit").long("limit")))
    }

    fn given(text: &str, profile: Option<&str>, line: &str) -> Result<(ArgMatches, Vec<Kept>)> {
        let file = OptionsFile::parse(text, Path::new("/project/kprism.toml"))?;
        let words = || line.split(' ');
        let typed = definition().ignore_errors(true).try_get_matches_from(words())?;
        let (definition, kept) = apply(definition(), &typed, &file, profile)?;
        Ok((definition.try_get_matches_from(words())?, kept))
    }

    fn run(text: &str, profile: Option<&str>, line: &str) -> (ArgMatches, Vec<Kept>) {
        let (matches, kept) = given(text, profile, line).unwrap();
        let (_, lab) = matches.subcommand().unwrap();
        (lab.subcommand().unwrap().1.clone(), kept)
    }

    const FILE: &str = "[guest]\nsmp = 2\ntree = 'linux'\n[lab.run]\nfast = true\nshare = ['data:/d', '/x']\n\
                        [profile.ci.guest]\nsmp = 4\n[profile.ci.lab.run]\nfast = false\n";

    #[test]
    fn the_file_holds_where_nothing_is_typed() {
        let (matches, _) = run(FILE, None, "kprism lab run");
        assert_eq!(matches.get_one::<String>("smp").unwrap(), "2");
        assert_eq!(matches.get_one::<PathBuf>("tree").unwrap(), Path::new("/project/linux"));
        assert!(matches.get_flag("fast"));
        let shares: Vec<_> = matches.get_many::<String>("share").unwrap().cloned().collect();
        assert_eq!(shares, ["/project/data:/d", "/x"]);

        let (matches, _) = run(FILE, None, "kprism lab run --smp 3 --share /y");
        assert_eq!(matches.get_one::<String>("smp").unwrap(), "3");
        assert_eq!(matches.get_many::<String>("share").unwrap().count(), 1);

        let (matches, _) = run(FILE, Some("ci"), "kprism lab run");
        assert_eq!(matches.get_one::<String>("smp").unwrap(), "4");
        assert!(!matches.get_flag("fast"));
    }

    #[test]
    fn a_typed_option_overrides_those_that_it_excludes() {
        let (matches, kept) = run(FILE, None, "kprism lab run --kernel vmlinuz");
        assert_eq!(matches.get_one::<PathBuf>("tree"), None);
        let tree = kept.iter().find(|kept| kept.entry.option == "tree").unwrap();
        assert_eq!(tree.overridden.as_deref(), Some("--kernel was typed"));
        let (matches, _) = run("[guest]\nkernel = 'linux-image-6.1'", None, "kprism lab run");
        assert_eq!(matches.get_one::<PathBuf>("kernel").unwrap(), Path::new("linux-image-6.1"));
    }

    #[test]
    fn what_no_command_takes_is_refused() {
        let refused = |text: &str, profile: Option<&str>| {
            format!("{:#}", given(text, profile, "kprism report").unwrap_err())
        };
        for (text, expected) in [
            ("[guest]\nspm = 2", "kprism.toml:2: `spm` is no option of [guest]"),
            ("[guest]\nfast = true", "`fast` is no option of [guest]"),
            ("[lab.walk]\nsmp = 2", "[lab.walk] is no command"),
            ("[lab]\nsmp = 2", "has commands of its own: run"),
            ("[lab.run]\nsmp = true", "takes a value"),
            ("[lab.run]\nfast = 1", "is a switch"),
            ("[lab.run]\nsmp = [1, 2]", "takes one value"),
            ("[profile.x.guest]\nspm = 1", "is no option"),
        ] {
            assert!(refused(text, None).contains(expected), "{text}: {}", refused(text, None));
        }
        assert!(refused(FILE, Some("cj")).contains("no profile cj; it has: ci"));
        let both = given("[guest]\nkernel = 'a'\ntree = 'b'", None, "kprism lab run").unwrap_err();
        assert!(both.to_string().contains("cannot be used with"), "{both}");
        assert!(given(FILE, None, "kprism report").is_ok(), "a command without a guest");
    }
}
