// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a file of the `run` corpus means: the files of a run folder, one after the other.
//!
//! | bytes | meaning |
//! |---|---|
//! | 1 | which file: an index into [`NAMES`], modulo its length |
//! | 2 | its length, little-endian |
//! | length | its bytes |

/// The files, by what the first byte says.
pub const NAMES: [&str; 24] = [
    "manifest.json",
    "streams/counts.json",
    "streams/code.dict",
    "streams/cpu0.pt",
    "streams/cpu0.map",
    "streams/cpu1.pt",
    "streams/cpu1.map",
    "streams/sideband.jsonl",
    "streams/cpu0.side.jsonl",
    "streams/cpu1.side.jsonl",
    "symbols/kallsyms",
    "symbols/root/bin/program",
    "tables/functions.parquet",
    "tables/tasks.parquet",
    "tables/nodes.parquet",
    "tables/syscalls.parquet",
    "tables/slices.parquet",
    "tables/errors.parquet",
    "tables/cpus.parquet",
    "tables/deltas.parquet",
    "tables/delta_bins.parquet",
    "tables/delta_longest.parquet",
    "tables/delta_sites.parquet",
    "tables/counts.parquet",
];

/// Writes an input. A file with a name that is not one of [`NAMES`] is left out, and of one that is too long the rest.
pub fn write(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, bytes) in files {
        let Some(index) = NAMES.iter().position(|known| known == name) else { continue };
        let bytes = &bytes[..bytes.len().min(usize::from(u16::MAX))];
        out.push(index as u8);
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(bytes);
    }
    out
}

/// Reads an input. The last file may be shorter than it says.
pub fn read(mut rest: &[u8]) -> Vec<(&'static str, &[u8])> {
    let mut files = Vec::new();
    while let Some((&[index, low, high], tail)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([low, high])).min(tail.len());
        let (bytes, tail) = tail.split_at(len);
        files.push((NAMES[usize::from(index) % NAMES.len()], bytes));
        rest = tail;
    }
    files
}
