// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values of the recording machine that a guest takes over (`--like-host`).
//!
//! Input: texts of this machine: the kernel's files of transparent huge pages, `/proc/self/limits`, `/proc/self/status`, the environment.
//! Output: [`LikeHost`], shell lines that set its values in the guest before the command, and [`TakenOver`]: what the guest then had
//! otherwise. The guest's own values are the same on every machine; these are for a command that is to run as it does here.
//!
//! Limits are set on the guest's agent, from which the command inherits them, so that no instruction is added to the command.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::{fmt, fs};

use serde::{Deserialize, Serialize};

/// The kernel's files of transparent huge pages (Documentation/admin-guide/mm/transhuge.rst).
const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// The files whose values are taken over. Not every kernel has the last two.
const HUGE_PAGES: [&str; 3] = ["enabled", "defrag", "shmem_enabled"];

/// A limit of a process.
struct Limit {
    /// Its line in `/proc/PID/limits` begins with this (fs/proc/base.c).
    title: &'static str,
    /// Its option of prlimit(1).
    name: &'static str,
    /// The guest's agent can have it, too.
    suits_agent: bool,
}

const fn limit(title: &'static str, name: &'static str, suits_agent: bool) -> Limit {
    Limit { title, name, suits_agent }
}

/// All limits of Linux.
static LIMITS: [Limit; 16] = [
    limit("Max cpu time", "cpu", false),
    limit("Max file size", "fsize", false),
    limit("Max data size", "data", false),
    limit("Max stack size", "stack", true),
    limit("Max core file size", "core", true),
    limit("Max resident set", "rss", true),
    limit("Max processes", "nproc", true),
    limit("Max open files", "nofile", true),
    limit("Max locked memory", "memlock", true),
    limit("Max address space", "as", false),
    limit("Max file locks", "locks", true),
    limit("Max pending signals", "sigpending", true),
    limit("Max msgqueue size", "msgqueue", true),
    limit("Max nice priority", "nice", true),
    limit("Max realtime priority", "rtprio", true),
    limit("Max realtime timeout", "rttime", true),
];

/// The smallest soft limits with which the guest's agent works: of its stack in bytes, and of its open files.
const LEAST: [(&str, u64); 2] = [("stack", 1 << 20), ("nofile", 64)];

/// A limit that is none, as the kernel and prlimit(1) write it.
const UNLIMITED: &str = "unlimited";

/// File of the guest with its values before the command.
const TOLD: &str = "/run/kprism-like-host";

/// Shell line, for after the command, that prints the guest's values.
pub(crate) const TELL: &str = "cat /run/kprism-like-host; rm -f /run/kprism-like-host";

/// Values of the machine that a guest takes over.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LikeHost {
    /// Settings of transparent huge pages, by the names of the kernel's files: `enabled`, `defrag`, `shmem_enabled`.
    pub huge_pages: BTreeMap<String, String>,
    /// Resource limits, by the names of prlimit(1)'s options: `SOFT:HARD`, each a number or `unlimited`.
    pub limits: BTreeMap<String, String>,
    /// Variables of the environment: `LANG`, empty if it is not set, and those of `LC_*` and `TZ` that are set.
    pub variables: BTreeMap<String, String>,
    /// Values of the machine that a guest cannot take over, with which its own are compared.
    #[serde(skip)]
    others: BTreeMap<String, String>,
    /// Values of the machine that are not known.
    #[serde(skip)]
    unknown: Vec<NotTaken>,
}

/// A value that the guest did not take over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotTaken {
    /// Name of the value.
    pub name: String,
    /// The guest's value and the machine's, or the reason.
    pub why: String,
}

/// `NAME (WHY)`.
impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.why)
    }
}

impl NotTaken {
    /// Name of the mode of transparent huge pages.
    pub const HUGE_PAGES: &str = "transparent_hugepage/enabled";

    fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into() }
    }
}

