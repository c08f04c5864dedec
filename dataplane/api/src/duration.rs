//! Durations as Go writes them (`500ms`, `1m30s`), because that is what the contract's `wait` speaks.

use std::time::Duration;

/// Parses a Go duration. Negative ones are zero. `None` when the text is not one.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total_ns: u128 = 0;
    while !rest.is_empty() {
        let (ns, tail) = term(rest)?;
        total_ns = total_ns.checked_add(ns)?;
        if total_ns > i64::MAX as u128 {
            return None;
        }
        rest = tail;
    }
    let ns = u64::try_from(total_ns).ok()?;
    Some(if negative { Duration::ZERO } else { Duration::from_nanos(ns) })
}

/// One number with its unit, and what follows.
fn term(text: &str) -> Option<(u128, &str)> {
    let whole_len = digits(text);
    let (whole, mut rest) = text.split_at(whole_len);
    let mut fraction = "";
    if let Some(after) = rest.strip_prefix('.') {
        let (digits, tail) = after.split_at(digits(after));
        (fraction, rest) = (digits, tail);
    }
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let (unit_ns, tail) = unit(rest)?;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut ns = whole.checked_mul(unit_ns)?;
    // Digits past 18 weigh less than a nanosecond even in hours.
    let fraction = &fraction[..fraction.len().min(18)];
    if !fraction.is_empty() {
        let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
        ns += fraction.parse::<u128>().ok()? * unit_ns / scale;
    }
    Some((ns, tail))
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn unit(text: &str) -> Option<(u128, &str)> {
    const UNITS: [(&str, u128); 8] = [
        ("ns", 1),
        ("us", 1_000),
        ("µs", 1_000),
        ("μs", 1_000),
        ("ms", 1_000_000),
        ("s", 1_000_000_000),
        ("m", 60_000_000_000),
        ("h", 3_600_000_000_000),
    ];
    UNITS.iter().find_map(|(name, ns)| text.strip_prefix(name).map(|tail| (*ns, tail)))
}

/// Writes a duration as Go prints it.
pub(crate) fn format(duration: Duration) -> String {
    let ns = duration.as_nanos();
    if ns == 0 {
        return "0s".into();
    }
    if ns < 1_000_000_000 {
        let (unit, name) = match ns {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return format!("{}{name}", decimal(ns, unit));
    }
    let (hours, minutes) = (ns / 3_600_000_000_000, ns / 60_000_000_000 % 60);
    let seconds = decimal(ns % 60_000_000_000, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(value: u128, unit: u128) -> String {
    let (whole, rest) = (value / unit, value % unit);
    if rest == 0 {
        return whole.to_string();
    }
    let width = unit.to_string().len() - 1;
    let digits = format!("{rest:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read_as_go_reads_them() {
        let ms = Duration::from_millis;
        for (text, want) in [
            ("0", ms(0)),
            ("500ms", ms(500)),
            ("10s", ms(10_000)),
            ("1m30s", ms(90_000)),
            ("1.5h", ms(5_400_000)),
            (".5s", ms(500)),
            ("1.s", ms(1000)),
            ("+2s", ms(2000)),
            ("-5s", ms(0)),
            ("2us", Duration::from_micros(2)),
            ("2µs", Duration::from_micros(2)),
        ] {
            assert_eq!(parse(text), Some(want), "{text:?}");
        }
        for text in ["", "5", "s", ".s", "1x", "-", "+", "1s2", "1 s", "99999999999h", "1e3s"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn durations_are_printed_as_go_prints_them() {
        for (text, printed) in [("10s", "10s"), ("1m30s", "1m30s"), ("1500ms", "1.5s"), ("0", "0s"), ("250ms", "250ms"), ("1h", "1h0m0s")] {
            assert_eq!(format(parse(text).expect("a duration")), printed);
        }
    }
}
