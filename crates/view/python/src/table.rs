// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table as a stream of Arrow's C interface. Its Parquet file is decoded batch by batch while the reader asks; what was decoded is
//! handed over and never copied.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::error::refused;

/// Rows of a batch.
const BATCH: usize = 64 * 1024;

/// A table of a run. Its rows are read when a reader asks for them.
#[pyclass(frozen, module = "kprism._kprism")]
pub struct Table {
    name: String,
    path: PathBuf,
    file: Arc<File>,
    metadata: ArrowReaderMetadata,
}

impl Table {
    /// Reads the footer.
    ///
    /// # Errors
    /// The file is missing or damaged.
    pub fn open(name: String, path: PathBuf) -> Result<Self> {
        let file = File::open(&path).with_context(|| path.display().to_string())?;
        let metadata = ArrowReaderMetadata::load(&file, ArrowReaderOptions::new())
            .with_context(|| format!("{}: not a table", path.display()))?;
        Ok(Table { name, path, file: Arc::new(file), metadata })
    }

    fn reader(&self) -> Result<Named> {
        let file = self.file.try_clone().with_context(|| self.path.display().to_string())?;
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let reader =
            builder.with_batch_size(BATCH).build().with_context(|| self.path.display().to_string())?;
        Ok(Named { path: self.path.clone(), reader })
    }
}

#[pymethods]
impl Table {
    /// Its name, without folder and suffix.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Its Parquet file.
    #[getter]
    fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.metadata.schema().fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Number of rows.
    #[getter]
    fn num_rows(&self) -> i64 {
        self.metadata.metadata().file_metadata().num_rows()
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.num_rows()).unwrap_or(0)
    }

    fn __repr__(&self) -> String {
        format!("<kprism.Table '{}': {} rows of {}>", self.name, self.num_rows(), self.columns().join(", "))
    }

    /// The types of the columns, as Arrow's C interface has them.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.metadata.schema().as_ref())
            .with_context(|| self.path.display().to_string())
            .map_err(|error| refused(&error))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    /// The rows, as Arrow's C interface has them. Other types than the table's are the reader's to make.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let reader = self.reader().map_err(|error| refused(&error))?;
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(reader)), c"arrow_array_stream")
    }
}

/// A reader whose errors name the file.
struct Named {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
}

impl Iterator for Named {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let named = |error: ArrowError| ArrowError::ParquetError(format!("{}: {error}", self.path.display()));
        Some(self.reader.next()?.map_err(named))
    }
}

impl RecordBatchReader for Named {
    fn schema(&self) -> SchemaRef {
        self.reader.schema()
    }
}
