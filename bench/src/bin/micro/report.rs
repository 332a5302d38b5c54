//! The figures of a run: as a table, and as a file for a later comparison.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// The cost of a piece per unit.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// `record`, `commit` or `plan`.
    pub(crate) unit: String,
    /// Instructions. `None` without valgrind.
    pub(crate) instructions: Option<f64>,
    /// CPU time, in nanoseconds: the least of several runs.
    pub(crate) nanoseconds: f64,
}

/// The figures of all pieces.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Where the bodies of logs come from.
    pub(crate) bodies: String,
    /// By the name of the piece.
    pub(crate) pieces: BTreeMap<String, Figure>,
}

impl Report {
    pub(crate) fn new(bodies: Option<&Path>) -> Report {
        let bodies = bodies.map_or_else(
            || "bodies of logs: generated".to_owned(),
            |folder| format!("bodies of logs: {}", folder.display()),
        );
        Report {
            bodies,
            pieces: BTreeMap::new(),
        }
    }

    pub(crate) fn read(file: &Path) -> anyhow::Result<Report> {
        let read = || Ok::<_, anyhow::Error>(serde_json::from_slice(&std::fs::read(file)?)?);
        read().with_context(|| format!("{} is not a report of this benchmark", file.display()))
    }

    pub(crate) fn write(&self, file: &Path) -> anyhow::Result<()> {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(file, serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("{} cannot be written", file.display()))
    }

    /// The heading of the table.
    pub(crate) fn heading(&self, base: Option<&Report>) -> String {
        let compared = match base {
            Some(base) if base.bodies == self.bodies => format!("{:>20}{:>12}", "instructions before", "now"),
            Some(_) => format!("{:>20}{:>12}", "OTHER BODIES before", "now"),
            None => String::new(),
        };
        format!(
            "{:<20}{:>14}{:>12}  {:<8}{compared}",
            "piece", "instructions", "ns of CPU", "per"
        )
    }
}

/// A line of the table.
pub(crate) fn line(name: &str, figure: &Figure, base: Option<&Report>) -> String {
    let count = |instructions: Option<f64>| {
        instructions.map_or_else(|| "–".to_owned(), |instructions| format!("{instructions:.0}"))
    };
    let before = base.and_then(|base| base.pieces.get(name));
    let compared = before.map_or_else(String::new, |before| {
        let ratio = figure.instructions.zip(before.instructions).map_or_else(
            || "–".to_owned(),
            |(now, before)| format!("{:.3} ×", now / before),
        );
        format!("{:>20}{ratio:>12}", count(before.instructions))
    });
    format!(
        "{name:<20}{:>14}{:>12.0}  {:<8}{compared}",
        count(figure.instructions),
        figure.nanoseconds,
        figure.unit
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(instructions: Option<f64>) -> Figure {
        Figure {
            unit: "record".to_owned(),
            instructions,
            nanoseconds: 80.4,
        }
    }

    #[test]
    fn a_comparison_is_with_the_same_piece() {
        let mut base = Report::new(None);
        base.pieces.insert("a".to_owned(), figure(Some(200.0)));
        base.pieces.insert("b".to_owned(), figure(None));
        let line = |name, instructions| line(name, &figure(instructions), Some(&base));
        let words = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let compared = ["a", "150", "80", "record", "200", "0.750", "×"];
        assert_eq!(words(line("a", Some(150.0))), compared);
        assert_eq!(
            words(line("b", Some(150.0))),
            ["b", "150", "80", "record", "–", "–"]
        );
        assert_eq!(words(line("c", None)), ["c", "–", "80", "record"]);
    }
}
