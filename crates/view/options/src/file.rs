// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the file, and parses it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The file's name.
pub const NAME: &str = "kprism.toml";

/// Table with a table for each profile.
const PROFILE: &str = "profile";

/// Maximum size of the file, bytes.
const LARGEST: u64 = 1 << 20;

/// Maximum depth of tables: a profile, a command, its subcommand, and room for a clear error.
const DEEPEST: usize = 8;

/// One option of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The profile whose table has it.
    pub profile: Option<String>,
    /// The command's words, or `guest`.
    pub section: Vec<String>,
    /// The option's long name.
    pub option: String,
    /// Its values as on the command line. A switch has `true` or `false`.
    pub values: Vec<String>,
    /// True if it is a switch.
    pub is_switch: bool,
    /// Line in the file, from 1.
    pub line: usize,
}

/// A parsed file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionsFile {
    /// Its path.
    pub path: PathBuf,
    /// Its options, in the order of tables and names.
    pub entries: Vec<Entry>,
}

/// The nearest file of that name in `folder` or a folder above it.
///
/// # Errors
/// Somebody else may write to it: then its options are not the user's.
pub fn find(folder: &Path) -> Result<Option<PathBuf>> {
    let Some(path) = folder.ancestors().map(|folder| folder.join(NAME)).find(|path| path.is_file()) else {
        return Ok(None);
    };
    let found = fs::metadata(&path).with_context(|| path.display().to_string())?;
    // SAFETY: it takes nothing and gives a number.
    let user = unsafe { libc::geteuid() };
    if (found.uid() != user && found.uid() != 0) || found.mode() & 0o002 != 0 {
        bail!(
            "{}: another user can write to this file, so its options are not taken; name it with --options-file if they are to \
             hold, or add --no-options-file",
            path.display()
        );
    }
    Ok(Some(path))
}

