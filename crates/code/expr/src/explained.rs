// SPDX-License-Identifier: MIT OR Apache-2.0
//! A compiled expression with all its steps, to be shown.

use crate::agent::listing::Step;
use crate::emit::{self, Cpu, Error, Output, Program};
use crate::lower::Lowered;
use crate::opt;

/// An expression, compiled at a place.
#[derive(Debug, Clone)]
pub struct Explained {
    /// The place in words.
    pub place: String,
    /// Its address, if it is known.
    pub address: Option<u64>,
    /// GDB's bytecode, if the expression is that.
    pub bytecode: Vec<Step>,
    /// The expression's type, the names that it uses, and its IR, optimised.
    pub lowered: Lowered,
    /// The IR before it was optimised, as text.
    pub plain: String,
    /// The eBPF.
    pub program: Program,
    /// Its version.
    pub cpu: Cpu,
}

impl Explained {
    /// Optimises the IR and generates the eBPF.
    ///
    /// # Errors
    /// The program would be too large.
    pub fn new(
        place: String,
        address: Option<u64>,
        mut lowered: Lowered,
        cpu: Cpu,
        output: Output,
    ) -> Result<Self, Error> {
        let plain = lowered.func.to_string();
        opt::optimise(&mut lowered.func);
        let program = emit::program(&lowered.func, cpu, output)?;
        Ok(Explained { place, address, bytecode: Vec::new(), lowered, plain, program, cpu })
    }
}
