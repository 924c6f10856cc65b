// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library as a Python module, `kprism._kprism`: opens a run, decodes it if need be, and hands its tables to any reader
//! of Arrow streams. The Python code around it, with types and documentation, is in `python/kprism`.
//!
//! In: a run's folder. Out: the manifest's text, the names of tables, streams of them by Arrow's C interface, the
//! HTML report. Nothing is printed: remarks on the decoding are kept for the caller.

mod error;
mod run;
mod table;
mod work;

use pyo3::prelude::*;

#[pymodule]
fn _kprism(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("KprismError", module.py().get_type::<error::KprismError>())?;
    module.add_class::<run::Run>()?;
    module.add_class::<table::Table>()
}
