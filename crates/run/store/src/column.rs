// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of columns of plain values to Parquet files and back.
//!
//! The input is a table's columns; the output is its file, or the reverse. Only the types that the tables need are
//! supported: unsigned integers (some of them nullable), strings, and booleans. All rows of a table are one row group,
//! except in tables that are too large for memory. Pages are compressed with Snappy and `created_by` is fixed, so the
//! same values always give the same bytes.

use crate::{Result, StoreError, io_at, write_atomically};
use bytes::Bytes;
use parquet::basic::Compression;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Number of rows read at once. This limits the allocation that a false row count can cause.
const BATCH: usize = 64 * 1024;

/// The values of one column.
pub(crate) enum Column {
    U64(Vec<u64>),
    U32(Vec<u32>),
    /// `None` is SQL's NULL.
    OptU32(Vec<Option<u32>>),
    /// `None` is SQL's NULL.
    OptU64(Vec<Option<u64>>),
    Str(Vec<String>),
    Bool(Vec<bool>),
}

impl Column {
    fn is_empty(&self) -> bool {
        match self {
            Column::U64(v) => v.is_empty(),
            Column::U32(v) => v.is_empty(),
            Column::OptU32(v) => v.is_empty(),
            Column::OptU64(v) => v.is_empty(),
            Column::Str(v) => v.is_empty(),
            Column::Bool(v) => v.is_empty(),
        }
    }
}

/// Writes a table completely or not at all.
pub(crate) fn write_table(path: &Path, name: &str, columns: &[(&str, Column)]) -> Result<()> {
    let bytes =
        encode(name, columns).map_err(|source| StoreError::Parquet { path: path.to_path_buf(), source })?;
    write_atomically(path, &bytes)
}

fn encode(name: &str, columns: &[(&str, Column)]) -> Result<Vec<u8>, ParquetError> {
    let mut writer = open_writer(Vec::new(), name, columns)?;
    if columns.iter().all(|(_, values)| values.is_empty()) {
        return writer.into_inner(); // an empty row group would be legal, but some readers refuse it
    }
    write_group(&mut writer, columns)?;
    writer.into_inner()
}

/// Writes a table that is too large for memory, one row group at a time, completely or not at all. There must be a
/// first group, which may be empty.
pub(crate) fn write_groups<'a>(
    path: &Path,
    name: &str,
    groups: impl Iterator<Item = Vec<(&'a str, Column)>>,
) -> Result<()> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let file = crate::fresh(part).map_err(io_at(part))?;
    let bad = |source| StoreError::Parquet { path: path.to_path_buf(), source };
    let mut file = Some(std::io::BufWriter::new(file));
    let mut writer = None;
    for columns in groups {
        if let Some(file) = file.take() {
            writer = Some(open_writer(file, name, &columns).map_err(bad)?);
        }
        if let Some(writer) = writer.as_mut().filter(|_| columns.iter().any(|(_, values)| !values.is_empty()))
        {
            write_group(writer, &columns).map_err(bad)?;
        }
    }
    if let Some(writer) = writer {
        writer.into_inner().map_err(bad)?.into_inner().map_err(|e| io_at(part)(e.into_error()))?;
    }
    std::fs::rename(part, path).map_err(io_at(path))
}

fn open_writer<W: std::io::Write + Send>(
    out: W,
    name: &str,
    columns: &[(&str, Column)],
) -> Result<SerializedFileWriter<W>, ParquetError> {
    let mut schema = format!("message {name} {{ ");
    for (column, values) in columns {
        let _ = match values {
            Column::U64(_) => write!(schema, "REQUIRED INT64 {column} (INTEGER(64,false)); "),
            Column::U32(_) => write!(schema, "REQUIRED INT32 {column} (INTEGER(32,false)); "),
            Column::OptU32(_) => write!(schema, "OPTIONAL INT32 {column} (INTEGER(32,false)); "),
            Column::OptU64(_) => write!(schema, "OPTIONAL INT64 {column} (INTEGER(64,false)); "),
            Column::Str(_) => write!(schema, "REQUIRED BYTE_ARRAY {column} (UTF8); "),
            Column::Bool(_) => write!(schema, "REQUIRED BOOLEAN {column}; "),
        };
    }
    schema.push('}');
    SerializedFileWriter::new(out, Arc::new(parse_message_type(&schema)?), properties())
}

