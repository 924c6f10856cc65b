// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conversion of columns of plain values to Parquet files and back.
//!
//! The input is a table's columns; the output is its file, or the reverse. Only the types that the tables need are
//! supported: integers (some of them nullable), strings, and booleans. Every integer is a signed INT64, as Spark and SQL have no
//! others; addresses and keys are bit patterns. Values are computed when they are written, a chunk at a time ([`crate::rows`]). All rows of a table are one row group, except in tables that are too large for
//! memory. Encodings are those that every reader knows; pages are compressed with Zstandard, and `created_by` is fixed, so the same values always
//! give the same bytes.
//!
//! Metadata of each file: `kprism.schema` (2), `kprism.table`, `kprism.clock` (the run's), `kprism.units` (JSON: the unit of each
//! column that has one).

use crate::marks::Marks;
use crate::rows::Column;
use crate::{Result, StoreError, io_at};
use bytes::Bytes;
use kprism_manifest::hash::Mark;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// Number of rows read at once. This limits the allocation that a false row count can cause.
const BATCH: usize = 64 * 1024;

/// Version of the tables.
pub(crate) const SCHEMA: u32 = 2;

/// Names of the files' metadata.
pub(crate) const SCHEMA_KEY: &str = "kprism.schema";

/// Metadata of a table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct About<'a> {
    /// Name of the table.
    pub table: &'a str,
    /// Name of the clock of its times.
    pub clock: &'a str,
}

/// The unit of a column, which is the end of its name.
fn unit(column: &str) -> Option<&'static str> {
    let is = |end: &str| column == end || column.strip_suffix(end).is_some_and(|rest| rest.ends_with('_'));
    [("ns", "ns"), ("bytes", "bytes"), ("insns", "instructions"), ("instructions", "instructions")]
        .into_iter()
        .find(|(end, _)| is(end))
        .map(|(_, unit)| unit)
}

/// Writes a table completely or not at all, and returns its mark. An empty table has no row group: an empty one would be
/// legal, but some readers refuse it.
pub(crate) fn write_table(path: &Path, about: About<'_>, columns: Vec<(&str, Column<'_>)>) -> Result<String> {
    write_groups(path, about, std::iter::once(columns))
}

/// Writes a table that is too large for memory, one row group at a time, completely or not at all, and returns its mark.
/// There must be a first group, which may be empty.
pub(crate) fn write_groups<'a>(
    path: &Path,
    about: About<'_>,
    groups: impl Iterator<Item = Vec<(&'a str, Column<'a>)>>,
) -> Result<String> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = Path::new(&part);
    let written = write_part(path, part, about, groups)
        .and_then(|mark| std::fs::rename(part, path).map_err(io_at(path)).map(|()| mark));
    if written.is_err() {
        // On a full disk, an incomplete file would only take space.
        let _ = std::fs::remove_file(part);
    }
    written
}

fn write_part<'a>(
    path: &Path,
    part: &Path,
    about: About<'_>,
    groups: impl Iterator<Item = Vec<(&'a str, Column<'a>)>>,
) -> Result<String> {
    let bad = |source| StoreError::Parquet { path: path.to_path_buf(), source };
    let to = Marked { file: crate::fresh(part).map_err(io_at(path))?, mark: Mark::default() };
    let mut file = Some(std::io::BufWriter::new(to));
    let mut writer = None;
    for columns in groups {
        if let Some(file) = file.take() {
            writer = Some(open_writer(file, about, &columns).map_err(bad)?);
        }
        if let Some(writer) = writer.as_mut().filter(|_| columns.iter().any(|(_, values)| !values.is_empty()))
        {
            write_group(writer, &columns).map_err(bad)?;
        }
    }
    match writer {
        Some(writer) => {
            let file = writer.into_inner().map_err(bad)?;
            Ok(file.into_inner().map_err(|e| io_at(path)(e.into_error()))?.mark.finish())
        }
        None => Ok(Mark::default().finish()),
    }
}

/// A file that is marked while it is written.
struct Marked {
    file: std::fs::File,
    mark: Mark,
}

