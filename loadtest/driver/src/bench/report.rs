//! Rows, medians, and their forms: a table for people, JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::Options;
use super::target::{Target, targets};
use crate::cpu;

/// What one scenario measured in one round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Its name; the same in every round.
    pub name: String,
    /// What it is, in words.
    pub about: String,
    /// Which round, from 1; 0 for a median.
    pub round: u32,
    /// The figures that were taken, by name; the columns of the table.
    pub figures: BTreeMap<&'static str, f64>,
    /// The first error, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_error: Option<String>,
    /// The verdict of the ledger, where one was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ledger: Option<String>,
}

/// The figures that the table shows, with their headings.
const COLUMNS: &[(&str, &str)] = &[
    ("connections", "conns"),
    ("rate", "msg/s"),
    ("p10_ms", "p10 ms"),
    ("p50_ms", "p50 ms"),
    ("p99_ms", "p99 ms"),
    ("server_us", "server us/req"),
    ("own_us", "load us/req"),
    ("syncs_per_1000", "syncs/1000"),
    ("wal_lag", "WAL lag"),
    ("errors", "errors"),
];

impl Row {
    /// An empty row.
    #[must_use]
    pub fn new(name: &str, about: &str) -> Self {
        Self { name: name.to_owned(), about: about.to_owned(), ..Self::default() }
    }

    /// With one more figure.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: f64) -> Self {
        self.figures.insert(name, value);
        self
    }

    /// A figure, if it was taken.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// One line of the table.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("{:<22}", self.name);
        for (name, heading) in COLUMNS {
            let width = heading.len().max(8);
            match self.figure(name) {
                Some(value) => {
                    let decimals = usize::from(!matches!(*name, "connections" | "rate" | "wal_lag" | "errors")) * 2;
                    let _ = write!(line, " {value:>width$.decimals$}");
                }
                None => {
                    let _ = write!(line, " {:>width$}", "-");
                }
            }
        }
        let others = self.figures.iter().filter(|(name, _)| COLUMNS.iter().all(|(column, _)| column != *name));
        for (name, value) in others {
            let _ = write!(line, "  {name} {value:.2}");
        }
        if let Some(error) = &self.first_error {
            let _ = write!(line, "  first error: {error}");
        }
        if let Some(ledger) = &self.ledger {
            let _ = write!(line, "  ledger: {ledger}");
        }
        line
    }
}

/// The median of every figure of every row, in the order in which the rows first came. A ledger that is not ok is kept.
#[must_use]
pub fn medians(rows: &[Row]) -> Vec<Row> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    names.into_iter().map(|name| median_of(name, rows)).collect()
}

fn median_of(name: &str, rows: &[Row]) -> Row {
    let same: Vec<&Row> = rows.iter().filter(|row| row.name == name).collect();
    let mut median = Row::new(name, same.first().map_or("", |row| &row.about));
    let mut values: BTreeMap<&'static str, Vec<f64>> = BTreeMap::new();
    for (figure, value) in same.iter().flat_map(|row| &row.figures) {
        values.entry(figure).or_default().push(*value);
    }
    for (figure, mut all) in values {
        all.sort_by(f64::total_cmp);
        median.figures.insert(figure, all[all.len() / 2]);
    }
    median.first_error = same.iter().find_map(|row| row.first_error.clone());
    let ledgers = || same.iter().filter_map(|row| row.ledger.as_ref());
    median.ledger = ledgers().find(|ledger| !ledger.starts_with("ok")).or_else(|| ledgers().next()).cloned();
    median
}

/// Everything a run of the benchmark found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was run.
    pub options: Options,
    /// How many processors.
    pub processors: usize,
    /// The load average of the last minute, at the end.
    pub load_average: f64,
    /// Every row of every round.
    pub rows: Vec<Row>,
    /// Their medians.
    pub medians: Vec<Row>,
    /// What must be reached.
    pub targets: Vec<Target>,
}

impl Report {
    /// The report on `rows`.
    #[must_use]
    pub fn new(options: Options, rows: Vec<Row>) -> Self {
        let medians = medians(&rows);
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let targets = targets(&medians);
        Self { options, processors, load_average: cpu::load_average(), rows, medians, targets }
    }

    /// The heading of the table.
    #[must_use]
    pub fn heading() -> String {
        let mut line = format!("{:<22}", "scenario");
        for (_, heading) in COLUMNS {
            let _ = write!(line, " {heading:>width$}", width = heading.len().max(8));
        }
        line
    }

    /// The medians as a table, with what must be reached below.
    #[must_use]
    pub fn table(&self) -> String {
        let Options { runs, time, slow_flush, .. } = &self.options;
        let mut text = format!(
            "medians of {runs} runs of {} s, {} processors shared with the load, load average {:.1}, syncs slower by {} ms\n",
            time.as_secs_f64(),
            self.processors,
            self.load_average,
            slow_flush.as_millis()
        );
        let _ = writeln!(text, "{}", Self::heading());
        for row in &self.medians {
            let _ = writeln!(text, "{}", row.line());
        }
        for target in &self.targets {
            let _ = writeln!(text, "{target}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_taken_of_each_figure_and_a_broken_ledger_is_kept() {
        let row = |rate: f64, p99: f64, ledger: &str| Row {
            ledger: Some(ledger.into()),
            ..Row::new("a", "x").with("rate", rate).with("p99_ms", p99)
        };
        let rows = [row(3.0, 1.0, "ok 1"), Row::new("b", "y").with("rate", 7.0), row(1.0, 9.0, "lost 1"), row(2.0, 2.0, "ok 2")];
        let medians = medians(&rows);
        assert_eq!(medians.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((medians[0].figure("rate"), medians[0].figure("p99_ms")), (Some(2.0), Some(2.0)));
        assert_eq!(medians[0].ledger.as_deref(), Some("lost 1"));
    }
}
