// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function's entry or return in a kernel module, by the debug information in the module's file.

use std::fs::File;
use std::io::Read as _;
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
    let mut plan = compile(&found, request, site, None, &mut |_| Ok(()))?;
    plan.origin.build_id = image.build_id().map(|id| id.to_string());
    Ok(Some(plan))
}

/// Returns true if the file is an ELF file that is not linked, as modules are and a kernel is not.
pub fn is_module(file: &Path) -> bool {
    let mut head = [0; 18];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut head));
    // Mapping a kernel would unpack all of its debug information.
    read.is_ok() && head.starts_with(b"\x7fELF") && head.ends_with(&RELOCATABLE)
}

/// `e_type`, the 16 bits behind the first 16 bytes, of a file that is not linked (ET_REL).
const RELOCATABLE: [u8; 2] = 1u16.to_le_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_linked_file_is_no_module() {
        let folder = std::env::temp_dir().join(format!("kprism-is-module-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("file");
        let is = |e_type: u8, length: usize| {
            let bytes = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 9], &[e_type, 0], &[0; 46]].concat();
            std::fs::write(&file, &bytes[..length]).unwrap();
            is_module(&file)
        };
        assert_eq!((is(1, 64), is(2, 64), is(3, 64), is(1, 17)), (true, false, false, false));
        std::fs::write(&file, [0; 64]).unwrap();
        assert!(!is_module(&file) && !is_module(&folder.join("absent")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
