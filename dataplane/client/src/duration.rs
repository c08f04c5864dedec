//! Durations as Go writes them (`500ms`, `1m30s`, `0`), in query parameters, configuration and flags.

use std::time::Duration;

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid duration {text:?}: want a number with a unit, like 500ms, 10s, 1m30s or 24h")]
pub struct InvalidDuration {
    /// What was given.
    pub text: String,
}

/// A duration that may be below zero, in nanoseconds.
fn parse_nanos(text: &str) -> Option<i128> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        total = total.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = next;
    }
    // Go keeps durations in 63 bits of nanoseconds.
    (total <= i128::from(i64::MAX)).then_some(if negative { -total } else { total })
}

fn unit_nanos(unit: &str) -> Option<i128> {
    match unit {
        "ns" => Some(1),
        "us" | "µs" | "μs" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    }
}

/// `number` times `unit`, where `number` is decimal digits with at most one point.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Digits past 18 weigh less than a nanosecond even in hours.
    let fraction = &fraction[..fraction.len().min(18)];
    let part: i128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let scale = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
    whole.checked_mul(unit)?.checked_add(part * unit / scale)
}

/// Reads a duration; one below zero counts as zero, as in the `wait` parameter.
///
/// # Errors
/// [`InvalidDuration`] when the text is not a duration, or longer than 292 years.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidDuration> {
    let invalid = || InvalidDuration { text: text.chars().take(64).collect() };
    let nanos = parse_nanos(text).ok_or_else(invalid)?;
    Ok(Duration::from_nanos(u64::try_from(nanos.max(0)).map_err(|_| invalid())?))
}

/// Writes a duration so that [`parse_duration`] reads the same: `1h0m0s`, `1m30s`, `1.5s`, `250ms`, `0s`.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let with_fraction = |unit: u128, name: &str| {
        let (whole, part) = (nanos / unit, nanos % unit);
        if part == 0 {
            return format!("{whole}{name}");
        }
        let width = unit.to_string().len() - 1;
        let digits = format!("{part:0width$}");
        format!("{whole}.{}{name}", digits.trim_end_matches('0'))
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => with_fraction(1, "ns"),
        1_000..1_000_000 => with_fraction(1_000, "us"),
        1_000_000..1_000_000_000 => with_fraction(1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
            let seconds = duration - Duration::from_secs(duration.as_secs() / 60 * 60);
            let seconds = if seconds.is_zero() { "0s".to_owned() } else { seconds_text(seconds) };
            match (hours, minutes) {
                (0, 0) => seconds,
                (0, _) => format!("{minutes}m{seconds}"),
                _ => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

fn seconds_text(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        return format!("{}s", duration.as_secs());
    }
    let digits = format!("{:09}", duration.subsec_nanos());
    format!("{}.{}s", duration.as_secs(), digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let cases = [
            ("0", 0),
            ("500ms", 500_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5h", 1_800_000_000_000),
            ("+2us", 2_000),
            ("1.s", 1_000_000_000),
            ("00000000000000000000001s", 1_000_000_000),
            ("0.0000000000000000000001s", 0),
            ("3µs", 3_000),
            ("-5s", 0),
            ("1h0m0s", 3_600_000_000_000),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn anything_without_a_unit_or_number_is_refused() {
        for text in [
            "",
            "-",
            "1",
            "s",
            "1 s",
            "1x",
            "1..5s",
            "1s2",
            "ms5",
            ".s",
            "99999999999999999999h",
            "9999999h",
            "1d",
            "1S",
            "+",
            "1e3s",
            "1mm",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_written_duration_is_read_back() {
        let samples =
            [0, 1, 999, 1_500, 2_000_000, 1_500_000_000, 90_000_000_000, 3_600_000_000_000, 3_661_000_000_001, 604_800_000_000_000];
        for nanos in samples {
            let duration = Duration::from_nanos(nanos);
            assert_eq!(parse_duration(&format_duration(duration)), Ok(duration), "{}", format_duration(duration));
        }
        assert_eq!(format_duration(Duration::from_millis(90_500)), "1m30.5s");
        assert_eq!(format_duration(Duration::from_secs(86_400)), "24h0m0s");
    }
}
