// SPDX-License-Identifier: MIT OR Apache-2.0
//! Line tables: converts addresses to lines and lines to addresses.

use kprism_debuginfo::lines;

use super::{Debug, Error, Unit};

/// A source line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// Path as it was passed to the compiler.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
}

/// A row of a unit's line table.
struct Row {
    address: u64,
    file: u64,
    line: u64,
    statement: bool,
    end: bool,
}

impl<'d> Debug<'d> {
    fn rows(&self, unit: &Unit<'d>, mut each: impl FnMut(&Row)) -> Result<(), Error> {
        let Some(program) = unit.line_program.clone() else { return Ok(()) };
        let mut rows = program.rows();
        while let Some((_, row)) = rows.next_row().map_err(self.bad(".debug_line"))? {
            each(&Row {
                address: row.address(),
                file: row.file_index(),
                line: row.line().map_or(0, |l| l.get()),
                statement: row.is_stmt(),
                end: row.end_sequence(),
            });
        }
        Ok(())
    }

    fn file_name(&self, unit: &Unit<'d>, index: u64) -> Option<String> {
        let listed = lines::listed(&self.parts[0].dwarf, unit, unit.line_program.as_ref()?.header(), index)?;
        let name = listed.name?;
        match listed.folder {
            Some(dir) if !name.starts_with('/') && !dir.is_empty() => Some(format!("{dir}/{name}")),
            _ => Some(name),
        }
    }

    /// Returns the line of an instruction.
    pub(crate) fn line_of(&self, unit: &Unit<'d>, pc: u64) -> Result<Option<Line>, Error> {
        let mut before: Option<(u64, u64, u64)> = None;
        let mut found = None;
        self.rows(unit, |row| {
            if let Some((address, file, line)) = before
                && address <= pc
                && pc < row.address
            {
                found = Some((file, line));
            }
            before = (!row.end).then_some((row.address, row.file, row.line));
        })?;
        Ok(found.and_then(|(file, line)| Some(Line { file: self.file_name(unit, file)?, line })))
    }

    /// Returns the addresses at which a line of a file begins, in all units. If the line has no code, the next line
    /// with code is used, and its number is returned.
    ///
    /// Each address has a flag. It is true where the line only continues: the row before has the same line at a lower
    /// address, and a row of another line has the same address.
    pub(crate) fn addresses_of(&self, file: &str, line: u64) -> Result<(u64, Vec<(u64, bool)>), Error> {
        let ends =
            |name: &str| name == file || name.strip_suffix(file).is_some_and(|rest| rest.ends_with('/'));
        let mut known = false;
        let mut best: Option<u64> = None;
        let mut addresses: Vec<(u64, bool)> = Vec::new();
        for index in 0..self.parts[0].units.len() {
            let unit = self.unit(0, index)?;
            let Some(program) = &unit.line_program else { continue };
            let count = program.header().file_names().len() as u64;
            let wanted: Vec<u64> =
                (0..=count).filter(|i| self.file_name(&unit, *i).is_some_and(|n| ends(&n))).collect();
            if wanted.is_empty() {
                continue;
            }
            known = true;
            // Address of the last accepted row, and whether the row before it has the same line.
            let mut taken: Option<(u64, bool)> = None;
            // Address and line of the previous row, if it belongs to the file and is not before the wanted line.
            let mut before: Option<(u64, u64)> = None;
            self.rows(&unit, |row| {
                let is_it = !row.end && wanted.contains(&row.file) && row.line >= line;
                let last = before.take();
                if is_it {
                    before = Some((row.address, row.line));
                }
                if let Some((address, went_on)) = taken {
                    if row.address == address && is_it && best == Some(row.line) {
                        return;
                    }
                    if row.address == address
                        && let Some((_, goes_on)) = addresses.last_mut()
                    {
                        *goes_on = went_on;
                    }
                    taken = None;
                }
                if !is_it || !row.statement {
                    return;
                }
                if best.is_none_or(|b| row.line < b) {
                    best = Some(row.line);
                    addresses.clear();
                }
                if best == Some(row.line) {
                    addresses.push((row.address, false));
                    let same = |(address, was): (u64, u64)| was == row.line && address < row.address;
                    taken = Some((row.address, last.is_some_and(same)));
                }
            })?;
        }
        addresses.sort_unstable();
        addresses.dedup_by_key(|(address, _)| *address);
        match best {
            Some(best) => Ok((best, addresses)),
            None if known => Err(Error::Nothing(format!("{file} has no code at line {line} or after it"))),
            None => Err(Error::Nothing(format!("{}: no source file `{file}`", self.image.name()))),
        }
    }

    /// Returns the second address with a statement, which is after the prologue. GDB stops there too.
    pub(crate) fn after_prologue(&self, unit: &Unit<'d>, low: u64, high: u64) -> Result<u64, Error> {
        let mut lines = Vec::new();
        self.rows(unit, |row| {
            if !row.end && row.statement && (low..high).contains(&row.address) {
                lines.push(row.address);
            }
        })?;
        lines.sort_unstable();
        lines.dedup();
        Ok(lines.get(1).copied().unwrap_or(low))
    }
}