/// Result of taking values over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakenOver {
    /// Nobody asked for it.
    NotAsked,
    /// The guest did not tell, because it did not come to its end.
    NotTold,
    /// All values, but for these.
    AllBut(Vec<NotTaken>),
}

impl TakenOver {
    /// `told`: the output of [`TELL`] in the guest.
    pub(crate) fn of(asked: Option<&LikeHost>, told: Option<&str>) -> Self {
        match (asked, told) {
            (None, _) => Self::NotAsked,
            (Some(_), None) => Self::NotTold,
            (Some(asked), Some(told)) => Self::AllBut(asked.differences(told)),
        }
    }
}

/// The texts that values are read from; an error is the reason why one cannot be read.
struct Texts {
    /// Of the files [`HUGE_PAGES`]; `None` for one that the kernel does not have and need not have.
    huge_pages: [Option<Result<String, String>>; 3],
    /// `/proc/self/limits`.
    limits: Result<String, String>,
    /// `/proc/self/status`.
    status: Result<String, String>,
    /// The environment.
    variables: Vec<(OsString, OsString)>,
}

impl LikeHost {
    /// The values of this machine, and of the shell that started this process. Those that cannot be read are told by the run.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let huge_pages = HUGE_PAGES.map(|name| match fs::read_to_string(format!("{FOLDER}/{name}")) {
            Ok(text) => Some(Ok(text)),
            Err(error) if error.kind() == ErrorKind::NotFound && name != "enabled" => None,
            Err(error) => Some(Err(error.to_string())),
        });
        let text = |path: &str| fs::read_to_string(path).map_err(|error| format!("{path}: {error}"));
        Self::read(Texts {
            huge_pages,
            limits: text("/proc/self/limits"),
            status: text("/proc/self/status"),
            variables: std::env::vars_os().collect(),
        })
    }

    /// The values as a manifest has them.
    ///
    /// # Errors
    /// They are not those of [`LikeHost`]: the text names the place.
    pub fn recorded(value: &serde_json::Value) -> Result<Self, String> {
        let like = Self::deserialize(value).map_err(|error| error.to_string())?;
        // They come into shell lines, and the run from anywhere.
        for (name, value) in &like.huge_pages {
            if !HUGE_PAGES.contains(&name.as_str()) || !is_mode(value) {
                return Err(format!("huge_pages: {name:?} cannot be {value:?}"));
            }
        }
        for (name, value) in &like.limits {
            let known = LIMITS.iter().find(|limit| limit.name == name);
            if !known.is_some_and(|limit| limit.suits_agent && suits_agent(name, value)) {
                return Err(format!("limits: {name:?} cannot be {value:?}"));
            }
        }
        match like.variables.keys().find(|name| !is_variable(name)) {
            Some(name) => Err(format!("variables: {name:?} is neither LANG, nor LC_*, nor TZ")),
            None => Ok(like),
        }
    }

    fn read(texts: Texts) -> Self {
        let mut like = Self::default();
        for (name, text) in HUGE_PAGES.into_iter().zip(texts.huge_pages) {
            let Some(text) = text else { continue };
            let mode = text.and_then(|text| {
                let mode = bracketed(&text).filter(|mode| is_mode(mode)).map(str::to_owned);
                mode.ok_or_else(|| {
                    format!("{FOLDER}/{name}: expected a value in brackets: {:?}", text.trim())
                })
            });
            match mode {
                Ok(mode) => _ = like.huge_pages.insert(name.to_owned(), mode),
                Err(why) => {
                    like.unknown.push(NotTaken::new(format!("transparent_hugepage/{name}"), why));
                }
            }
        }
        match texts.limits {
            Ok(text) => {
                let found = limits_of(&text);
                for Limit { name, suits_agent: suits, .. } in &LIMITS {
                    match found.get(name) {
                        Some(value) if *suits && suits_agent(name, value) => {
                            like.limits.insert((*name).to_owned(), value.clone());
                        }
                        Some(value) => _ = like.others.insert((*name).to_owned(), value.clone()),
                        None => {
                            let why = "not in this machine's /proc/self/limits";
                            like.unknown.push(NotTaken::new(format!("limit {name}"), why));
                        }
                    }
                }
            }
            Err(why) => like.unknown.push(NotTaken::new("limits", why)),
        }
        let umask = texts.status.and_then(|text| {
            let umask = text.lines().find_map(|line| line.strip_prefix("Umask:")).map(str::trim);
            umask.map(str::to_owned).ok_or_else(|| "not in this machine's /proc/self/status".to_owned())
        });
        match umask {
            Ok(umask) => _ = like.others.insert("umask".to_owned(), umask),
            Err(why) => like.unknown.push(NotTaken::new("umask", why)),
        }
        // Without it the machine's programs have no language, and the guest has one of its own.
        like.variables.insert("LANG".to_owned(), String::new());
        for (name, value) in texts.variables {
            let Some(name) = name.to_str().filter(|name| is_variable(name)) else { continue };
            match value.into_string() {
                Ok(value) => _ = like.variables.insert(name.to_owned(), value),
                Err(_) => {
                    // Not the machine's value, and not another.
                    like.variables.remove(name);
                    like.unknown.push(NotTaken::new(name, "its value here is not UTF-8"));
                }
            }
        }
        like
    }

    /// Leaves out variables that the user gave the command.
    #[must_use]
    pub fn without_variables(mut self, given: &[(String, String)]) -> Self {
        self.variables.retain(|name, _| given.iter().all(|(known, _)| known != name));
        self
    }

    /// Shell commands that set the values in the guest, and write down what the guest has then. They fail in silence: [`TELL`] tells.
    pub(crate) fn line(&self) -> String {
        let mut line = "{ :\n".to_owned();
        for (name, value) in &self.huge_pages {
            line += &format!("echo {value} >{FOLDER}/{name}\n");
        }
        for (name, value) in &self.limits {
            line += &format!("prlimit --pid $PPID --{name}={value}\n");
        }
        line += "} >/dev/null 2>&1\n{ :\n";
        for name in HUGE_PAGES {
            line += &format!("echo @{name}; cat {FOLDER}/{name}\n");
        }
        line += "echo @umask; umask\necho @limits; cat /proc/$PPID/limits\n";
        if self.locales().next().is_some() {
            line += "echo @locales; locale -a\n";
        }
        if self.zone().is_some() {
            line +=
                "echo @zone; zone=${TZ#:}; case $zone in /*) ;; *) zone=/usr/share/zoneinfo/$zone;; esac\n";
            line += "[ ! -e \"$zone\" ] || echo there\n";
        }
        line + &format!("}} 2>/dev/null >{TOLD}\n:")
    }

    /// Variables with a locale that not every root file system has.
    fn locales(&self) -> impl Iterator<Item = (&str, &str)> {
        let everywhere = ["", "C", "POSIX", "C.utf8"];
        let all = self.variables.iter().filter(|(name, _)| *name != "TZ");
        all.map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(move |(_, value)| !everywhere.contains(&plain_locale(value).as_str()))
    }

    /// The time zone, if it names a file: POSIX's form, such as `CET-1CEST`, has a number and no slash (tzset(3)).
    fn zone(&self) -> Option<&str> {
        let zone = self.variables.get("TZ")?.trim_start_matches(':');
        let is_form = !zone.contains('/') && zone.contains(|letter: char| letter.is_ascii_digit());
        (!is_form && !["", "UTC", "GMT"].contains(&zone)).then_some(zone)
    }

    /// Values of the machine that the guest, which told this of itself, did not have when the command began.
    fn differences(&self, told: &str) -> Vec<NotTaken> {
        let told = sections(told);
        let section = |name: &str| told.get(name).map_or("", String::as_str);
        let mut all = self.unknown.clone();
        let mut compare = |name: String, guest: Option<&str>, here: &str| {
            if guest != Some(here) {
                let guest = guest.unwrap_or("not known");
                all.push(NotTaken::new(name, format!("{guest} in the guest, {here} here")));
            }
        };
        for (name, value) in &self.huge_pages {
            compare(format!("transparent_hugepage/{name}"), bracketed(section(name)), value);
        }
        let limits = limits_of(section("limits"));
        for (name, value) in self.limits.iter().chain(&self.others).filter(|(name, _)| *name != "umask") {
            compare(format!("limit {name}"), limits.get(name.as_str()).map(String::as_str), value);
        }
        if let Some(umask) = self.others.get("umask") {
            compare("umask".to_owned(), Some(section("umask").trim()).filter(|text| !text.is_empty()), umask);
        }
        let locales: Vec<String> = section("locales").lines().map(plain_locale).collect();
        for (name, value) in self.locales().filter(|(_, value)| !locales.contains(&plain_locale(value))) {
            let why = match locales.is_empty() {
                true => "not known whether the guest has this locale: it lists none",
                false => "the guest has no such locale",
            };
            all.push(NotTaken::new(format!("{name}={value}"), why));
        }
        if let Some(zone) = self.zone().filter(|_| section("zone").trim() != "there") {
            all.push(NotTaken::new(
                format!("TZ={zone}"),
                "the guest has no such file: it needs the package tzdata",
            ));
        }
        all
    }
}

