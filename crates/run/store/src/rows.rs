// SPDX-License-Identifier: MIT OR Apache-2.0
//! The columns of a table that is about to be written. The input is rows in memory and a function from a row to a value;
//! the output is the column's values, a chunk at a time. A timeline has a million rows and more: whole columns beside
//! it would take more memory than the timeline.

use std::ops::Range;

use bytes::Bytes;
use parquet::data_type::ByteArray;

/// The values of one column. Integers are stored bit for bit.
pub(crate) enum Column<'a> {
    U64(Rows<'a, i64>),
    U32(Rows<'a, i64>),
    /// `None` is SQL's NULL.
    OptU32(Rows<'a, Option<i64>>),
    /// `None` is SQL's NULL.
    OptU64(Rows<'a, Option<i64>>),
    Str(Rows<'a, ByteArray>),
    Bool(Rows<'a, bool>),
}

/// Rows in a chunk: a multiple of the 1024 rows that the Parquet writer handles at once, so that pages end at the same
/// rows whatever the size of the chunks.
const CHUNK: usize = 16 * 1024;

/// Values that are computed when they are written.
pub(crate) struct Rows<'a, T> {
    count: usize,
    fill: Fill<'a, T>,
}

/// Appends the values of a range of rows.
type Fill<'a, T> = Box<dyn Fn(Range<usize>, &mut Vec<T>) + 'a>;

impl<'a, T> Rows<'a, T> {
    /// The value `get` for each element of a slice.
    fn of<R>(rows: &'a [R], get: impl Fn(&'a R) -> T + 'a) -> Self {
        let fill = move |range: Range<usize>, out: &mut Vec<T>| out.extend(rows[range].iter().map(&get));
        Rows { count: rows.len(), fill: Box::new(fill) }
    }

    /// The value `get` for each element of a vector.
    fn owned<R: 'a>(rows: Vec<R>, get: impl Fn(&R) -> T + 'a) -> Self {
        let count = rows.len();
        let fill = move |range: Range<usize>, out: &mut Vec<T>| out.extend(rows[range].iter().map(&get));
        Rows { count, fill: Box::new(fill) }
    }

    /// Passes the values on, in order, chunk by chunk.
    pub fn chunks<E>(&self, mut take: impl FnMut(&[T]) -> Result<(), E>) -> Result<(), E> {
        let mut chunk = Vec::with_capacity(self.count.min(CHUNK));
        for start in (0..self.count).step_by(CHUNK) {
            chunk.clear();
            (self.fill)(start..self.count.min(start + CHUNK), &mut chunk);
            take(&chunk)?;
        }
        Ok(())
    }
}

impl<'a> Column<'a> {
    pub fn is_empty(&self) -> bool {
        let count = match self {
            Column::U64(rows) | Column::U32(rows) => rows.count,
            Column::OptU32(rows) | Column::OptU64(rows) => rows.count,
            Column::Str(rows) => rows.count,
            Column::Bool(rows) => rows.count,
        };
        count == 0
    }

    /// The numbers of the rows, from 0.
    pub fn numbers(count: usize) -> Self {
        let fill = |range: Range<usize>, out: &mut Vec<i64>| out.extend(range.map(|row| row as i64));
        Column::U32(Rows { count, fill: Box::new(fill) })
    }

    pub fn u64s<R>(rows: &'a [R], get: impl Fn(&R) -> u64 + 'a) -> Self {
        Column::U64(Rows::of(rows, move |row| get(row).cast_signed()))
    }

    pub fn u32s<R>(rows: &'a [R], get: impl Fn(&R) -> u32 + 'a) -> Self {
        Column::U32(Rows::of(rows, move |row| get(row).into()))
    }

    pub fn opt_u32s<R>(rows: &'a [R], get: impl Fn(&R) -> Option<u32> + 'a) -> Self {
        Column::OptU32(Rows::of(rows, move |row| get(row).map(i64::from)))
    }

    pub fn bools<R>(rows: &'a [R], get: impl Fn(&R) -> bool + 'a) -> Self {
        Column::Bool(Rows::of(rows, get))
    }

    pub fn strs<R>(rows: &'a [R], get: impl Fn(&R) -> &str + 'a) -> Self {
        Column::Str(Rows::of(rows, move |row| ByteArray::from(get(row))))
    }

    /// A text out of a few: `get` returns its place in `texts`.
    pub fn of_few<R>(rows: &'a [R], texts: &[&'static str], get: impl Fn(&R) -> usize + 'a) -> Self {
        let texts: Vec<ByteArray> =
            texts.iter().map(|text| Bytes::from_static(text.as_bytes()).into()).collect();
        Column::Str(Rows::of(rows, move |row| texts[get(row)].clone()))
    }

    pub fn owned_u64s(values: Vec<u64>) -> Self {
        Column::U64(Rows::owned(values, |value| value.cast_signed()))
    }

    pub fn owned_u32s(values: Vec<u32>) -> Self {
        Column::U32(Rows::owned(values, |value| (*value).into()))
    }

    pub fn owned_opt_u64s(values: Vec<Option<u64>>) -> Self {
        Column::OptU64(Rows::owned(values, |value| value.map(u64::cast_signed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_join_to_all_values() {
        for count in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let values: Vec<u64> = (0..count as u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
            let column = Column::u64s(&values, |value| *value);
            assert_eq!(column.is_empty(), count == 0);
            let Column::U64(rows) = &column else { panic!("not 64 bits") };
            let (mut all, mut largest) = (Vec::new(), 0);
            let taken = rows.chunks(|chunk| {
                largest = largest.max(chunk.len());
                all.extend(chunk.iter().map(|value| value.cast_unsigned()));
                Ok::<(), ()>(())
            });
            assert_eq!((taken, &all), (Ok(()), &values));
            assert!(largest <= CHUNK);
        }
    }
}
