// SPDX-License-Identifier: MIT OR Apache-2.0
//! Views over a lake, as SQL. Input: an engine, the lake's tables, and where their files are. Output: statements that make a
//! view of each table and of each question. The questions are the files of `views/`, the same for all engines.

use std::collections::BTreeSet;
use std::str::FromStr;

use anyhow::{Result, bail};

use kprism_sql::quoted;

use crate::layout::{Lake, SCHEMA};

/// The views that are shipped: name and query.
pub const VIEWS: [(&str, &str); 9] = [
    // Before those that select from them.
    ("run_recorded", include_str!("../views/run_recorded.sql")),
    ("run_pairs", include_str!("../views/run_pairs.sql")),
    ("not_compared", include_str!("../views/not_compared.sql")),
    ("regressions", include_str!("../views/regressions.sql")),
    ("first_bad_commit", include_str!("../views/first_bad_commit.sql")),
    ("fleet_top", include_str!("../views/fleet_top.sql")),
    ("never_covered", include_str!("../views/never_covered.sql")),
    ("which_test_covers", include_str!("../views/which_test_covers.sql")),
    ("syscall_percentiles", include_str!("../views/syscall_percentiles.sql")),
];

/// The table with what was recorded. Without it, nobody knows which runs can be compared.
pub(crate) const RECORDED: &str = "recorded_parts";

/// A program that reads the lake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// DuckDB.
    Duckdb,
    /// Spark SQL.
    Spark,
    /// The SQL of Polars.
    Polars,
}

impl FromStr for Engine {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "duckdb" => Ok(Engine::Duckdb),
            "spark" => Ok(Engine::Spark),
            "polars" => Ok(Engine::Polars),
            _ => bail!("expected duckdb, spark or polars"),
        }
    }
}

/// Options with which DuckDB reads a table's files.
pub(crate) const READING: &str =
    "union_by_name = true, hive_partitioning = true, hive_types_autocast = false";

/// Of `manifest`, the rows that count: one a run.
const RUNS: &str = "SELECT * FROM (SELECT m.*, ROW_NUMBER() OVER (PARTITION BY run_id ORDER BY part DESC) AS newest \
                    FROM manifest_files m) numbered WHERE newest = 1";

/// Of a table, the rows that count.
fn counting(table: &str) -> String {
    format!("SELECT t.* FROM {table}_files t JOIN runs r ON t.run_id = r.run_id AND t.part = r.part")
}

/// The statements that make the views of each table: names and queries. `files` gives the files of a table as a relation, of which
/// `columns` are selected.
pub(crate) fn of_tables(
    tables: &[String],
    columns: &str,
    files: impl Fn(&str) -> String,
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for table in tables {
        all.push((format!("{table}_files"), format!("SELECT {columns} FROM {}", files(table))));
    }
    all.push(("runs".into(), RUNS.into()));
    for table in tables {
        all.push((table.clone(), counting(table)));
    }
    all
}

/// Names in a query, in lower case: its words, and those of the questions that it names, and of theirs. A view over many files takes
/// long to make, so only those that a query can mean are made. `None` if it may mean any, as it asks DuckDB's catalogue.
pub(crate) fn named(query: &str) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut texts = vec![query];
    while let Some(text) = texts.pop() {
        for word in text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()) {
            let word = word.to_lowercase();
            if word == "information_schema"
                || word.starts_with("duckdb_")
                || word == "pg_catalog"
                || word == "sqlite_master"
            {
                return None;
            }
            if let Some((_, question)) = VIEWS.iter().find(|(name, _)| *name == word)
                && !names.contains(&word)
            {
                texts.push(question);
            }
            names.insert(word);
        }
    }
    Some(names)
}

/// Tables that a query of [`VIEWS`] reads and the lake has not.
pub(crate) fn missing<'a>(query: &'a str, tables: &[String]) -> Vec<&'a str> {
    let mut words = query.split_whitespace();
    let mut missing: Vec<&str> = Vec::new();
    while let Some(word) = words.next() {
        if matches!(word, "FROM" | "JOIN")
            && let Some(name) = words.next()
        {
            // A view over another lacks what that lacks.
            if let Some((_, query)) = VIEWS.iter().find(|(view, _)| *view == name) {
                let below = self::missing(query, tables);
                missing.extend(below.into_iter().filter(|name| !missing.contains(name)).collect::<Vec<_>>());
            }
            if ["functions", "nodes", "syscalls", "labels", "cover_lines", RECORDED].contains(&name)
                && !tables.iter().any(|table| table == name)
                && !missing.contains(&name)
            {
                missing.push(name);
            }
        }
    }
    missing
}

