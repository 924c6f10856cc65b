// SPDX-License-Identifier: MIT OR Apache-2.0
//! The symbols of the kernel in a raw image of a machine's memory (QEMU: `pmemsave 0 SIZE FILE`), as `/proc/kallsyms`.
//! Arguments: the image, and CR3 (`info registers`).

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use kprism_kmem::{Kernel, Physical, paging::Paged};

struct Image(File);

impl Physical for Image {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        self.0.read_exact_at(into, address).map_err(|error| error.to_string())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, cr3] = arguments.as_slice() else { return Err("arguments: IMAGE CR3".into()) };
    let cr3 = u64::from_str_radix(cr3.trim_start_matches("0x"), 16)?;
    let kernel = Kernel::find(&mut Paged::at(Image(File::open(image)?), cr3, false))?;
    eprintln!("{}: {} symbols, {} modules", kernel.banner, kernel.symbols.len(), kernel.modules.len());
    kernel.gaps.iter().for_each(|gap| eprintln!("{gap}"));
    print!("{}", kernel.kallsyms());
    Ok(())
}
