// SPDX-License-Identifier: MIT OR Apache-2.0
//! lcov's tracefile, of coverage. Torn counts, which are negative, are written as 0.

use std::io::{self, Write};

use kprism_cover::cover::{BranchCount, Cover, Source};

/// Number of sources that are formatted at a time, on all CPUs. It is small to limit memory.
const BATCH: usize = 64;

/// Writes lcov's tracefile (geninfo(1), "FILES"), which lcov 1 and 2 and genhtml read.
///
/// # Errors
/// Write errors of `out`.
pub fn write(cover: &Cover, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "TN:")?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut texts: Vec<Vec<u8>> = vec![Vec::new(); threads];
    for batch in cover.sources.chunks(BATCH) {
        let part = batch.len().div_ceil(threads).max(1);
        texts.iter_mut().for_each(Vec::clear);
        std::thread::scope(|scope| {
            for (sources, text) in batch.chunks(part).zip(&mut texts) {
                scope.spawn(move || sources.iter().for_each(|source| of_file(source, text)));
            }
        });
        for text in &texts {
            out.write_all(text)?;
        }
    }
    Ok(())
}

fn of_file(source: &Source, text: &mut Vec<u8>) {
    let mut number = itoa::Buffer::new();
    // Writes words and numbers alternately.
    let mut put = |words: &[&str], numbers: &[u64]| {
        for (index, word) in words.iter().enumerate() {
            text.extend_from_slice(word.as_bytes());
            if let Some(&value) = numbers.get(index) {
                text.extend_from_slice(number.format(value).as_bytes());
            }
        }
        text.push(b'\n');
    };
    let count = |count: i64| count.max(0) as u64;
    let totals = source.totals();
    put(&["SF:", &source.path], &[]);
    for function in &source.functions {
        put(&["FN:", ",", &function.name], &[function.lines.0.into()]);
    }
    for function in &source.functions {
        put(&["FNDA:", ",", &function.name], &[count(function.called)]);
    }
    put(&["FNF:", "\nFNH:"], &[totals.functions.all, totals.functions.hit]);
    let mut block = 0;
    let mut last: Option<&BranchCount> = None;
    for branch in source.branches.iter().filter(|branch| branch.way.is_branch()) {
        // lcov identifies a branch of a line by a block number and its index in the block.
        block = match last {
            Some(last) if last.line != branch.line => 0,
            Some(last) if (last.function, last.of) != (branch.function, branch.of) => block + 1,
            _ => block,
        };
        last = Some(branch);
        let place = [branch.line.into(), block, branch.place.into()];
        match branch.executed {
            0 => put(&["BRDA:", ",", ",", ",-"], &place),
            _ => put(&["BRDA:", ",", ",", ","], &[place[0], place[1], place[2], count(branch.taken)]),
        }
    }
    put(&["BRF:", "\nBRH:"], &[totals.branches.all, totals.taken]);
    for line in &source.lines {
        put(&["DA:", ","], &[line.line.into(), count(line.count)]);
    }
    put(&["LF:", "\nLH:", "\nend_of_record"], &[totals.lines.all, totals.lines.hit]);
}
