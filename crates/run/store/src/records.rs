// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table whose columns are known only when it is written, such as the records that probes collected. The input is
//! named columns; the output is a Parquet file. Any value may be missing and a column's name may be any text, which the
//! fixed tables do not need.

use std::path::Path;
use std::sync::Arc;

use parquet::basic::{LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use crate::column::properties;
use crate::{Result, StoreError, write_atomically};

/// The values of a column. `None` is SQL's NULL.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// Signed integers.
    Signed(Vec<Option<i64>>),
    /// Unsigned integers.
    Unsigned(Vec<Option<u64>>),
    /// Floating-point numbers.
    Float(Vec<Option<f64>>),
    /// Booleans.
    Bool(Vec<Option<bool>>),
    /// Strings.
    Text(Vec<Option<String>>),
}

impl Values {
    fn field(&self, name: &str) -> Result<Arc<Type>, ParquetError> {
        let (physical, logical) = match self {
            Values::Signed(_) => (Physical::INT64, Some(LogicalType::integer(64, true))),
            // Bit for bit: SQL and Spark have signed integers only.
            Values::Unsigned(_) => (Physical::INT64, Some(LogicalType::integer(64, true))),
            Values::Float(_) => (Physical::DOUBLE, None),
            Values::Bool(_) => (Physical::BOOLEAN, None),
            Values::Text(_) => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        };
        let field = Type::primitive_type_builder(name, physical).with_logical_type(logical);
        Ok(Arc::new(field.with_repetition(Repetition::OPTIONAL).build()?))
    }
}

/// Writes a table completely or not at all.
///
/// # Errors
/// Fails if the columns do not form a table or the file cannot be written.
pub fn save_records(path: &Path, columns: &[(String, Values)]) -> Result<()> {
    let bytes = encode(columns).map_err(|source| StoreError::Parquet { path: path.to_path_buf(), source })?;
    write_atomically(path, &bytes)
}

fn encode(columns: &[(String, Values)]) -> Result<Vec<u8>, ParquetError> {
    let fields = columns.iter().map(|(name, values)| values.field(name)).collect::<Result<_, _>>()?;
    let schema = Type::group_type_builder("records").with_fields(fields).build()?;
    let mut writer = SerializedFileWriter::new(Vec::new(), Arc::new(schema), Arc::new(properties().build()))?;
    let mut group = writer.next_row_group()?;
    for (_, values) in columns {
        let Some(out) = group.next_column()? else { break };
        match values {
            Values::Unsigned(all) => column::<Int64Type, _>(out, all, |n| n.cast_signed())?,
            Values::Signed(all) => column::<Int64Type, _>(out, all, |n| *n)?,
            Values::Float(all) => column::<DoubleType, _>(out, all, |n| *n)?,
            Values::Bool(all) => column::<BoolType, _>(out, all, |n| *n)?,
            Values::Text(all) => column::<ByteArrayType, _>(out, all, |t| ByteArray::from(t.as_str()))?,
        }
    }
    group.close()?;
    writer.into_inner()
}

fn column<D: DataType, T>(
    mut out: SerializedColumnWriter<'_>,
    all: &[Option<T>],
    stored: impl Fn(&T) -> D::T,
) -> Result<(), ParquetError> {
    let present: Vec<D::T> = all.iter().flatten().map(stored).collect();
    let levels: Vec<i16> = all.iter().map(|value| i16::from(value.is_some())).collect();
    out.typed::<D>().write_batch(&present, Some(&levels), None)?;
    out.close()
}
