// SPDX-License-Identifier: MIT OR Apache-2.0
//! Source lines of the kernel's instructions, by the addresses at which they ran.

use kprism_debuginfo::lines::Row;
use kprism_store::Run;

use super::debug_files::find;
use super::places::places;
use crate::cover::options::DebugFiles;
use crate::flow;

/// The lines of the kernel and of its modules.
#[derive(Debug, Default)]
pub struct KernelLines {
    /// Rows at the addresses at which they ran, sorted; files are numbered over all.
    rows: Vec<Row>,
}

impl KernelLines {
    /// True if nothing has debug information.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The file's number and the line of an instruction.
    pub fn line(&self, ip: u64) -> Option<(u32, u32)> {
        let row = &self.rows[self.rows.partition_point(|row| row.start <= ip).checked_sub(1)?];
        (ip < row.end && row.line > 0).then_some((row.file, row.line))
    }
}

/// Reads the debug information of the kernel and of its modules. `problems` gets files that could not be used.
pub fn kernel_lines(
    run: &Run,
    loaded: &flow::Loaded,
    debug: &DebugFiles,
    problems: &mut Vec<String>,
) -> KernelLines {
    let mut known = KernelLines::default();
    let mut files = 0;
    for (module, (_, lines)) in find(run, loaded, debug, problems) {
        if !module.starts_with('[') {
            continue;
        }
        let places = match places(&module, &lines, &loaded.symbols) {
            Ok(places) => places,
            Err(reason) => {
                problems.push(format!("{module}: {reason}"));
                continue;
            }
        };
        for row in &lines.rows {
            let place =
                places.iter().find(|place| (place.section.start..place.section.end).contains(&row.start));
            if let Some(place) = place {
                let (start, end) = (row.start.wrapping_add(place.bias), row.end.wrapping_add(place.bias));
                known.rows.push(Row { start, end, file: files + row.file, ..*row });
            }
        }
        files += lines.files.len() as u32;
    }
    known.rows.sort_unstable_by_key(|row| row.start);
    known
}
