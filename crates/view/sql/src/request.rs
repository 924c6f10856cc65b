// SPDX-License-Identifier: MIT OR Apache-2.0
//! The request to `kprism-sql`, as JSON on its standard input. `kprism lake sql` writes it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The form of the answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// An array of objects.
    Json,
    /// With a line of names.
    Csv,
    /// A file.
    Parquet(PathBuf),
}

/// A query, and the form of its answer.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Query {
    /// One SELECT.
    pub text: String,
    /// The form of the answer.
    pub format: Format,
    /// Most memory, as DuckDB writes it: `4GB`.
    pub memory: Option<String>,
    /// Most threads.
    pub threads: Option<u32>,
}

/// The request to `kprism-sql`, which it reads from standard input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Statements that make the views, in order.
    pub views: Vec<String>,
    /// Views that cannot be made, each with the reason.
    pub absent: Vec<(String, String)>,
    /// Names that a query may use, for the message on one that is none.
    pub known: Vec<String>,
    /// The query.
    pub query: Query,
}
