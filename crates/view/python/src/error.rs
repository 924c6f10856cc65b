// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exception of this module.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    kprism,
    KprismError,
    PyException,
    "A run, a table or a command that kprism refused, in its own words."
);

/// An error with the chain of its causes, as the command line prints it.
pub fn refused(error: &anyhow::Error) -> PyErr {
    KprismError::new_err(kprism_session::errors::text_of(error))
}
