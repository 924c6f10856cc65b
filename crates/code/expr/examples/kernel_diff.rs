// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares generated programs in a kernel with the interpreter.
//!
//! `kernel_diff make SEED FIRST COUNT` writes the programs FIRST to FIRST + COUNT and the interpreter's results to
//! standard output. `kernel_diff run FILE` runs them in this machine's kernel and panics at the first difference. It
//! needs only a C library, so that it can run in a guest.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write as _};
use std::time::Instant;

use machine::Kernel;
use pack::{Packed, Tried, packed};

#[path = "../tests/support/kernel.rs"]
mod machine;
#[path = "../tests/support/pack.rs"]
mod pack;
#[path = "../tests/support/mod.rs"]
mod support;

/// Programs that are loaded at once, and inputs for each.
const PACK: u64 = 12;
const ROUNDS: u64 = 2;

fn main() -> io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().expect("a number");
    match &args[..] {
        [make, seed, first, count] if make == "make" => {
            let (seed, first, count) = (number(seed), number(first), number(count));
            let mut out = BufWriter::new(io::stdout().lock());
            for at in (first..first + count).step_by(PACK as usize) {
                packed(seed, at, PACK.min(first + count - at), ROUNDS).write(&mut out)?;
            }
            out.flush()
        }
        [run, file] if run == "run" => {
            let kernel = Kernel::new()?;
            let (mut tried, began) = (Tried::default(), Instant::now());
            let mut from = BufReader::new(File::open(file)?);
            while let Some(pack) = Packed::read(&mut from)? {
                pack.compare(&kernel, &mut tried);
            }
            let Tried { programs, expressions, runs, faults, insns } = tried;
            println!(
                "no difference: {programs} programs ({expressions} of C), {runs} runs, {faults} faults, {insns} instructions, {:.0} s",
                began.elapsed().as_secs_f64()
            );
            Ok(())
        }
        _ => panic!("kernel_diff make SEED FIRST COUNT | kernel_diff run FILE"),
    }
}