impl std::io::Write for Marked {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.mark.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn open_writer<W: std::io::Write + Send>(
    out: W,
    about: About<'_>,
    columns: &[(&str, Column<'_>)],
) -> Result<SerializedFileWriter<W>, ParquetError> {
    let mut schema = format!("message {} {{ ", about.table);
    let mut properties = properties();
    for (column, values) in columns {
        let _ = match values {
            Column::U64(_) | Column::U32(_) => write!(schema, "REQUIRED INT64 {column}; "),
            Column::OptU32(_) | Column::OptU64(_) => write!(schema, "OPTIONAL INT64 {column}; "),
            Column::Str(_) => write!(schema, "REQUIRED BYTE_ARRAY {column} (UTF8); "),
            Column::Bool(_) => write!(schema, "REQUIRED BOOLEAN {column}; "),
        };
        let is_first = columns.first().is_some_and(|(first, _)| first == column);
        properties = match (values, *column) {
            (Column::Str(_) | Column::Bool(_), _) => properties,
            // Few values: a dictionary, which is the default.
            (_, "cpu" | "pid" | "tgid" | "address_space" | "page_bytes" | "access_kind" | "geometries") => {
                properties
            }
            // They rise.
            (_, "start_ns" | "time_ns") => encoded(properties, column, Encoding::DELTA_BINARY_PACKED),
            (Column::U32(_), _) if is_first => encoded(properties, column, Encoding::DELTA_BINARY_PACKED),
            // Zstandard finds more in plain numbers than in their differences.
            _ => encoded(properties, column, Encoding::PLAIN),
        };
    }
    schema.push('}');
    let units: std::collections::BTreeMap<&str, &str> =
        columns.iter().filter_map(|(column, _)| Some((*column, unit(column)?))).collect();
    // Equal runs have equal tables, so none names its run: the run's manifest names its tables.
    let told = vec![
        (SCHEMA_KEY, SCHEMA.to_string()),
        ("kprism.table", about.table.to_owned()),
        ("kprism.clock", about.clock.to_owned()),
        ("kprism.units", serde_json::to_string(&units).unwrap_or_default()),
    ];
    let told = told.into_iter().map(|(key, value)| KeyValue::new(key.to_owned(), value)).collect();
    let properties = properties.set_key_value_metadata(Some(told)).build();
    SerializedFileWriter::new(out, Arc::new(parse_message_type(&schema)?), Arc::new(properties))
}

fn encoded(properties: WriterPropertiesBuilder, column: &str, encoding: Encoding) -> WriterPropertiesBuilder {
    let path = ColumnPath::from(column);
    properties.set_column_dictionary_enabled(path.clone(), false).set_column_encoding(path, encoding)
}

/// Writer properties of every table.
pub(crate) fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by("kprism".to_string())
}

fn write_group<W: std::io::Write + Send>(
    writer: &mut SerializedFileWriter<W>,
    columns: &[(&str, Column<'_>)],
) -> Result<(), ParquetError> {
    let mut group = writer.next_row_group()?;
    for (_, values) in columns {
        let Some(mut out) = group.next_column()? else { break };
        match values {
            Column::U64(rows) | Column::U32(rows) => {
                rows.chunks(|ints| out.typed::<Int64Type>().write_batch(ints, None, None).map(drop))?;
            }
            Column::OptU32(rows) | Column::OptU64(rows) => rows.chunks(|ints| {
                let present: Vec<i64> = ints.iter().flatten().copied().collect();
                let levels: Vec<i16> = ints.iter().map(|x| i16::from(x.is_some())).collect();
                out.typed::<Int64Type>().write_batch(&present, Some(&levels), None).map(drop)
            })?,
            Column::Str(rows) => {
                rows.chunks(|text| out.typed::<ByteArrayType>().write_batch(text, None, None).map(drop))?;
            }
            Column::Bool(rows) => {
                rows.chunks(|bools| out.typed::<BoolType>().write_batch(bools, None, None).map(drop))?;
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
    /// Opens a table. `marks` are those of the run's manifest: a table with another one is not the run's.
    pub(crate) fn open(path: &'a Path, marks: &Marks) -> Result<Self> {
        if path.symlink_metadata().is_err() {
            return Err(StoreError::NoTable { path: path.to_path_buf() });
        }
        let bytes = std::fs::read(path).map_err(io_at(path))?;
        marks.check(path, || Mark::of(&bytes))?;
        let size = bytes.len() as i64;
        let reader = guarded(path, || {
            SerializedFileReader::new(Bytes::from(bytes))
                .map_err(|source| StoreError::Parquet { path: path.to_path_buf(), source })
        })?;
        let table = Table { path, reader };
        table.check_schema()?;
        table.check_ranges(size)?;
        Ok(table)
    }

    /// Fails if the table is of another version.
    fn check_schema(&self) -> Result<()> {
        let told = self.reader.metadata().file_metadata().key_value_metadata();
        let found = told.into_iter().flatten().find(|pair| pair.key == SCHEMA_KEY);
        let found = found.and_then(|pair| pair.value.clone()).unwrap_or_else(|| "1".to_owned());
        match found == SCHEMA.to_string() {
            true => Ok(()),
            false => Err(StoreError::OtherSchema { path: self.path.to_path_buf(), found }),
        }
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

    /// An error that names a row of this table.
    pub(crate) fn bad(&self, row: usize, what: impl Into<String>) -> StoreError {
        StoreError::Table { path: self.path.to_path_buf(), row, what: what.into() }
    }

    /// Returns true if the table has this column. Tables gain columns without another schema.
    pub(crate) fn has(&self, name: &str) -> bool {
        let columns = self.reader.metadata().file_metadata().schema_descr();
        columns.columns().iter().any(|column| column.name() == name)
    }

    pub(crate) fn u64(&self, name: &str) -> Result<Vec<u64>> {
        Ok(self.required(name, "INT64", int64)?.into_iter().map(i64::cast_unsigned).collect())
    }

    pub(crate) fn u32(&self, name: &str) -> Result<Vec<u32>> {
        self.narrow(name, self.required(name, "INT64", int64)?.into_iter())
    }

    pub(crate) fn u16(&self, name: &str) -> Result<Vec<u16>> {
        self.narrow(name, self.required(name, "INT64", int64)?.into_iter())
    }

    fn narrow<T: TryFrom<i64>>(&self, name: &str, values: impl Iterator<Item = i64>) -> Result<Vec<T>> {
        let one = |(row, value)| {
            T::try_from(value).map_err(|_| {
                self.bad(row, format!("{name} {value} does not fit into {} bits", size_of::<T>() * 8))
            })
        };
        values.enumerate().map(one).collect()
    }

    pub(crate) fn opt_u32(&self, name: &str) -> Result<Vec<Option<u32>>> {
        let (values, levels) = self.read(name, "INT64", int64)?;
        let mut values = self.narrow(name, values.into_iter())?.into_iter();
        Ok(levels.iter().map(|&l| if l > 0 { values.next() } else { None }).collect())
    }

    /// A column that an older version's table has not: no value then.
    pub(crate) fn added_u64(&self, name: &str, rows: usize) -> Result<Vec<Option<u64>>> {
        if !self.has(name) {
            return Ok(vec![None; rows]);
        }
        let (values, levels) = self.read(name, "INT64", int64)?;
        let mut values = values.into_iter().map(i64::cast_unsigned);
        Ok(levels.iter().map(|&level| if level > 0 { values.next() } else { None }).collect())
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
///
/// # Errors
/// Those of `read`; and [`StoreError::Parquet`] for a panic.
pub fn guarded<T, E: From<StoreError>>(
    path: &Path,
    read: impl FnOnce() -> std::result::Result<T, E>,
) -> std::result::Result<T, E> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("damaged");
        let source = ParquetError::General(text.to_string());
        Err(StoreError::Parquet { path: path.to_path_buf(), source }.into())
    })
}

fn int64(reader: ColumnReader) -> Option<ColumnReaderImpl<Int64Type>> {
    match reader {
        ColumnReader::Int64ColumnReader(r) => Some(r),
        _ => None,
    }
}

fn column_index(group: &dyn RowGroupReader, name: &str) -> Option<usize> {
    group.metadata().columns().iter().position(|c| c.column_path().string() == name)
}