impl OptionsFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// It cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Self> {
        let size = fs::metadata(path).with_context(|| path.display().to_string())?.len();
        if size > LARGEST {
            bail!("{}: {size} bytes are too many for a file of options", path.display());
        }
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text, path)
    }

    /// Parses the text of the file at `path`.
    ///
    /// # Errors
    /// It is no TOML, or a value is none that an option can have. The error names the line.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let place = Place { text, path };
        let table = DeTable::parse(text).map_err(|error| {
            let line = error.span().map_or(1, |span| place.line(span.start));
            anyhow::anyhow!("{}:{line}: {}", path.display(), error.message())
        })?;
        let mut entries = Vec::new();
        place.collect(table.get_ref(), &mut Vec::new(), &mut entries)?;
        Ok(Self { path: path.to_owned(), entries })
    }

    /// Names of the profiles, sorted.
    pub fn profiles(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.entries.iter().filter_map(|entry| entry.profile.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

struct Place<'a> {
    text: &'a str,
    path: &'a Path,
}

impl Place<'_> {
    fn line(&self, at: usize) -> usize {
        self.text.as_bytes()[..at.min(self.text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    /// Adds the options of a table and of those in it. `section` is its name.
    fn collect(
        &self,
        table: &DeTable<'_>,
        section: &mut Vec<String>,
        entries: &mut Vec<Entry>,
    ) -> Result<()> {
        for (key, value) in table {
            let (name, line) = (key.get_ref().as_ref(), self.line(key.span().start));
            if let DeValue::Table(inner) = value.get_ref() {
                if section.len() == DEEPEST {
                    bail!("{}:{line}: no command has as many words as this table", self.path.display());
                }
                section.push(name.to_owned());
                self.collect(inner, section, entries)?;
                section.pop();
                continue;
            }
            let (profile, section) = match section.split_first() {
                Some((first, rest)) if first == PROFILE => match rest.split_first() {
                    Some((profile, rest)) => (Some(profile.clone()), rest.to_vec()),
                    None => (None, Vec::new()),
                },
                _ => (None, section.clone()),
            };
            if section.is_empty() {
                bail!(
                    "{}:{line}: `{name}` is in no table: write it below a command, such as [lab.run], or below [guest]",
                    self.path.display()
                );
            }
            let (values, is_switch) = self.values(name, value, line)?;
            entries.push(Entry { profile, section, option: name.to_owned(), values, is_switch, line });
        }
        Ok(())
    }

    fn values(&self, name: &str, value: &Spanned<DeValue<'_>>, line: usize) -> Result<(Vec<String>, bool)> {
        let wrong = || {
            format!(
                "{}:{line}: the value of `{name}` is none of: a text, a number, true or false, a list of texts and numbers",
                self.path.display()
            )
        };
        let one = |value: &DeValue<'_>| match value {
            DeValue::String(text) => Some(text.to_string()),
            // Hexadecimal numbers and underscores are TOML's, not the options'.
            DeValue::Integer(number) => {
                let digits = number.as_str().trim_start_matches('+');
                let decimal = if number.radix() == 10 { digits.parse().ok() } else { None };
                decimal.or_else(|| i128::from_str_radix(digits, number.radix()).ok()).map(|n| n.to_string())
            }
            DeValue::Float(number) => Some(number.as_str().to_owned()),
            _ => None,
        };
        match value.get_ref() {
            DeValue::Boolean(on) => Ok((vec![on.to_string()], true)),
            DeValue::Array(list) => {
                let all: Option<Vec<String>> = list.iter().map(|item| one(item.get_ref())).collect();
                Ok((all.with_context(wrong)?, false))
            }
            value => Ok((vec![one(value).with_context(wrong)?], false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<OptionsFile> {
        OptionsFile::parse(text, Path::new(NAME))
    }

    #[test]
    fn tables_are_commands_and_profiles() {
        let file = parse(
            "[guest]\nsmp = 2\npackage = ['strace', 'jq']\n[lab.run]\nfast = true\n\n[profile.ci.guest]\nmem = '2G'\n",
        )
        .unwrap();
        let shown: Vec<String> = file
            .entries
            .iter()
            .map(|e| {
                format!(
                    "{:?} {} {} {} {}",
                    e.profile,
                    e.section.join("."),
                    e.option,
                    e.values.join(","),
                    e.line
                )
            })
            .collect();
        let expected = [
            "None guest package strace,jq 3",
            "None guest smp 2 2",
            "None lab.run fast true 5",
            "Some(\"ci\") guest mem 2G 8",
        ];
        assert_eq!(shown, expected);
        assert_eq!(file.profiles(), ["ci"]);
    }

    #[test]
    fn errors_name_the_line() {
        for (text, expected) in [
            ("[guest]\nsmp 2", "kprism.toml:2: "),
            ("smp = 2", "kprism.toml:1: `smp` is in no table"),
            ("[profile]\nx = 1", "`x` is in no table"),
            ("[lab.run]\n\nstdin = 1979-05-27", "kprism.toml:3: the value of `stdin`"),
            ("[a.b.c.d.e.f.g.h.i]\nx = 1", "as many words"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
        assert_eq!(parse("[guest]\nsmp = 0x1_0").unwrap().entries[0].values, ["16"]);
    }

    #[test]
    fn any_text_is_options_or_an_error_with_a_line() {
        let text = "[guest]\nsmp = 0x1_0\npackage = ['a', 'b']\n[profile.ci.lab.run]\nfast = true\n\"\u{e9}\" = 1.5\n";
        for at in 0..text.len() {
            for byte in b"\n\"'[]={}.,#0-\x00" {
                let mut bytes = text.as_bytes().to_vec();
                bytes[at] = *byte;
                let Ok(changed) = String::from_utf8(bytes) else { continue };
                match parse(&changed) {
                    Ok(file) => {
                        assert!(file.entries.iter().all(|entry| entry.line <= changed.lines().count()))
                    }
                    Err(error) => {
                        assert!(error.to_string().starts_with("kprism.toml:"), "{changed}: {error}")
                    }
                }
            }
        }
    }

    #[test]
    fn a_file_that_others_write_to_is_not_taken() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let below = folder.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let path = folder.path().join(NAME);
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find(&below).unwrap().as_deref(), Some(path.as_path()));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(find(&below).unwrap_err().to_string().contains("--no-options-file"));
    }
}
