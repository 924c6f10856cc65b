// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many runs as one table: a lake, a folder of Parquet files that DuckDB, Spark and Polars read.
//!
//! Input: run folders, a suite, labels. Output: one file per table and run, merged later, and views over them in SQL.
//!
//! ```text
//! LAKE/functions/schema=2/suite=nightly/day=2026-11-25/<run_id>.parquet     a run's table
//! LAKE/functions/schema=2/suite=nightly/day=merged/part-7.parquet           many runs' table, after `compact`
//! LAKE/manifest/…  LAKE/labels/…                                            the same for these two
//! LAKE/_lake/      locks, the journal, files that are being written; readers skip names with `_`
//! ```
//!
//! A run counts if a row of `manifest` names it. Each row of a table names its run and its part: 0 in the file that was
//! added, another number after a merge. Of a run's rows in `manifest` that with the largest part counts, and of its
//! rows elsewhere those of that part. So one rename of a file of `manifest` replaces many files of all tables.

mod add;
mod baseline;
mod commit;
mod compact;
mod layout;
mod live;
pub mod rows;
mod shard;
mod sql;
mod tables;
mod views;

pub use add::{AddOptions, Added, Outcome, add, check_labels, check_suite};
pub use baseline::{Baseline, is_lake, newest};
pub use commit::{Reader, reading};
pub use compact::{Compacted, compact};
pub use kprism_sql::{Format, Query};
pub use layout::Lake;
pub use live::{Live, live};
pub use shard::{Shard, read_list};
pub use sql::become_query;
pub use views::{Engine, VIEWS, script};
