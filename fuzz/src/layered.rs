// SPDX-License-Identifier: MIT OR Apache-2.0
//! Container images made of any bytes, and what is true of each initramfs made of them. A test of the lab uses this too.

use std::collections::HashMap;

use tar::EntryType;

/// Names that fall on each other, in folders that may be links.
const NAMES: [&str; 16] = [
    "a",
    "b",
    "a/b",
    "a/c",
    "b/a",
    "l",
    "l/a",
    "l/b/c",
    "a/.wh.b",
    ".wh.a",
    "a/.wh..wh..opq",
    "l/.wh.a",
    "./a/b/",
    "m/l/a",
    ".wh.l",
    "m",
];

/// Targets of links.
const TARGETS: [&str; 8] = ["a", "/b", "../a", "l", "m/l", "..", "b/a", "/"];

/// An image as `docker save` writes it. Each entry takes two bytes; the first of a pair that is 255 begins a layer.
pub fn image(bytes: &[u8]) -> Vec<u8> {
    let new = || tar::Builder::new(Vec::new());
    let mut layers = vec![new()];
    for (i, pair) in bytes.chunks_exact(2).take(200).enumerate() {
        if pair[0] == 255 {
            layers.push(new());
            continue;
        }
        let (name, target) = (NAMES[usize::from(pair[0] % 16)], TARGETS[usize::from(pair[1] >> 5)]);
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_size(0);
        let layer = layers.last_mut().expect("one layer at least");
        let contents = i.to_string();
        // What cannot be written is left out.
        match pair[1] % 6 {
            0 | 1 => {
                header.set_size(contents.len() as u64);
                layer.append_data(&mut header, name, contents.as_bytes())
            }
            2 => {
                header.set_entry_type(EntryType::Directory);
                layer.append_data(&mut header, name, &[][..])
            }
            3 => {
                header.set_entry_type(EntryType::Symlink);
                layer.append_link(&mut header, name, target)
            }
            4 => {
                header.set_entry_type(EntryType::Link);
                layer.append_link(&mut header, name, target)
            }
            _ => {
                header.set_entry_type(EntryType::Fifo);
                layer.append_data(&mut header, name, &[][..])
            }
        }
        .ok();
    }
    let mut whole = new();
    let mut add = |name: &str, contents: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_mode(0o644);
        header.set_size(contents.len() as u64);
        whole.append_data(&mut header, name, contents).expect("memory takes it");
    };
    let mut names = Vec::new();
    for (i, layer) in layers.into_iter().enumerate() {
        names.push(format!("\"{i}\""));
        add(&i.to_string(), &layer.into_inner().expect("memory takes it"));
    }
    add("config", b"{}");
    let manifest = format!("[{{\"Config\":\"config\",\"Layers\":[{}]}}]", names.join(","));
    add("manifest.json", manifest.as_bytes());
    whole.into_inner().expect("memory takes it")
}

/// Checks an initramfs as the kernel unpacks it: each name is plain, its folders come before it and are folders, no name but a
/// folder's comes twice, and of the names of one file the first alone has contents.
pub fn check(mut archive: &[u8]) {
    let mut kinds: HashMap<String, u32> = HashMap::new();
    let mut inodes: HashMap<u32, bool> = HashMap::new();
    loop {
        let field = |i: usize| {
            let text = std::str::from_utf8(&archive[6 + i * 8..14 + i * 8]).expect("a header is text");
            u32::from_str_radix(text, 16).expect("a header has numbers")
        };
        assert_eq!(&archive[..6], b"070701");
        let (inode, mode, links, size, length) = (field(0), field(1), field(4), field(6), field(11));
        let start = (110 + length as usize).next_multiple_of(4);
        let name =
            std::str::from_utf8(&archive[110..109 + length as usize]).expect("a name is text").to_owned();
        if name == "TRAILER!!!" {
            return;
        }
        let kind = mode & 0o170_000;
        assert!(!name.is_empty() && name.split('/').all(|part| !matches!(part, "" | "." | "..")), "{name}");
        for (at, _) in name.match_indices('/') {
            assert_eq!(kinds.get(&name[..at]), Some(&0o040_000), "a folder above {name}");
        }
        let before = kinds.insert(name.clone(), kind);
        assert!(before.is_none_or(|before| before == kind && kind == 0o040_000), "{name} comes twice");
        if kind == 0o100_000 && links > 1 && inodes.insert(inode, true).is_some() {
            assert_eq!(size, 0, "contents of {name} come twice");
        }
        archive = &archive[start + (size as usize).next_multiple_of(4)..];
    }
}
