// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parquet files as columns of plain values, one row group at a time. Input: any flat table of integers, booleans,
//! text and floating-point numbers. Output: the same, in the lake's types: every integer is an INT64.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use kprism_store::guarded;
use parquet::basic::{Compression, Encoding, Repetition, Type as Physical, ZstdLevel};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::column::writer::ColumnWriterImpl;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type};

/// Most rows of a row group.
pub const GROUP: usize = 1_000_000;

/// The values of a column; `None` is SQL's NULL.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// INT64.
    Int(Vec<Option<i64>>),
    /// DOUBLE.
    Double(Vec<Option<f64>>),
    /// BOOLEAN.
    Bool(Vec<Option<bool>>),
    /// UTF8.
    Text(Vec<Option<ByteArray>>),
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Its values.
    pub values: Values,
}

impl Column {
    /// A column of integers.
    pub fn int(name: &str, values: impl IntoIterator<Item = Option<i64>>) -> Self {
        Column { name: name.into(), values: Values::Int(values.into_iter().collect()) }
    }

    /// A column of text.
    pub fn text<'a>(name: &str, values: impl IntoIterator<Item = Option<&'a str>>) -> Self {
        let values = values.into_iter().map(|text| text.map(ByteArray::from)).collect();
        Column { name: name.into(), values: Values::Text(values) }
    }
}

impl Values {
    /// Number of rows.
    pub fn len(&self) -> usize {
        match self {
            Values::Int(v) => v.len(),
            Values::Double(v) => v.len(),
            Values::Bool(v) => v.len(),
            Values::Text(v) => v.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// No rows, of the same type.
    pub fn none(&self) -> Self {
        match self {
            Values::Int(_) => Values::Int(Vec::new()),
            Values::Double(_) => Values::Double(Vec::new()),
            Values::Bool(_) => Values::Bool(Vec::new()),
            Values::Text(_) => Values::Text(Vec::new()),
        }
    }

    /// As many rows of the same type, all NULL.
    pub fn unknown(&self) -> Self {
        let mut values = self.none();
        values.pad(self.len());
        values
    }

    /// Appends NULLs up to `rows` rows.
    pub fn pad(&mut self, rows: usize) {
        match self {
            Values::Int(v) => v.resize(rows, None),
            Values::Double(v) => v.resize(rows, None),
            Values::Bool(v) => v.resize(rows, None),
            Values::Text(v) => v.resize(rows, None),
        }
    }

    /// Appends the values of the same type. False if the types differ.
    pub fn append(&mut self, more: Values) -> bool {
        match (self, more) {
            (Values::Int(v), Values::Int(more)) => v.extend(more),
            (Values::Double(v), Values::Double(more)) => v.extend(more),
            (Values::Bool(v), Values::Bool(more)) => v.extend(more),
            (Values::Text(v), Values::Text(more)) => v.extend(more),
            _ => return false,
        }
        true
    }

    /// The rows of these numbers, in this order.
    pub fn pick(&self, rows: &[usize]) -> Self {
        fn each<T: Clone>(values: &[T], rows: &[usize]) -> Vec<T> {
            rows.iter().map(|&row| values[row].clone()).collect()
        }
        match self {
            Values::Int(v) => Values::Int(each(v, rows)),
            Values::Double(v) => Values::Double(each(v, rows)),
            Values::Bool(v) => Values::Bool(each(v, rows)),
            Values::Text(v) => Values::Text(each(v, rows)),
        }
    }

    /// The integers, if it is a column of integers.
    pub fn ints(&self) -> &[Option<i64>] {
        match self {
            Values::Int(values) => values,
            _ => &[],
        }
    }

    /// A row as text, if it is a column of text.
    pub fn str_at(&self, row: usize) -> Option<&str> {
        match self {
            Values::Text(values) => {
                values.get(row)?.as_ref().and_then(|text| std::str::from_utf8(text.data()).ok())
            }
            _ => None,
        }
    }

    fn physical(&self) -> Physical {
        match self {
            Values::Int(_) => Physical::INT64,
            Values::Double(_) => Physical::DOUBLE,
            Values::Bool(_) => Physical::BOOLEAN,
            Values::Text(_) => Physical::BYTE_ARRAY,
        }
    }
}

/// A table's file, opened.
pub struct Source {
    path: PathBuf,
    reader: SerializedFileReader<File>,
}

impl Source {
    /// Opens a file.
    ///
    /// # Errors
    /// It cannot be read, or is not Parquet.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| path.display().to_string())?;
        let reader =
            guarded(path, || SerializedFileReader::new(file).with_context(|| path.display().to_string()))?;
        Ok(Source { path: path.to_path_buf(), reader })
    }

    /// Number of row groups.
    pub fn groups(&self) -> usize {
        self.reader.num_row_groups()
    }

    /// Number of rows, as the file says.
    pub fn rows(&self) -> i64 {
        self.reader.metadata().file_metadata().num_rows()
    }

    /// The file's own notes: keys that begin with `kprism.`.
    pub fn notes(&self) -> Vec<KeyValue> {
        let all = self.reader.metadata().file_metadata().key_value_metadata();
        all.into_iter().flatten().filter(|note| note.key.starts_with("kprism.")).cloned().collect()
    }

    /// The columns, without rows.
    ///
    /// # Errors
    /// A column has a type that no table of a run has.
    pub fn columns(&self) -> Result<Vec<Column>> {
        let schema = self.reader.metadata().file_metadata().schema_descr();
        let empty = |column: &Arc<parquet::schema::types::ColumnDescriptor>| {
            let values = match column.physical_type() {
                Physical::INT32 | Physical::INT64 => Values::Int(Vec::new()),
                Physical::FLOAT | Physical::DOUBLE => Values::Double(Vec::new()),
                Physical::BOOLEAN => Values::Bool(Vec::new()),
                Physical::BYTE_ARRAY => Values::Text(Vec::new()),
                other => bail!(
                    "{}: column {}: type {other} is not one of a run",
                    self.path.display(),
                    column.name()
                ),
            };
            if column.max_rep_level() > 0 {
                bail!("{}: column {}: lists are not read", self.path.display(), column.name());
            }
            Ok(Column { name: column.path().string(), values })
        };
        schema.columns().iter().map(empty).collect()
    }

    /// The columns of a row group.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn group(&self, number: usize) -> Result<Vec<Column>> {
        guarded(&self.path, || self.group_unguarded(number))
    }

