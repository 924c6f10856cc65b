// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of probes as columns, for a table that other tools read.

use anyhow::Result;
use kprism_probe::stream::shape::Shape;
use kprism_store::Values;
use serde_json::Value;

use super::Loaded;

/// Names of the values that any probe collects, each once.
pub fn names(loaded: &Loaded) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for item in loaded.description.probes.iter().flat_map(|probe| &probe.items) {
        if !names.contains(&item.name.as_str()) {
            names.push(&item.name);
        }
    }
    names
}

/// One row a record: `time_ns`, `cpu`, `pid`, `tid`, `probe`, and a column for each value of any probe. Numbers are
/// numbers, structures and arrays are JSON. Also returns the number of records.
///
/// # Errors
/// As [`Loaded::each`].
pub fn columns(loaded: &Loaded) -> Result<(Vec<(String, Values)>, usize)> {
    let names = names(loaded);
    let (mut rows, mut all) = (Vec::new(), vec![Vec::new(); names.len()]);
    loaded.each(|hit, mut values| {
        for (name, column) in names.iter().zip(&mut all) {
            let at = values.iter().position(|(own, _)| own == name);
            column.push(at.and_then(|at| values.swap_remove(at).1.ok()));
        }
        rows.push((hit.time_ns, hit.cpu, hit.pid, hit.tid, usize::from(hit.probe)));
        Ok(true)
    })?;
    let unsigned = |get: fn(&(u64, u16, u32, u32, usize)) -> u64| {
        Values::Unsigned(rows.iter().map(|row| Some(get(row))).collect())
    };
    let place = |row: &(u64, u16, u32, u32, usize)| Some(loaded.description.probes[row.4].place.clone());
    let mut columns = vec![
        ("time_ns".to_owned(), unsigned(|row| row.0)),
        ("cpu".to_owned(), unsigned(|row| row.1.into())),
        ("pid".to_owned(), unsigned(|row| row.2.into())),
        ("tid".to_owned(), unsigned(|row| row.3.into())),
        ("probe".to_owned(), Values::Text(rows.iter().map(place).collect())),
    ];
    for (name, values) in names.iter().zip(all) {
        let items = loaded.description.probes.iter().flat_map(|probe| &probe.items);
        let shapes: Vec<&Shape> =
            items.filter(|i| i.name == *name).filter_map(|i| i.shape.as_ref()).collect();
        columns.push(((*name).to_owned(), typed(&shapes, values)));
    }
    Ok((columns, rows.len()))
}

/// A column's values, as what all of its shapes are.
fn typed(shapes: &[&Shape], values: Vec<Option<Value>>) -> Values {
    let all = |is: fn(&Shape) -> bool| !shapes.is_empty() && shapes.iter().all(|shape| is(shape));
    let address = |value: Value| u64::from_str_radix(value.as_str()?.strip_prefix("0x")?, 16).ok();
    let mapped = values.into_iter();
    if all(|s| matches!(s, Shape::Int { signed: true, .. })) {
        return Values::Signed(mapped.map(|v| v?.as_i64()).collect());
    }
    if all(|s| matches!(s, Shape::Int { signed: false, .. })) {
        return Values::Unsigned(mapped.map(|v| v?.as_u64()).collect());
    }
    if all(|s| matches!(s, Shape::Pointer)) {
        return Values::Unsigned(mapped.map(|v| address(v?)).collect());
    }
    if all(|s| matches!(s, Shape::Float { .. })) {
        return Values::Float(mapped.map(|v| v?.as_f64()).collect());
    }
    if all(|s| matches!(s, Shape::Bool)) {
        return Values::Bool(mapped.map(|v| v?.as_bool()).collect());
    }
    let shown = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Values::Text(mapped.map(|v| v.map(shown)).collect())
}
