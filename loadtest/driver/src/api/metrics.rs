//! What a node counts.

/// Metrics in Prometheus' text form.
#[derive(Clone, Debug)]
pub struct Metrics(pub(super) String);

impl Metrics {
    /// The sum over all series whose name is accepted by `wanted`; `None` if there is none.
    #[must_use]
    pub fn sum(&self, wanted: impl Fn(&str) -> bool) -> Option<f64> {
        let lines = self.0.lines().filter(|line| !line.starts_with('#'));
        let values = lines.filter_map(|line| {
            let name = line.split(['{', ' ']).next()?;
            let value = line.rsplit_once(' ')?.1.parse::<f64>().ok()?;
            wanted(name).then_some(value)
        });
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// The sum over all series that begin with `start` (name and first labels) and hold `label`; `None` if there is none.
    #[must_use]
    pub fn sum_of(&self, start: &str, label: &str) -> Option<f64> {
        let lines = self.0.lines().filter(|line| line.starts_with(start) && line.contains(label));
        let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
    }

    /// How often files were synced.
    #[must_use]
    pub fn syncs(&self) -> Option<f64> {
        // One series of the storage layer counts all syncs; where it is missing, the yardstick's or any other like it.
        let all = self.sum(|name| name == "veena_storage_fsync_seconds_count");
        all.or_else(|| self.sum(|name| name.contains("fsync") && (name.ends_with("_count") || name.ends_with("_total"))))
    }

    /// How many records wait in the WAL to be dispatched.
    #[must_use]
    pub fn wal_lag(&self) -> Option<f64> {
        self.sum(|name| name == "veena_ingress_dispatch_backlog_records")
    }
}
