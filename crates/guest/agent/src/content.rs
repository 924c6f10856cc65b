// SPDX-License-Identifier: MIT OR Apache-2.0
//! Content of disks and programs, known by their first bytes: as the agent finds it in the guest, and the host before that.

/// Content of a disk or partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A file system that may hold a root, by the kernel's name for it.
    FileSystem(&'static str),
    /// Something else, in words.
    Other(&'static str),
    /// Nothing that is known.
    Unknown,
}

/// Magic bytes of others than root file systems: offset, bytes, words. The first that fits is taken.
const OTHERS: [(u64, &[u8], &str); 21] = [
    (
        0,
        b"LUKS\xba\xbe",
        "encrypted (LUKS): give the image of what is in it (`cryptsetup open`, then copy the device)",
    ),
    (3, b"-FVE-FS-", "encrypted (BitLocker)"),
    (3, b"NTFS    ", "NTFS, which holds no Linux"),
    (3, b"EXFAT   ", "exFAT, which holds no root"),
    (
        0x218,
        b"LVM2 001",
        "a volume of LVM: give the image of the logical volume (`lvchange -ay`, then copy the device)",
    ),
    (0x18, b"LVM2 001", "a volume of LVM: give the image of the logical volume"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a part of a RAID (md): give the image of the whole array"),
    (0, b"\xfc\x4e\x2b\xa9", "a part of a RAID (md): give the image of the whole array"),
    (0, b"hsqs", "squashfs, which nothing can be written to: unpack it (`unsquashfs`), and give the folder"),
    (0x400, b"\xe2\xe1\xf5\xe0", "erofs, which nothing can be written to"),
    (0x400, b"\x10\x20\xf5\xf2", "f2fs: ext4, xfs and btrfs are mounted"),
    (0x1018, b"\xc6\x85\x73\xf6", "bcache: ext4, xfs and btrfs are mounted"),
    (0x21000, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS: ext4, xfs and btrfs are mounted"),
    (0x20, b"NXSB", "APFS, which holds no Linux"),
    (0x400, b"H+", "HFS+, which holds no Linux"),
    (0x8001, b"CD001", "a CD (ISO 9660): install from it first, and give the disk that was installed to"),
    (0x36, b"FAT", "FAT, which holds no root"),
    (0x52, b"FAT32", "FAT, which holds no root"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0xff6, b"SWAP-SPACE", "swap space"),
    (0, b"\x7fELF", "a program, no disk"),
];

/// File systems that may hold a root: offset, bytes, name.
const ROOTS: [(u64, &[u8], &str); 3] =
    [(0x438, &[0x53, 0xef], "ext4"), (0, b"XFSB", "xfs"), (0x10040, b"_BHRfS_M", "btrfs")];

/// Finds out the content. `read` fills the buffer with the bytes at an offset, and returns false if there are none.
pub fn of(read: impl Fn(u64, &mut [u8]) -> bool) -> Content {
    let is = |at: u64, magic: &[u8]| {
        let mut bytes = [0; 16];
        let bytes = &mut bytes[..magic.len()];
        read(at, bytes) && bytes == magic
    };
    // An encrypted or foreign header may have a file system's bytes further on, by chance.
    if let Some((.., what)) = OTHERS.iter().take(2).find(|(at, magic, _)| is(*at, magic)) {
        return Content::Other(what);
    }
    if let Some((.., name)) = ROOTS.iter().find(|(at, magic, _)| is(*at, magic)) {
        return Content::FileSystem(name);
    }
    // ZFS keeps a ring of 128 uberblocks, of which any may be the first that is written. Each is 1 KiB or more.
    if (0..128).any(|i| is(0x20000 + i * 1024, b"\x0c\xb1\xba\0\0\0\0\0")) {
        return Content::Other("ZFS: ext4, xfs and btrfs are mounted");
    }
    match OTHERS.iter().find(|(at, magic, _)| is(*at, magic)) {
        Some((.., what)) => Content::Other(what),
        None => Content::Unknown,
    }
}

impl Content {
    /// The content in words.
    pub fn text(self) -> &'static str {
        match self {
            Content::FileSystem(name) => name,
            Content::Other(what) => what,
            Content::Unknown => "no ext4, xfs or btrfs",
        }
    }
}

/// x86-64 in the header of an ELF file, and i386, whose programs run on it too.
pub const X86_64: u16 = 62;
/// See [`X86_64`].
pub const I386: u16 = 3;

/// The processor that an ELF file is for (`e_machine`), by its first 20 bytes; `None` for other files.
pub fn machine(start: &[u8]) -> Option<u16> {
    let bytes: [u8; 2] = start.get(18..20)?.try_into().ok()?;
    if !start.starts_with(b"\x7fELF") {
        return None;
    }
    // EI_DATA is 2 if numbers have their highest byte first.
    Some(if start[5] == 2 { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
}

/// The processor's name.
pub fn machine_name(machine: u16) -> String {
    let known = [
        (I386, "i386"),
        (8, "MIPS"),
        (20, "PowerPC"),
        (21, "64-bit PowerPC"),
        (22, "s390"),
        (40, "32-bit ARM"),
        (X86_64, "x86-64"),
        (183, "arm64"),
        (243, "RISC-V"),
        (258, "LoongArch"),
    ];
    let name = known.iter().find(|(number, _)| *number == machine);
    name.map_or_else(|| format!("the processor with the number {machine} in ELF"), |(_, name)| (*name).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(at: usize, magic: &[u8]) -> Vec<u8> {
        let mut disk = vec![0; 0x41000];
        disk[at..at + magic.len()].copy_from_slice(magic);
        disk
    }

    fn found(disk: &[u8]) -> Content {
        of(|at, into| {
            let bytes = disk.get(at as usize..at as usize + into.len());
            bytes.map(|bytes| into.copy_from_slice(bytes)).is_some()
        })
    }

    #[test]
    fn each_content_is_known_and_nothing_is_made_up() {
        for (at, magic, what) in OTHERS {
            assert_eq!(found(&with(at as usize, magic)), Content::Other(what), "{what}");
        }
        for (at, magic, name) in ROOTS {
            assert_eq!(found(&with(at as usize, magic)), Content::FileSystem(name));
        }
        assert_eq!(found(&with(0, b"text")), Content::Unknown);
        assert_eq!(found(b""), Content::Unknown);
        let mut both = with(0, b"LUKS\xba\xbe");
        both[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
        assert!(matches!(found(&both), Content::Other(what) if what.contains("LUKS")));
        let ring = with(0x20000 + 77 * 1024, b"\x0c\xb1\xba\0\0\0\0\0");
        assert!(matches!(found(&ring), Content::Other(what) if what.contains("ZFS")));
    }

    #[test]
    fn processors_of_programs() {
        let mut elf = b"\x7fELF\x02\x01".to_vec();
        elf.resize(20, 0);
        elf[18] = 183;
        assert_eq!(machine(&elf).map(machine_name).as_deref(), Some("arm64"));
        (elf[5], elf[18], elf[19]) = (2, 0, 22);
        assert_eq!(machine(&elf).map(machine_name).as_deref(), Some("s390"));
        assert_eq!(machine(b"#!/bin/sh, which is long enough"), None);
        assert_eq!(machine(&elf[..19]), None);
    }
}