    fn group_unguarded(&self, number: usize) -> Result<Vec<Column>> {
        let bad = || self.path.display().to_string();
        let group = self.reader.get_row_group(number).with_context(bad)?;
        let rows = usize::try_from(group.metadata().num_rows()).with_context(bad)?;
        let mut columns = self.columns()?;
        for (at, column) in columns.iter_mut().enumerate() {
            let name = column.name.clone();
            let bad = || format!("{}: column {name}", self.path.display());
            column.values = match group.get_column_reader(at).with_context(bad)? {
                ColumnReader::Int32ColumnReader(reader) => {
                    let unsigned = is_unsigned(group.metadata().column(at).column_descr());
                    let widen = |v: i32| if unsigned { i64::from(v as u32) } else { i64::from(v) };
                    Values::Int(
                        read(reader, rows).with_context(bad)?.into_iter().map(|v| v.map(widen)).collect(),
                    )
                }
                ColumnReader::Int64ColumnReader(reader) => Values::Int(read(reader, rows).with_context(bad)?),
                ColumnReader::FloatColumnReader(reader) => Values::Double(
                    read(reader, rows).with_context(bad)?.into_iter().map(|v| v.map(f64::from)).collect(),
                ),
                ColumnReader::DoubleColumnReader(reader) => {
                    Values::Double(read(reader, rows).with_context(bad)?)
                }
                ColumnReader::BoolColumnReader(reader) => Values::Bool(read(reader, rows).with_context(bad)?),
                ColumnReader::ByteArrayColumnReader(reader) => {
                    Values::Text(read(reader, rows).with_context(bad)?)
                }
                _ => bail!("{}: not a type of a run's tables", bad()),
            };
            if column.values.len() != rows {
                bail!("{}: {} values in {rows} rows", bad(), column.values.len());
            }
        }
        Ok(columns)
    }
}

fn is_unsigned(column: &parquet::schema::types::ColumnDescriptor) -> bool {
    use parquet::basic::LogicalType;
    matches!(column.logical_type_ref(), Some(LogicalType::Integer(int)) if !int.is_signed)
}

/// Rows read at once. A false row count in a file costs no more memory than this.
const BATCH: usize = 64 * 1024;

fn read<T: DataType>(mut reader: ColumnReaderImpl<T>, rows: usize) -> Result<Vec<Option<T::T>>> {
    let mut all = Vec::new();
    while all.len() < rows {
        let (mut levels, mut values) = (Vec::new(), Vec::new());
        let (records, ..) =
            reader.read_records(BATCH.min(rows - all.len()), Some(&mut levels), None, &mut values)?;
        if records == 0 {
            break;
        }
        match levels.is_empty() {
            true => all.extend(values.into_iter().map(Some)),
            false => {
                let mut values = values.into_iter();
                all.extend(levels.iter().map(|&level| if level > 0 { values.next() } else { None }));
            }
        }
    }
    Ok(all)
}

/// A table's file, being written.
pub struct Sink {
    path: PathBuf,
    writer: SerializedFileWriter<BufWriter<File>>,
    columns: Vec<Column>,
}