/// Returns true for the variables that are taken over.
fn is_variable(name: &str) -> bool {
    name == "LANG" || name == "TZ" || name.starts_with("LC_")
}

/// Returns true if a value of the kernel's files of huge pages can look so.
fn is_mode(value: &str) -> bool {
    let fits = |letter: u8| letter.is_ascii_lowercase() || matches!(letter, b'_' | b'+');
    !value.is_empty() && value.bytes().all(fits)
}

/// The value that holds, of a file that lists all: `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

/// Limits in the text of `/proc/PID/limits`, as `SOFT:HARD` by name. Lines that are not understood are left out.
fn limits_of(text: &str) -> BTreeMap<&'static str, String> {
    let mut limits = BTreeMap::new();
    for line in text.lines() {
        let known = LIMITS.iter().find_map(|limit| Some((limit.name, line.strip_prefix(limit.title)?)));
        let Some((name, rest)) = known else { continue };
        let mut words = rest.split_whitespace();
        if let (Some(soft), Some(hard)) = (words.next(), words.next())
            && number(soft).is_some()
            && number(hard).is_some()
        {
            limits.insert(name, format!("{soft}:{hard}"));
        }
    }
    limits
}

/// A limit; [`u64::MAX`] if it is none.
fn number(text: &str) -> Option<u64> {
    // A sign is no part of it.
    let is_number = || text.bytes().all(|letter| letter.is_ascii_digit());
    if text == UNLIMITED { Some(u64::MAX) } else { text.parse().ok().filter(|_| is_number()) }
}

