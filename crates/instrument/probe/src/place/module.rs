// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function's entry or return in a kernel module, by the debug information in the module's file.

use std::path::Path;

use kprism_expr::dwarf::{Debug, Image, InModule};
use kprism_expr::scope::ProbePoint;

use crate::Error;
use crate::plan::{Plan, Request, Site, compile};

/// Compiles a probe of a function of the module of this name, by its file, which is of the build that is loaded. `address` is that of a
/// symbol of the loaded module. `None`: the module has no such function.
///
/// # Errors
/// The file has no debug information, the place is no function's entry or return, or an expression has no meaning there.
pub fn in_module(
    file: &Path,
    module: &str,
    address: &dyn Fn(&str) -> Option<u64>,
    request: &Request<'_>,
) -> Result<Option<Plan>, Error> {
    let image = Image::open(file)?;
    let debug = Debug::new(&image)?;
    let Some(found) = InModule::find(&debug, request.place, address)? else { return Ok(None) };
    let at_return = found.probe_point() == ProbePoint::Return;
    let (function, module) = (found.symbol().to_owned(), Some(module.to_owned()));
    let site = Site::Named { function, module, at_return };
    compile(&found, request, site, None, &mut |_| Ok(())).map(Some)
}