/// Writer properties of every table.
pub(crate) fn properties() -> Arc<WriterProperties> {
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::SNAPPY)
        .set_created_by("kprism".to_string());
    Arc::new(properties.build())
}

fn write_group<W: std::io::Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: &[(&str, Column)],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for (_, values) in columns {
        let Some(mut out) = group.next_column()? else { break };
        match values {
            // Parquet stores unsigned integers in the signed type of the same width, bit for bit.
            Column::U64(v) => {
                let v: Vec<i64> = v.iter().map(|&x| x as i64).collect();
                out.typed::<Int64Type>().write_batch(&v, None, None)?;
            }
            Column::U32(v) => {
                let v: Vec<i32> = v.iter().map(|&x| x as i32).collect();
                out.typed::<Int32Type>().write_batch(&v, None, None)?;
            }
            Column::OptU32(v) => {
                let present: Vec<i32> = v.iter().flatten().map(|&x| x as i32).collect();
                let levels: Vec<i16> = v.iter().map(|x| i16::from(x.is_some())).collect();
                out.typed::<Int32Type>().write_batch(&present, Some(&levels), None)?;
            }
            Column::OptU64(v) => {
                let present: Vec<i64> = v.iter().flatten().map(|&x| x as i64).collect();
                let levels: Vec<i16> = v.iter().map(|x| i16::from(x.is_some())).collect();
                out.typed::<Int64Type>().write_batch(&present, Some(&levels), None)?;
            }
            Column::Str(v) => {
                let v: Vec<ByteArray> = v.iter().map(|s| ByteArray::from(s.as_str())).collect();
                out.typed::<ByteArrayType>().write_batch(&v, None, None)?;
            }
            Column::Bool(v) => {
                out.typed::<BoolType>().write_batch(v, None, None)?;
            }
        }
        out.close()?;
    }
    group.close()?;
    Ok(())
}

/// A table opened for reading, column by column.
pub(crate) struct Table<'a> {
    path: &'a Path,
    reader: SerializedFileReader<Bytes>,
}

impl<'a> Table<'a> {
    pub(crate) fn open(path: &'a Path) -> Result<Self> {
        if path.symlink_metadata().is_err() {
            return Err(StoreError::NoTable { path: path.to_path_buf() });
        }
        let bytes = std::fs::read(path).map_err(io_at(path))?;
        let size = bytes.len() as i64;
        let reader = guarded(path, || {
            SerializedFileReader::new(Bytes::from(bytes))
                .map_err(|source| StoreError::Parquet { path: path.to_path_buf(), source })
        })?;
        let table = Table { path, reader };
        table.check_ranges(size)?;
        Ok(table)
    }

    /// Fails if a column chunk lies outside of the file. The Parquet reader trusts these ranges, so a damaged footer
    /// must be rejected before it is used.
    fn check_ranges(&self, size: i64) -> Result<()> {
        let metadata = self.reader.metadata();
        for column in metadata.row_groups().iter().flat_map(|g| g.columns()) {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let inside = start >= 0
                && column.compressed_size() >= 0
                && start.checked_add(column.compressed_size()).is_some_and(|end| end <= size)
                && (start..=size).contains(&column.data_page_offset());
            if !inside {
                let what = format!(
                    "column {} claims {} bytes at {start} of a file of {size}",
                    column.column_path().string(),
                    column.compressed_size()
                );
                return Err(self.bad(0, what));
            }
        }
        Ok(())
    }

