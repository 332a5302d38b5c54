//! The file of `--event-tables`: which table each stream of events goes to, and where columns get their values.

use crate::list_file;
use anyhow::{Context, ensure};
use millpond_clickhouse::{EventTable, Origin, Unit};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    table: Vec<TableOf>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct TableOf {
    stream: String,
    table: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    columns: BTreeMap<String, Column>,
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Column {
    Path(String),
    Long(Long),
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Long {
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
}

/// The name that stands for the time of reception.
const RECEIVED_AT: &str = "_millpond_received_at";

/// The text of a file with this table.
pub(crate) fn text(table: &EventTable) -> anyhow::Result<String> {
    let columns = table.columns.iter().map(|(name, origin)| {
        let column = match origin {
            Origin::Path { keys, unit } if *unit == Unit::default() => Column::Path(keys.join(".")),
            Origin::Path { keys, unit } => Column::Long(Long {
                path: Some(keys.join(".")),
                unit: Some(unit.to_string()),
                value: None,
            }),
            Origin::ReceivedAt => Column::Path(RECEIVED_AT.to_owned()),
            Origin::Constant(value) => Column::Long(Long {
                path: None,
                unit: None,
                value: Some(serde_json::from_str(value)?),
            }),
        };
        anyhow::Ok((name.clone(), column))
    });
    let table = TableOf {
        stream: table.stream.clone(),
        table: table.table.clone(),
        columns: columns.collect::<anyhow::Result<_>>()?,
    };
    Ok(toml::to_string(&File { table: vec![table] })?)
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<EventTable>> {
    list_file::read("--event-tables", path, parse)
}

fn parse(text: &str) -> anyhow::Result<Vec<EventTable>> {
    let File { table } = toml::from_str(text)?;
    table.into_iter().map(event_table).collect()
}

fn event_table(table: TableOf) -> anyhow::Result<EventTable> {
    let TableOf {
        stream,
        table,
        columns,
    } = table;
    ensure!(
        !table.is_empty() && !table.contains('.'),
        "stream {stream}: {table:?} is not a table's name; the tables are in the database of --database"
    );
    let mut origins = BTreeMap::new();
    for (name, column) in columns {
        let origin = origin(column).with_context(|| format!("stream {stream}, column {name}"))?;
        origins.insert(name, origin);
    }
    Ok(EventTable {
        stream,
        table,
        columns: origins,
        transform: None,
    })
}

fn origin(column: Column) -> anyhow::Result<Origin> {
    let (path, unit) = match column {
        Column::Path(path) if path == RECEIVED_AT => return Ok(Origin::ReceivedAt),
        Column::Path(path) => (path, None),
        Column::Long(Long {
            path: None,
            unit: None,
            value: Some(value),
        }) => return Ok(Origin::Constant(value.to_string())),
        Column::Long(Long {
            path: Some(path),
            unit,
            value: None,
        }) => (path, unit),
        Column::Long(_) => anyhow::bail!("give either a value, or a path with or without a unit"),
    };
    let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
    ensure!(
        keys.iter().all(|key| !key.is_empty()),
        "{path:?} has an empty key"
    );
    let unit = unit.map_or(Ok(Unit::default()), |unit| unit.parse());
    Ok(Origin::Path {
        keys,
        unit: unit.map_err(anyhow::Error::msg)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_tables_and_origins() {
        let text = r#"
            [[table]]
            stream = "events.signup"
            table = "signup"

            [table.columns]
            user_id = "user.id"
            source = { value = "web" }
            at = { path = "ts", unit = "ms" }
            arrived = "_millpond_received_at"

            [[table]]
            stream = "events.click"
            table = "click"
        "#;
        let [signup, click] = parse(text).unwrap().try_into().unwrap();
        assert_eq!(
            (signup.stream.as_str(), signup.table.as_str()),
            ("events.signup", "signup")
        );
        assert!(click.columns.is_empty());
        for table in [&signup, &click] {
            let again = parse(&super::text(table).unwrap()).unwrap();
            assert_eq!(again, std::slice::from_ref(table));
        }
        let path = |keys: &[&str], unit| Origin::Path {
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            unit,
        };
        let expected = [
            ("arrived", Origin::ReceivedAt),
            ("at", path(&["ts"], Unit::Millis)),
            ("source", Origin::Constant("\"web\"".to_owned())),
            ("user_id", path(&["user", "id"], Unit::Seconds)),
        ];
        let expected = expected.map(|(name, origin)| (name.to_owned(), origin));
        assert_eq!(signup.columns.into_iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_wrong_file_says_where() {
        let table = "[[table]]\nstream = \"a\"\n";
        for (text, words) in [
            (String::new(), "table"),
            (format!("{table}table = \"b.c\""), "--database"),
            (format!("{table}table = \"b\"\nkey = 1"), "key"),
            (format!("{table}table = \"b\"\ncolumns.x = \"a..b\""), "column x"),
            (
                format!("{table}table = \"b\"\ncolumns.x = {{ path = \"a\", unit = \"h\" }}"),
                "use s, ms, us or ns",
            ),
            (
                format!("{table}table = \"b\"\ncolumns.x = {{ path = \"a\", value = 1 }}"),
                "either a value",
            ),
        ] {
            let error = format!("{:#}", parse(&text).unwrap_err());
            assert!(error.contains(words), "{error}");
        }
    }
}
