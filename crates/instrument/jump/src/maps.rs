// SPDX-License-Identifier: MIT OR Apache-2.0
//! The mappings of a process, from `/proc/PID/maps`.

use std::ops::Range;

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: Range<u64>,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// It can be executed.
    pub executable: bool,
    /// Offset of its first byte in its file.
    pub offset: u64,
    /// Device of its file, as the kernel writes it.
    pub device: String,
    /// Number of its file, 0 for none.
    pub inode: u64,
    /// Its file's path, or what the kernel calls it.
    pub path: String,
}

/// The mappings of a process, in order of addresses.
pub fn of(pid: u32) -> std::io::Result<Vec<Mapping>> {
    Ok(std::fs::read_to_string(format!("/proc/{pid}/maps"))?.lines().filter_map(line).collect())
}

fn line(text: &str) -> Option<Mapping> {
    let mut words = text.splitn(6, ' ');
    let (from, to) = words.next()?.split_once('-')?;
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    let rights = words.next()?.as_bytes();
    let has = |at: usize, letter: u8| rights.get(at) == Some(&letter);
    Some(Mapping {
        range: hex(from)?..hex(to)?,
        readable: has(0, b'r'),
        writable: has(1, b'w'),
        executable: has(2, b'x'),
        offset: hex(words.next()?)?,
        device: words.next()?.to_owned(),
        inode: words.next()?.parse().ok()?,
        path: words.next().unwrap_or_default().trim_start().to_owned(),
    })
}

/// Finds `size` free bytes so near to `place` that a jump reaches all of them, outside of the first 64 KiB.
pub fn gap(maps: &[Mapping], place: u64, size: u64) -> Option<u64> {
    // Away from the ends of the distance: the code in the gap reaches the place's surroundings, too.
    const REACH: u64 = (1 << 31) - (64 << 20);
    const LEAST: u64 = 64 << 10;
    /// The end of user addresses with four levels of page tables.
    const MOST: u64 = 0x7fff_ffff_f000;
    let ends = std::iter::once(LEAST).chain(maps.iter().map(|map| map.range.end));
    let starts = maps.iter().map(|map| map.range.start).chain(std::iter::once(MOST));
    let free = ends.zip(starts).filter(|(from, to)| from.saturating_add(size) <= *to);
    let fits = free.filter_map(|(from, to)| {
        // The end of the gap is nearest to what lies behind it; the heap grows into the other one.
        let at =
            if to <= place { to - size } else { to.min(place.saturating_add(REACH)).checked_sub(size)? };
        (at >= from && at.abs_diff(place) <= REACH).then_some(at)
    });
    fits.min_by_key(|at| at.abs_diff(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_gaps() {
        let text = "55d000000000-55d000001000 r-xp 00001000 fd:00 12 /a b\n55d000001000-55d000002000 rw-p 00000000 00:00 0";
        let maps: Vec<Mapping> = text.lines().filter_map(line).collect();
        assert_eq!(
            (maps[0].path.as_str(), maps[0].offset, maps[0].inode, maps[0].executable),
            ("/a b", 0x1000, 12, true)
        );
        assert_eq!((maps[1].path.as_str(), maps[1].writable), ("", true));
        let at = gap(&maps, 0x55d0_0000_0800, 0x3000).unwrap();
        assert_eq!(at, 0x55d0_0000_0000 - 0x3000);
        let full = Mapping { range: 0x1_0000..0x7fff_ffff_f000, ..maps[0].clone() };
        assert_eq!(gap(&[full], 0x55d0_0000_0800, 0x1000), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text(text: String) {
            let _ = line(&text);
        }
    }
}
