// SPDX-License-Identifier: MIT OR Apache-2.0
//! A function's entry or return, of the running kernel or a module, as BTF describes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kprism_btf::Btf;
use kprism_expr::btf;

use crate::Error;
use crate::plan::{Plan, Request, Site, compile};

/// Compiles a probe of a function.
pub(crate) fn plan(path: &Path, request: &Request<'_>) -> Result<Plan, Error> {
    let function = request.place.trim_end_matches("%return");
    let (btf, module) = btf_of(path, request.place)?;
    traced(btf::Place::find(&btf, request.place)?, request, function, module)
}

/// The BTF with a function's entry or return: the kernel's, or a module's with the module's name.
pub fn btf_of(path: &Path, place: &str) -> Result<(Arc<Btf>, Option<String>), Error> {
    let name = path.display().to_string();
    let data = std::fs::read(path).map_err(|e| Error::Cannot(format!("{name}: {e}")))?;
    let function = place.trim_end_matches("%return");
    let kernel = Arc::new(Btf::parse(&name, data, None)?);
    let error = match btf::Place::find(&kernel, place) {
        Ok(_) => return Ok((kernel, None)),
        Err(error) => error,
    };
    for module in modules(path) {
        let Ok(own) = std::fs::read(&module) else { continue };
        if memchr::memmem::find(&own, function.as_bytes()).is_none() {
            continue;
        }
        let btf = Arc::new(Btf::parse(&module.display().to_string(), own, Some(kernel.clone()))?);
        if btf::Place::find(&btf, place).is_ok() {
            return Ok((btf, module.file_name().map(|n| n.to_string_lossy().into_owned())));
        }
    }
    Err(error.into())
}

/// Attaches by fentry or fexit; by a kprobe if the kernel has neither, or refuses to attach them.
fn traced(
    place: btf::Place<'_>,
    request: &Request<'_>,
    function: &str,
    module: Option<String>,
) -> Result<Plan, Error> {
    let at_return = request.place.ends_with("%return");
    let function = function.to_owned();
    let variadic = place.variadic;
    let site = Site::Traced { function: function.clone(), module: module.clone(), at_return };
    let plan = compile(&place, request, site, None, &mut |_| Ok(()));
    let site = Site::Named { function, module, at_return };
    let named = compile(&place.by_registers(), request, site, None, &mut |_| Ok(()));
    if variadic {
        let mut named = named?;
        let why = "it takes any number of arguments, and such functions have no fentry".to_owned();
        named.notes.push(why);
        return Ok(named);
    }
    let mut plan = plan?;
    plan.instead = named.ok().map(Box::new);
    Ok(plan)
}

/// The modules' BTF files beside the kernel's, sorted by name.
fn modules(vmlinux: &Path) -> Vec<PathBuf> {
    let Some(entries) = vmlinux.parent().and_then(|folder| std::fs::read_dir(folder).ok()) else {
        return Vec::new();
    };
    let mut all: Vec<_> = entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| p != vmlinux).collect();
    all.sort();
    all
}