/// Why a view cannot be made, and the remedy. `missing`: tables that it reads and the lake has not.
pub(crate) fn why_absent(missing: &[&str]) -> String {
    let remedy = match missing.contains(&RECORDED) {
        true => "; runs that an older kprism added get it by `kprism lake add --replace`",
        false => "",
    };
    format!("no run of the lake has {}{remedy}", missing.join(", "))
}

/// Statements for an engine, with the lake's paths.
///
/// # Errors
/// The lake cannot be read.
pub fn script(lake: &Lake, engine: Engine) -> Result<String> {
    let tables = lake.tables()?;
    let root = std::path::absolute(lake.root())?;
    let root = root.display().to_string();
    let glob = |table: &str| quoted(&format!("{root}/{table}/schema={SCHEMA}/*/*/*.parquet"));
    let files = |table: &str| match engine {
        Engine::Duckdb => format!("read_parquet({}, {READING})", glob(table)),
        Engine::Spark => format!("{table}_spark"),
        Engine::Polars => format!("read_parquet({})", glob(table)),
    };
    // Polars makes dates of days, but not where a folder is `day=merged`.
    let columns = match engine {
        Engine::Polars => "* REPLACE (CAST(suite AS VARCHAR) AS suite, CAST(day AS VARCHAR) AS day)",
        Engine::Duckdb | Engine::Spark => "*",
    };
    let create = match engine {
        Engine::Duckdb => "CREATE OR REPLACE VIEW",
        Engine::Spark => "CREATE OR REPLACE TEMPORARY VIEW",
        Engine::Polars => "CREATE TABLE",
    };
    let mut text = String::new();
    if engine == Engine::Spark {
        for table in &tables {
            let path = quoted(&format!("{root}/{table}"));
            text += &format!(
                "CREATE OR REPLACE TEMPORARY VIEW {table}_spark USING parquet OPTIONS (path {path}, mergeSchema 'true');\n"
            );
        }
    }
    for (name, query) in of_tables(&tables, columns, files) {
        text += &format!("{create} {name} AS {query};\n");
    }
    for (name, query) in VIEWS {
        let missing = missing(query, &tables);
        if missing.is_empty() {
            text += &format!("\n{create} {name} AS\n{};\n", query.trim_end());
        } else {
            text += &format!("\n-- {name}: {}\n", why_absent(&missing));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str) -> &'static str {
        VIEWS.iter().find(|(view, _)| *view == name).expect("a view").1
    }

    #[test]
    fn runs_are_compared_or_added_up_only_if_it_is_known_what_was_recorded() {
        let tables =
            ["manifest", "labels", "functions", "nodes", "syscalls", "cover_lines"].map(str::to_owned);
        for (name, query) in VIEWS {
            let missing = missing(query, &tables);
            assert_eq!(missing, [RECORDED], "{name}");
            assert!(why_absent(&missing).contains("--replace"));
        }
    }

    #[test]
    fn times_are_told_apart_by_each_part_that_they_depend_on() {
        use kprism_store::recorded::{BearsOn, CLOCK, PACKETS};
        for part in [CLOCK, PACKETS] {
            assert_eq!(BearsOn::of_part(part), BearsOn::Times);
            assert!(view("run_recorded").contains(&format!("'{part}'")));
            for name in ["fleet_top", "syscall_percentiles"] {
                assert!(view(name).contains(&format!("p.{part}")), "{name}: {part}");
            }
        }
    }

    #[test]
    fn a_view_stands_behind_those_that_it_selects_from() {
        for (at, (name, query)) in VIEWS.iter().enumerate() {
            let words: Vec<&str> = query.split_whitespace().collect();
            let of_views = words.windows(2).filter(|pair| matches!(pair[0], "FROM" | "JOIN"));
            for pair in of_views {
                let from = VIEWS.iter().position(|(view, _)| *view == pair[1]);
                assert!(from.is_none_or(|from| from < at), "{name}: {}", pair[1]);
            }
        }
    }
}