    /// True if the table has a column of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        schema.columns().iter().any(|column| column.path().string() == name)
    }

    /// An error that names a row of this table.
    pub(crate) fn bad(&self, row: usize, what: impl Into<String>) -> StoreError {
        StoreError::Table { path: self.path.to_path_buf(), row, what: what.into() }
    }

    pub(crate) fn u64(&self, name: &str) -> Result<Vec<u64>> {
        self.required(name, "INT64", |reader| match reader {
            ColumnReader::Int64ColumnReader(r) => Some(r),
            _ => None,
        })
        .map(|v| v.into_iter().map(|x: i64| x as u64).collect())
    }

    pub(crate) fn u32(&self, name: &str) -> Result<Vec<u32>> {
        self.required(name, "INT32", int32).map(|v| v.into_iter().map(|x: i32| x as u32).collect())
    }

    pub(crate) fn u16(&self, name: &str) -> Result<Vec<u16>> {
        self.u32(name)?
            .into_iter()
            .enumerate()
            .map(|(row, x)| u16::try_from(x).map_err(|_| self.bad(row, format!("{name} {x} is above 65535"))))
            .collect()
    }

    pub(crate) fn opt_u32(&self, name: &str) -> Result<Vec<Option<u32>>> {
        let (values, levels) = self.read(name, "INT32", int32)?;
        let mut values = values.into_iter();
        let column: Vec<_> = levels.iter().map(|&l| if l > 0 { values.next() } else { None }).collect();
        Ok(column.into_iter().map(|x| x.map(|x: i32| x as u32)).collect())
    }

    pub(crate) fn bool(&self, name: &str) -> Result<Vec<bool>> {
        self.required(name, "BOOLEAN", |reader| match reader {
            ColumnReader::BoolColumnReader(r) => Some(r),
            _ => None,
        })
    }

    pub(crate) fn str(&self, name: &str) -> Result<Vec<String>> {
        let values = self.required(name, "BYTE_ARRAY", |reader| match reader {
            ColumnReader::ByteArrayColumnReader(r) => Some(r),
            _ => None,
        })?;
        values
            .into_iter()
            .enumerate()
            .map(|(row, v): (usize, ByteArray)| {
                String::from_utf8(v.data().to_vec())
                    .map_err(|_| self.bad(row, format!("{name} is not UTF-8")))
            })
            .collect()
    }

    fn required<T: DataType>(
        &self,
        name: &str,
        physical: &str,
        pick: fn(ColumnReader) -> Option<ColumnReaderImpl<T>>,
    ) -> Result<Vec<T::T>> {
        let (values, levels) = self.read(name, physical, pick)?;
        match levels.iter().position(|&l| l == 0) {
            Some(row) => Err(self.bad(row, format!("{name} is NULL"))),
            None => Ok(values),
        }
    }

    /// The values that are not NULL and, for nullable columns, a definition level per row.
    fn read<T: DataType>(
        &self,
        name: &str,
        physical: &str,
        pick: fn(ColumnReader) -> Option<ColumnReaderImpl<T>>,
    ) -> Result<(Vec<T::T>, Vec<i16>)> {
        guarded(self.path, || self.read_unguarded(name, physical, pick))
    }

    fn read_unguarded<T: DataType>(
        &self,
        name: &str,
        physical: &str,
        pick: fn(ColumnReader) -> Option<ColumnReaderImpl<T>>,
    ) -> Result<(Vec<T::T>, Vec<i16>)> {
        let parquet = |source| StoreError::Parquet { path: self.path.to_path_buf(), source };
        let (mut values, mut levels) = (Vec::new(), Vec::new());
        for group in 0..self.reader.num_row_groups() {
            let group = self.reader.get_row_group(group).map_err(parquet)?;
            let index =
                column_index(&*group, name).ok_or_else(|| self.bad(0, format!("no column {name}")))?;
            let column = group.get_column_reader(index).map_err(parquet)?;
            let mut column =
                pick(column).ok_or_else(|| self.bad(0, format!("column {name} is not {physical}")))?;
            let nullable = group.metadata().column(index).column_descr().max_def_level() > 0;
            loop {
                let before = values.len();
                let (rows, _, _) = column
                    .read_records(BATCH, nullable.then_some(&mut levels), None, &mut values)
                    .map_err(parquet)?;
                if rows == 0 {
                    break;
                }
                if !nullable && values.len() == before {
                    return Err(self.bad(before, format!("column {name} ends early")));
                }
            }
        }
        Ok((values, levels))
    }
}

/// Turns a panic of the Parquet reader into an error. The reader asserts in places where it should report a damaged
/// file, and a damaged table must not end the program.
fn guarded<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("damaged");
        Err(StoreError::Parquet { path: path.to_path_buf(), source: ParquetError::General(text.to_string()) })
    })
}

fn int32(reader: ColumnReader) -> Option<ColumnReaderImpl<Int32Type>> {
    match reader {
        ColumnReader::Int32ColumnReader(r) => Some(r),
        _ => None,
    }
}

fn column_index(group: &dyn RowGroupReader, name: &str) -> Option<usize> {
    group.metadata().columns().iter().position(|c| c.column_path().string() == name)
}