/// Returns true if this is a limit with which the guest's agent works.
fn suits_agent(name: &str, value: &str) -> bool {
    let Some((soft, hard)) = value.split_once(':') else { return false };
    let least = LEAST.iter().find(|(known, _)| *known == name).map_or(0, |(_, least)| *least);
    number(hard).is_some() && number(soft).is_some_and(|soft| soft >= least)
}

/// A locale's name as `locale -a` lists it: `de_DE.UTF-8` is `de_DE.utf8`.
fn plain_locale(name: &str) -> String {
    let (name, modifier) = match name.split_once('@') {
        Some((name, modifier)) => (name, format!("@{modifier}")),
        None => (name, String::new()),
    };
    match name.split_once('.') {
        Some((language, charset)) => {
            format!("{language}.{}{modifier}", charset.to_ascii_lowercase().replace('-', ""))
        }
        None => format!("{name}{modifier}"),
    }
}

/// The texts between lines `@NAME`.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut sections: BTreeMap<&str, String> = BTreeMap::new();
    let mut now = "";
    for line in text.lines() {
        match line.strip_prefix('@') {
            Some(name) => now = name,
            None => *sections.entry(now).or_default() += &format!("{line}\n"),
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS_HERE: &str = "\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              60                   unlimited            seconds
Max stack size            8388608              unlimited            bytes
Max open files            1024                 524288               files
Max nice priority         0                    0
";

    fn here(variables: &[(&str, &str)]) -> LikeHost {
        let files = ["always [madvise] never\n", "always defer [defer+madvise] madvise never\n"];
        LikeHost::read(Texts {
            huge_pages: [Some(Ok(files[0].into())), Some(Ok(files[1].into())), None],
            limits: Ok(LIMITS_HERE.into()),
            status: Ok("Name:\tsh\nUmask:\t0077\nState:\tR\n".into()),
            variables: variables.iter().map(|&(name, value)| (name.into(), value.into())).collect(),
        })
    }

    /// The answer of a guest that has these limits and this umask.
    fn told(enabled: &str, limits: &str, umask: &str, more: &str) -> String {
        let defrag = "always defer [defer+madvise] madvise never";
        format!(
            "@enabled\n{enabled}\n@defrag\n{defrag}\n@shmem_enabled\n@umask\n{umask}\n@limits\n{limits}{more}"
        )
    }

    fn names(all: &[NotTaken]) -> Vec<&str> {
        // The text of the tests has four of the limits.
        all.iter().map(|one| one.name.as_str()).filter(|name| !UNLISTED.contains(name)).collect()
    }

    const UNLISTED: [&str; 12] = [
        "limit fsize",
        "limit data",
        "limit core",
        "limit rss",
        "limit nproc",
        "limit memlock",
        "limit as",
        "limit locks",
        "limit sigpending",
        "limit msgqueue",
        "limit rtprio",
        "limit rttime",
    ];

    #[test]
    fn values_are_read_from_the_machines_texts() {
        let like = here(&[("LC_TIME", "de_DE.UTF-8"), ("TZ", "Europe/Berlin"), ("HOME", "/root")]);
        assert_eq!(like.huge_pages["enabled"], "madvise");
        assert_eq!(like.huge_pages["defrag"], "defer+madvise");
        assert_eq!(like.huge_pages.get("shmem_enabled"), None, "this kernel has none");
        assert_eq!(like.limits["nofile"], "1024:524288");
        assert_eq!(like.limits["stack"], "8388608:unlimited");
        // It would end the agent.
        assert_eq!((like.limits.get("cpu"), like.others["cpu"].as_str()), (None, "60:unlimited"));
        let names: Vec<&str> = like.variables.keys().map(String::as_str).collect();
        assert_eq!(names, ["LANG", "LC_TIME", "TZ"]);
        assert_eq!(like.variables["LANG"], "", "it is not set here, and the guest has one of its own");
        assert_eq!(like.unknown.len(), UNLISTED.len());
        let given = [("TZ".to_owned(), "UTC".to_owned())];
        assert!(!like.without_variables(&given).variables.contains_key("TZ"));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let like = LikeHost::read(Texts {
            huge_pages: [Some(Ok("always madvise".into())), Some(Err("denied".into())), None],
            limits: Err("no /proc".into()),
            status: Ok(String::new()),
            variables: Vec::new(),
        });
        let names: Vec<&str> = like.unknown.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["transparent_hugepage/enabled", "transparent_hugepage/defrag", "limits", "umask"]);
    }

    #[test]
    fn a_limit_that_the_agent_could_not_live_with_is_only_compared() {
        assert!(suits_agent("stack", "unlimited:unlimited") && !suits_agent("stack", "65536:unlimited"));
        assert!(suits_agent("nofile", "64:64") && !suits_agent("nofile", "8:1024"));
        assert!(
            !suits_agent("core", "+1:2") && !suits_agent("core", "1;reboot:2") && !suits_agent("core", "1")
        );
    }

    #[test]
    fn what_a_guest_did_not_take_over_is_named() {
        let like = here(&[("LANG", "de_DE.UTF-8"), ("TZ", "Europe/Berlin")]);
        let there = "@locales\nC\nC.utf8\nde_DE.utf8\n@zone\nthere\n";
        let taken = told("always [madvise] never", LIMITS_HERE, "0077", there);
        assert_eq!(names(&like.differences(&taken)), [""; 0]);

        let limits = LIMITS_HERE.replace("1024 ", "4096 ");
        let other = told("[always] madvise never", &limits, "0022", "@locales\nC\n@zone\n");
        let all = like.differences(&other);
        let expected =
            [NotTaken::HUGE_PAGES, "limit nofile", "umask", "LANG=de_DE.UTF-8", "TZ=Europe/Berlin"];
        assert_eq!(names(&all), expected);
        let mode = all.iter().find(|one| one.name == NotTaken::HUGE_PAGES).unwrap();
        assert_eq!(mode.to_string(), "transparent_hugepage/enabled (always in the guest, madvise here)");

        // A guest that tells nothing, as one without cat(1).
        let all = like.differences("sh: 1: cat: not found\n");
        assert!(
            all.iter().any(|one| one.to_string() == "umask (not known in the guest, 0077 here)"),
            "{all:?}"
        );
        assert!(all.iter().any(|one| one.why.contains("it lists none")), "{all:?}");
        assert_eq!(TakenOver::of(None, None), TakenOver::NotAsked);
        assert_eq!(TakenOver::of(Some(&like), None), TakenOver::NotTold);
    }

    #[test]
    fn locales_and_zones_that_every_guest_has_are_not_looked_for() {
        for (lang, zone) in [("", ""), ("C", "UTC"), ("C.UTF-8", "CET-1CEST"), ("POSIX", ":UTC")] {
            let like = here(&[("LANG", lang), ("TZ", zone)]);
            assert_eq!((like.locales().count(), like.zone()), (0, None), "{lang} {zone}");
            assert!(!like.line().contains("locale"), "{}", like.line());
        }
        assert_eq!(plain_locale("de_DE.ISO-8859-15@euro"), "de_DE.iso885915@euro");
        assert_eq!(plain_locale("de_DE@euro"), "de_DE@euro");
    }

    #[test]
    fn the_shell_line_sets_the_values_and_never_fails() {
        let line = here(&[("TZ", "Europe/Berlin")]).line();
        assert!(line.contains("echo defer+madvise >/sys/kernel/mm/transparent_hugepage/defrag\n"), "{line}");
        assert!(line.contains("prlimit --pid $PPID --nofile=1024:524288\n"), "{line}");
        assert!(!line.contains("--cpu="), "{line}");
        assert!(line.contains(TOLD) && TELL.contains(TOLD) && line.ends_with("\n:"), "{line}");
    }

    #[test]
    fn values_come_back_from_a_manifest_and_no_others() {
        let like = here(&[("LANG", "C.UTF-8")]);
        let value = serde_json::to_value(&like).unwrap();
        let back = LikeHost::recorded(&value).unwrap();
        assert_eq!((&back.huge_pages, &back.limits), (&like.huge_pages, &like.limits));
        assert_eq!(back.variables, like.variables);
        for (place, name, bad) in [
            ("huge_pages", "enabled", "never;reboot"),
            ("huge_pages", "../x", "never"),
            ("limits", "nofile", "1;2"),
            ("limits", "cpu", "1:2"),
            ("limits", "others", "1:2"),
            ("variables", "PATH", "/"),
        ] {
            let mut value = value.clone();
            value[place][name] = bad.into();
            let refused = LikeHost::recorded(&value).unwrap_err();
            assert!(refused.starts_with(place), "{refused}");
        }
        assert!(LikeHost::recorded(&serde_json::json!({"huge_pages": 1})).is_err());
    }
}