impl Sink {
    /// Creates a file with these columns (their rows are not looked at).
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, table: &str, columns: &[Column], notes: Vec<KeyValue>) -> Result<Self> {
        let fields = columns.iter().map(|column| {
            let mut field = Type::primitive_type_builder(&column.name, column.values.physical())
                .with_repetition(Repetition::OPTIONAL);
            if matches!(column.values, Values::Text(_)) {
                field = field.with_logical_type(Some(parquet::basic::LogicalType::String));
            }
            Ok(Arc::new(field.build()?))
        });
        let fields = fields.collect::<Result<Vec<_>>>()?;
        let schema = Arc::new(Type::group_type_builder(table).with_fields(fields).build()?);
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by("kprism".into())
            .set_key_value_metadata(Some(notes));
        for column in columns.iter().filter(|column| matches!(column.values, Values::Int(_))) {
            // Sorted keys and numbers that rise are small as differences; of others Zstandard finds more in plain ones.
            let encoding = match &*column.name {
                "part" | "stack_key" | "name_key" | "node_id" | "func_id" | "start_ns" | "time_ns" => {
                    Encoding::DELTA_BINARY_PACKED
                }
                _ => Encoding::PLAIN,
            };
            let path = ColumnPath::from(&*column.name);
            properties = properties
                .set_column_dictionary_enabled(path.clone(), false)
                .set_column_encoding(path, encoding);
        }
        let properties = properties.build();
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let writer = SerializedFileWriter::new(BufWriter::new(file), schema, Arc::new(properties))
            .with_context(|| path.display().to_string())?;
        let columns =
            columns.iter().map(|c| Column { name: c.name.clone(), values: c.values.none() }).collect();
        Ok(Sink { path: path.to_path_buf(), writer, columns })
    }

    /// Writes rows, as groups of at most [`GROUP`]. A column that is missing is NULL.
    ///
    /// # Errors
    /// The disk is full, or a column is of another type.
    pub fn write(&mut self, rows: Vec<Column>) -> Result<()> {
        let length = rows.first().map_or(0, |column| column.values.len());
        let mut ordered = Vec::new();
        for column in &self.columns {
            let found = rows.iter().find(|row| row.name == column.name);
            let mut values = column.values.none();
            if let Some(found) = found
                && !values.append(found.values.clone())
            {
                bail!("{}: column {} has another type in another file", self.path.display(), column.name);
            }
            values.pad(length);
            ordered.push(values);
        }
        for from in (0..length).step_by(GROUP) {
            self.group(&ordered, from..length.min(from + GROUP))
                .with_context(|| self.path.display().to_string())?;
        }
        Ok(())
    }

    fn group(&mut self, columns: &[Values], rows: std::ops::Range<usize>) -> Result<()> {
        let mut group = self.writer.next_row_group()?;
        for values in columns {
            let Some(mut out) = group.next_column()? else { break };
            match values {
                Values::Int(v) => write(out.typed::<Int64Type>(), &v[rows.clone()])?,
                Values::Double(v) => write(out.typed::<DoubleType>(), &v[rows.clone()])?,
                Values::Bool(v) => write(out.typed::<BoolType>(), &v[rows.clone()])?,
                Values::Text(v) => write(out.typed::<ByteArrayType>(), &v[rows.clone()])?,
            }
            out.close()?;
        }
        group.close()?;
        Ok(())
    }

    /// Ends the file, and waits until it is on the disk. Gives its size in bytes.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(self) -> Result<u64> {
        let bad = || self.path.display().to_string();
        let file = self.writer.into_inner().with_context(bad)?;
        let file = file.into_inner().map_err(|error| error.into_error()).with_context(bad)?;
        file.sync_all().with_context(bad)?;
        Ok(file.metadata().with_context(bad)?.len())
    }
}

fn write<T: DataType>(writer: &mut ColumnWriterImpl<'_, T>, rows: &[Option<T::T>]) -> Result<()> {
    let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
    let values: Vec<T::T> = rows.iter().flatten().cloned().collect();
    writer.write_batch(&values, Some(&levels), None)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(path: &Path) -> Result<usize> {
        let source = Source::open(path)?;
        let mut rows = source.columns()?.len();
        for group in 0..source.groups() {
            rows += source.group(group)?.len();
        }
        Ok(rows + source.notes().len())
    }

    #[test]
    fn a_damaged_file_is_rows_or_an_error_that_names_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("t.parquet");
        let columns = || {
            vec![
                Column::int("node_id", (0..300).map(Some)),
                Column::int("insns", (0..300).map(|n| (n % 3 > 0).then_some(n * n))),
                Column::text("name", (0..300).map(|n| if n % 2 == 0 { Some("even") } else { None })),
                Column { name: "share".into(), values: Values::Double(vec![Some(0.5); 300]) },
                Column { name: "kernel".into(), values: Values::Bool(vec![Some(true); 300]) },
            ]
        };
        let notes = vec![KeyValue::new("kprism.x".into(), "y".to_owned())];
        let mut sink = Sink::create(&path, "t", &columns(), notes).unwrap();
        sink.write(columns()).unwrap();
        sink.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(all(&path).unwrap(), 11);
        let damaged = place.path().join("damaged.parquet");
        let mut errors = 0;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            for change in [whole[at] ^ 1, whole[at] ^ 0x80, 0xff, 0] {
                bytes[at] = change;
                std::fs::write(&damaged, &bytes).unwrap();
                if let Err(why) = all(&damaged) {
                    errors += 1;
                    assert!(format!("{why:#}").contains("damaged.parquet"), "{at}: {why:#}");
                }
            }
            std::fs::write(&damaged, &whole[..at]).unwrap();
            assert!(all(&damaged).is_err(), "cut at {at}");
        }
        assert!(errors > 100, "{errors}");
    }
}
