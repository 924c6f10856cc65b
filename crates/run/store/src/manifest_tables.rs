// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest as tables: so that questions about many runs can ask for it by SQL. The input is a manifest; the
//! output is named columns. They are made for tables of many runs only: in the run's own folder the manifest has it all, and
//! dates would make equal runs differ.

use crate::records::Values;
use crate::{Account, Entry, Instrument, Manifest, RunKind};

/// A table: its name and its columns, which have the same number of rows.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedTable {
    /// Name of the table.
    pub name: &'static str,
    /// Names and values of the columns.
    pub columns: Vec<(String, Values)>,
}

/// The tables `manifest` (one row), `accounts` (a row a count) and `environment_parts` (a row a part). A table may have no
/// rows, but always has its columns.
pub fn manifest_tables(manifest: &Manifest) -> Vec<NamedTable> {
    vec![one_row(manifest), accounts(manifest), environment_parts(manifest)]
}

fn one_row(m: &Manifest) -> NamedTable {
    let kernel = m.kernel.as_ref();
    // An empty text in the manifest is a fact that is not known.
    let known = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let kind = match m.kind {
        RunKind::Lab => "lab",
        RunKind::Machine => "machine",
        RunKind::Import => "import",
        RunKind::Host => "host",
    };
    let instruments: Vec<&str> = m.instruments.iter().map(|instrument| instrument.name()).collect();
    let columns = vec![
        text("run_kind", [Some(kind.to_owned())]),
        text("command", [known(&m.command.join(" "))]),
        text("instruments", [known(&instruments.join(" "))]),
        text("kernel_release", [kernel.and_then(|kernel| known(&kernel.release))]),
        text("kernel_build_id", [kernel.and_then(|kernel| known(&kernel.build_id))]),
        text("environment_id", [m.environment.as_ref().map(|environment| environment.id.clone())]),
        text("created", [known(&m.created)]),
        text("clock", [known(&m.clock.name)]),
        number("vcpus", [Some(m.vcpus.into())]),
        (String::from("exit_code"), Values::Signed(vec![m.exit_code.map(i64::from)])),
        number("instructions", [m.instructions]),
        number("decode_errors", [m.decode_errors]),
        number("lost_bytes", [Some(m.lost_bytes)]),
        text("stopped", [m.stopped.clone()]),
        text("fault", [m.recording_fault()]),
    ];
    NamedTable { name: "manifest", columns }
}

fn accounts(m: &Manifest) -> NamedTable {
    let accounts: Vec<(Instrument, Account)> =
        m.accounts.iter().map(|(name, account)| (*name, m.with_recording(account.clone()))).collect();
    let rows: Vec<(Instrument, &Entry)> = accounts
        .iter()
        .flat_map(|(name, account)| account.entries.iter().map(|entry| (*name, entry)))
        .collect();
    // A list as JSON: places are any text.
    let places =
        |entry: &Entry| (!entry.places.is_empty()).then(|| serde_json::json!(entry.places).to_string());
    let columns = vec![
        text("instrument", rows.iter().map(|(name, _)| Some(name.name().to_owned()))),
        text("fate", rows.iter().map(|(_, entry)| Some(entry.fate.name().replace(' ', "_")))),
        text("unit", rows.iter().map(|(_, entry)| Some(entry.unit.clone()))),
        number("amount", rows.iter().map(|(_, entry)| entry.count)),
        text("places", rows.iter().map(|(_, entry)| places(entry))),
    ];
    NamedTable { name: "accounts", columns }
}

fn environment_parts(m: &Manifest) -> NamedTable {
    let parts = || m.environment.iter().flat_map(|environment| &environment.parts);
    let columns = vec![
        text("part_name", parts().map(|(name, _)| Some(name.clone()))),
        text("part_value", parts().map(|(_, value)| Some(value.clone()))),
    ];
    NamedTable { name: "environment_parts", columns }
}

fn text(name: &str, values: impl IntoIterator<Item = Option<String>>) -> (String, Values) {
    (name.to_owned(), Values::Text(values.into_iter().collect()))
}

fn number(name: &str, values: impl IntoIterator<Item = Option<u64>>) -> (String, Values) {
    (name.to_owned(), Values::Unsigned(values.into_iter().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Account, Environment, Fate};

    fn column<'a>(tables: &'a [NamedTable], table: &str, column: &str) -> &'a Values {
        let table = tables.iter().find(|t| t.name == table).expect("the table");
        &table.columns.iter().find(|(name, _)| name == column).expect("the column").1
    }

    fn texts(all: &[Option<&str>]) -> Values {
        Values::Text(all.iter().map(|text| text.map(str::to_owned)).collect())
    }

    #[test]
    fn the_manifest_comes_as_rows() {
        let mut manifest = Manifest::new(RunKind::Host, 4);
        manifest.exit_code = Some(-9);
        manifest.command = vec!["ls".into(), "/bin".into()];
        manifest.environment =
            Some(Environment::new([("qemu".into(), "10".into()), ("agent".into(), "ab".into())]));
        let account = Account::new().with(Fate::Seen, "events", 7).at(
            Fate::NotUnderstood,
            "places",
            None,
            vec!["a \"b\"".into()],
        );
        manifest.accounts.insert(Instrument::Durations, account);
        let tables = manifest_tables(&manifest);
        assert_eq!(*column(&tables, "manifest", "run_kind"), texts(&[Some("host")]));
        assert_eq!(*column(&tables, "manifest", "command"), texts(&[Some("ls /bin")]));
        assert_eq!(*column(&tables, "manifest", "exit_code"), Values::Signed(vec![Some(-9)]));
        // Not known is NULL, and no zero and no empty text.
        assert_eq!(*column(&tables, "manifest", "instructions"), Values::Unsigned(vec![None]));
        assert_eq!(*column(&tables, "manifest", "kernel_release"), texts(&[None]));
        assert_eq!(*column(&tables, "accounts", "amount"), Values::Unsigned(vec![Some(7), None]));
        assert_eq!(*column(&tables, "accounts", "fate"), texts(&[Some("seen"), Some("not_understood")]));
        assert_eq!(*column(&tables, "accounts", "places"), texts(&[None, Some(r#"["a \"b\""]"#)]));
        assert_eq!(*column(&tables, "environment_parts", "part_name"), texts(&[Some("agent"), Some("qemu")]));
        assert_eq!(*column(&tables, "environment_parts", "part_value"), texts(&[Some("ab"), Some("10")]));
    }

    #[test]
    fn a_table_without_rows_has_its_columns() {
        let tables = manifest_tables(&Manifest::new(RunKind::Lab, 1));
        assert_eq!(*column(&tables, "accounts", "amount"), Values::Unsigned(Vec::new()));
        assert_eq!(*column(&tables, "environment_parts", "part_value"), texts(&[]));
    }
}
