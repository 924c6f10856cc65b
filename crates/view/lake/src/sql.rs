// SPDX-License-Identifier: MIT OR Apache-2.0
//! A query over a lake, for the program `kprism-sql`. Input: the lake, a query, limits. Output: a request, which names every
//! file that counts, so that what changes in the lake meanwhile does not change the answer.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail};
use kprism_sql::{Query, Request, quoted};

use crate::layout::{Lake, OBJECT_STORAGE};
use crate::views::{READING, VIEWS, missing, named, of_tables, why_absent};

/// Makes a request. Called while no file of the lake is renamed ([`crate::reading`]).
///
/// # Errors
/// The lake cannot be read, or is empty.
pub(crate) fn request(lake: &Lake, query: Query) -> Result<Request> {
    if let Some(scheme) =
        ["s3://", "https://", "http://", "gs://", "az://"].iter().find(|s| query.text.contains(**s))
    {
        bail!("{scheme}: only files are read; {OBJECT_STORAGE}");
    }
    let tables = lake.tables()?;
    if !tables.iter().any(|table| table == "manifest") {
        bail!("{}: no runs; `kprism lake add RUN --to {0}` adds some", lake.root().display());
    }
    let root = std::path::absolute(lake.root())?;
    let mut lists = std::collections::BTreeMap::new();
    for table in &tables {
        let mut list = String::new();
        for file in lake.files(table)? {
            let comma = if list.is_empty() { "" } else { ", " };
            let _ = write!(list, "{comma}{}", quoted(&root.join(&file.path).display().to_string()));
        }
        lists.insert(table.clone(), list);
    }
    let tables: Vec<String> = tables.into_iter().filter(|table| !lists[table].is_empty()).collect();
    let files = |table: &str| format!("read_parquet([{}], {READING})", lists[table]);
    let named = named(&query.text);
    let is_meant = |name: &str| named.as_ref().is_none_or(|names| names.contains(name));
    // Every other view is of the runs that count.
    let meant: Vec<String> = tables
        .iter()
        .filter(|table| *table == "manifest" || is_meant(table) || is_meant(&format!("{table}_files")))
        .cloned()
        .collect();
    let mut views: Vec<String> = of_tables(&meant, "*", files)
        .into_iter()
        .map(|(name, query)| format!("CREATE VIEW {name} AS {query}"))
        .collect();
    let mut absent = Vec::new();
    for (name, query) in VIEWS.into_iter().filter(|(name, _)| is_meant(name)) {
        match missing(query, &tables) {
            missing if missing.is_empty() => views.push(format!("CREATE VIEW {name} AS\n{query}")),
            missing => {
                absent.push((name.to_owned(), why_absent(&missing)));
            }
        }
    }
    let known =
        tables.iter().map(String::as_str).chain(VIEWS.map(|(name, _)| name)).map(str::to_owned).collect();
    Ok(Request { views, absent, known, query })
}

/// Starts `kprism-sql` in the place of this process. Files of the lake are kept until it ends.
///
/// # Errors
/// The lake cannot be read, or the program is missing. If nothing fails, there is no return.
pub fn become_query(lake: &Lake, query: Query) -> Result<std::convert::Infallible> {
    use std::io::{Seek as _, Write as _};
    use std::os::unix::process::CommandExt as _;

    let program = program()?;
    let (reader, request) = crate::reading(lake, || request(lake, query))?;
    let mut file = tempfile::tempfile().context("a temporary file")?;
    file.write_all(&serde_json::to_vec(&request)?)
        .and_then(|()| file.rewind())
        .context("a temporary file")?;
    reader.survive()?;
    let error = std::process::Command::new(&program).stdin(file).exec();
    Err(error).with_context(|| program.display().to_string())
}

/// The program `kprism-sql`.
///
/// # Errors
/// It is not there.
fn program() -> Result<PathBuf> {
    kprism_lab::find_sql().map_err(|_| match std::env::var_os("KPRISM_SQL") {
        Some(named) => anyhow!("KPRISM_SQL={}: no such file", PathBuf::from(named).display()),
        None => anyhow!(
            "kprism-sql, which has DuckDB in it, is not beside {}: `make sql` builds it, or KPRISM_SQL names it; any DuckDB \
             reads what `kprism lake views` prints",
            std::env::current_exe().unwrap_or_default().display()
        ),
    })
}
