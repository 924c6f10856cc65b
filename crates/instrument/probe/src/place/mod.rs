// SPDX-License-Identifier: MIT OR Apache-2.0
//! From a probe's place as text to a [`Plan`] for each of its code addresses.
//!
//! Input: a [`Target`] (a program, the kernel's debug information or its BTF) and a [`Request`]. The text is looked up, which
//! gives code addresses and the names in scope at each; [`crate::plan`] compiles the request with them. Output: plans. One
//! file for each kind of place:
//!
//! | module | place | by | hook |
//! |---|---|---|---|
//! | `program` | a function, line or address of a program | DWARF, symbols | uprobe, uretprobe |
//! | `usdt` | a static tracepoint of a program | its notes | uprobe |
//! | `kernel` | a function, line or address of the kernel | DWARF | kprobe, kretprobe |
//! | `btf` | a function's entry or return | BTF | fentry, fexit, else a kprobe |
//! | `module` | a function's entry or return in a module | the module's DWARF | kprobe, kretprobe |
//! | [`tracepoint`] | a static tracepoint of the kernel | DWARF, or tracefs and BTF | tracepoint, kprobe |
//!
//! [`flow`] tells whether code is reached past a tracepoint; `several` joins the plans of a place with several addresses, [`machine`] looks at the machine code there, [`listed`] is a
//! static tracepoint as `kprism list events` shows it.

mod btf;
pub mod flow;
mod kernel;
pub mod listed;
pub mod machine;
mod module;
mod program;
mod several;
pub mod tracepoint;
mod usdt;

use std::path::Path;

use kprism_expr::dwarf::{Debug, Image};

use self::flow::Ways;
use self::tracepoint::Name;
use crate::Error;
use crate::plan::{Plan, Request};

pub use btf::btf_of;
pub use module::{in_module, is_module};
pub use program::body_of;

/// The program or kernel that is probed.
#[derive(Debug, Clone, Copy)]
pub enum Target<'a> {
    /// A program or library, and the file with its debug information if known.
    Program(&'a Path, Option<&'a Path>),
    /// The running kernel or its modules, with their types as BTF.
    Btf(&'a Path),
    /// Another kernel: its types as BTF, and a folder that has the `SYSTEM/NAME/format` of its events.
    Foreign(&'a Path, &'a Path),
}

/// Compiles a probe without the kernel's debug information. A place with several code addresses gives several plans.
pub fn plans(target: Target<'_>, request: &Request<'_>) -> Result<Vec<Plan>, Error> {
    let one = |plan: Result<Plan, Error>| plan.map(|plan| vec![plan]);
    match (target, Name::of(request.place)) {
        (Target::Btf(path), Some(name)) => one(tracepoint::running(path, name, request)),
        (Target::Foreign(path, events), Some(name)) => {
            one(tracepoint::by_format(path, events, name, request))
        }
        (Target::Btf(path) | Target::Foreign(path, _), None) => one(btf::plan(path, request)),
        (Target::Program(path, debug), Some(name)) => usdt::plans(path, debug, name, request),
        (Target::Program(path, debug), None) => program::plans(path, debug, request),
    }
}

/// Compiles probes of the kernel with its debug information, which is read once for all.
pub fn kernel_plans(path: &Path, requests: &[Request<'_>]) -> Result<Vec<Result<Vec<Plan>, Error>>, Error> {
    let image = Image::open(path)?;
    let debug = Debug::new(&image)?;
    let ways = Ways::new(&image);
    let plans = |request: &Request<'_>| match Name::of(request.place) {
        Some(name) => tracepoint::by_debug(&image, &debug, &ways, name, request),
        None => kernel::plans(&image, &debug, request),
    };
    Ok(requests.iter().map(plans).collect())
}
