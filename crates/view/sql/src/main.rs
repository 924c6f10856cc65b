// SPDX-License-Identifier: MIT OR Apache-2.0
//! Answers one query by an embedded DuckDB. Input: a request on standard input ([`kprism_sql::Request`]). Output: rows on
//! standard output or in a file. A program of its own, because DuckDB is large and most people never need it.
//!
//! Exit codes: 0 rows, 1 no rows, 2 error, 130 after Ctrl-C.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail};
use duckdb::Connection;
use kprism_sql::{Format, Request, quoted};

fn main() -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    match run(&interrupted) {
        Ok(rows) => ExitCode::from(u8::from(rows == 0)),
        Err(_) if interrupted.load(Ordering::Relaxed) => {
            let _ = writeln!(std::io::stderr(), "kprism: interrupted");
            ExitCode::from(130)
        }
        Err(error) => {
            // The binding adds a code that says nothing.
            let said = format!("{error:#}").replace(": Error code 1: Unknown error code", "");
            let _ = writeln!(std::io::stderr(), "kprism: {said}");
            ExitCode::from(2)
        }
    }
}

fn run(interrupted: &Arc<AtomicBool>) -> Result<usize> {
    let request: Request = serde_json::from_reader(std::io::stdin())
        .context("standard input: expected a request; `kprism lake sql` starts this program")?;
    let db = Connection::open_in_memory()?;
    let handle = db.interrupt_handle();
    let mut signals =
        signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM])?;
    let seen = Arc::clone(interrupted);
    std::thread::spawn(move || {
        for _ in &mut signals {
            seen.store(true, Ordering::Relaxed);
            handle.interrupt();
        }
    });
    let scratch = tempfile::Builder::new().prefix("kprism-sql").tempdir()?;
    settings(&db, &request, scratch.path())?;
    for view in &request.views {
        db.execute_batch(view)
            .with_context(|| view.lines().next().unwrap_or_default().chars().take(80).collect::<String>())?;
    }
    db.execute_batch("SET lock_configuration = true")?;
    let text = select(&db, &request.query.text)?;
    let answered = answer(&db, &text, &request.query.format);
    answered.map_err(|error| explain(error, &request))
}

/// Most disk for what does not fit into memory.
const MOST_ON_DISK: &str = "16GB";

/// Most rows of a table for people: all of its cells are in memory, as the columns' widths need them.
const MOST_ROWS: usize = 10_000;

/// Limits, and no extensions from elsewhere.
fn settings(db: &Connection, request: &Request, scratch: &std::path::Path) -> Result<()> {
    db.execute_batch("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")?;
    db.execute_batch(&format!("SET temp_directory = {}", quoted(&scratch.display().to_string())))?;
    // What does not fit goes to files, which are removed at the end. DuckDB's own limits are most of the machine.
    db.execute_batch(&format!("SET max_temp_directory_size = '{MOST_ON_DISK}'"))?;
    let memory = request.query.memory.as_deref().unwrap_or(kprism_sql::MEMORY);
    db.execute_batch(&format!("SET memory_limit = {}", quoted(memory)))
        .with_context(|| format!("--memory {memory}"))?;
    if let Some(threads) = request.query.threads {
        db.execute_batch(&format!("SET threads = {threads}"))
            .with_context(|| format!("--threads {threads}"))?;
    }
    Ok(())
}

/// The query, if it is one SELECT: nothing else can be said to read only.
fn select(db: &Connection, text: &str) -> Result<String> {
    let text = text.trim().trim_end_matches(';').trim_end();
    let parsed: String =
        db.query_row("SELECT json_serialize_sql(?::VARCHAR)::VARCHAR", [text], |row| row.get(0))?;
    let parsed: serde_json::Value = serde_json::from_str(&parsed)?;
    if parsed["error"] == true {
        let why = parsed["error_message"].as_str().unwrap_or("not understood");
        match why.contains("SELECT") {
            true => bail!("only a SELECT is answered: a lake is read, never changed, by SQL"),
            false => bail!("{why}"),
        }
    }
    match parsed["statements"].as_array().map_or(0, Vec::len) {
        1 => Ok(text.to_owned()),
        several => bail!("expected one SELECT, found {several}"),
    }
}

/// Writes the rows to standard output, through a pipe: DuckDB would take the name `/dev/stdout` for that of a file, and rename
/// another over it.
fn to_stdout(db: &Connection, text: &str, options: &str) -> Result<usize> {
    let (mut reader, writer) = std::io::pipe()?;
    let copied = std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::stdout().lock()));
    let to = writer.as_raw_fd();
    let rows =
        db.execute(&format!("COPY ({text}\n) TO '/proc/self/fd/{to}' ({options}, USE_TMP_FILE false)"), []);
    drop(writer);
    match copied.join() {
        // A reader that has read enough.
        Ok(Err(why)) if why.kind() == std::io::ErrorKind::BrokenPipe => Ok(rows.unwrap_or(1)),
        Ok(Err(why)) => Err(why).context("standard output"),
        _ => Ok(rows?),
    }
}

/// Names and types of the query's columns.
fn described(db: &Connection, text: &str) -> Result<Vec<(String, String)>> {
    let mut asked = db.prepare(&format!("DESCRIBE {text}\n"))?;
    let columns = asked.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(columns.collect::<Result<_, _>>()?)
}

/// Writes the rows, and gives their number.
fn answer(db: &Connection, text: &str, format: &Format) -> Result<usize> {
    match format {
        Format::Json => {
            // JSON has no infinity, and nothing that is no number.
            let columns = described(db, text)?;
            let floats = columns.iter().filter(|(_, kind)| matches!(&**kind, "DOUBLE" | "FLOAT"));
            let finite: Vec<String> = floats
                .map(|(name, _)| name.replace('"', "\"\""))
                .map(|name| format!("CASE WHEN isfinite(\"{name}\") THEN \"{name}\" END AS \"{name}\""))
                .collect();
            let text = match finite.is_empty() {
                true => text.to_owned(),
                false => format!("SELECT * REPLACE ({}) FROM ({text}\n)", finite.join(", ")),
            };
            to_stdout(db, &text, "FORMAT json, ARRAY true")
        }
        Format::Csv => to_stdout(db, text, "FORMAT csv, HEADER true"),
        Format::Parquet(file) => {
            let part = file.with_extension("parquet.part");
            let to = quoted(&part.display().to_string());
            let rows = db.execute(&format!("COPY ({text}\n) TO {to} (FORMAT parquet, COMPRESSION zstd)"), []);
            let done = rows.map_err(anyhow::Error::from).and_then(|rows| {
                std::fs::rename(&part, file).with_context(|| file.display().to_string())?;
                Ok(rows)
            });
            if done.is_err() {
                let _ = std::fs::remove_file(&part);
            }
            done
        }
        Format::Table => {
            let columns = described(db, text)?;
            let number = |kind: &str| {
                ["INT", "DOUBLE", "FLOAT", "DECIMAL"].iter().any(|name| kind.contains(name))
                    && !kind.contains('[')
            };
            let numbers: Vec<bool> = columns.iter().map(|(_, kind)| number(kind)).collect();
            let names: Vec<String> = columns.into_iter().map(|(name, _)| name).collect();
            let limit = MOST_ROWS + 1;
            let mut all = db.prepare(&format!("SELECT COLUMNS(*)::VARCHAR FROM ({text}\n) LIMIT {limit}"))?;
            let rows = all
                .query_map([], |row| (0..names.len()).map(|at| row.get::<_, Option<String>>(at)).collect())?;
            let mut rows = rows.collect::<Result<Vec<Vec<Option<String>>>, _>>()?;
            let more = rows.len() > MOST_ROWS;
            rows.truncate(MOST_ROWS);
            let mut shown = kprism_sql::table(&names, &numbers, &rows);
            if more {
                shown += &format!("… more than {MOST_ROWS} rows: --csv, --json and --parquet give all\n");
            }
            let shown = std::io::stdout().lock().write_all(shown.as_bytes());
            match shown {
                Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
                    Err(why).context("standard output")
                }
                _ => Ok(rows.len()),
            }
        }
    }
}

/// Says why a view is missing, if the query names one.
fn explain(error: anyhow::Error, request: &Request) -> anyhow::Error {
    match request.absent.iter().find(|(view, _)| request.query.text.contains(view.as_str())) {
        Some((view, why)) => error.context(format!("{view}: {why}")),
        None if error.to_string().contains("does not exist") => {
            error.context(format!("the lake has {}", request.known.join(", ")))
        }
        None => error,
    }
}
