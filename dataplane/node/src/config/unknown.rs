//! Variables that look like ours and set nothing: a setting that is misspelt would otherwise be left out without a word.

use tracing::warn;

use super::KEYS;

/// Variables that other commands read. A node may find them in its environment.
const OTHERS: [&str; 4] = ["VEENA_ADDR", "VEENA_USER", "VEENA_PASSWORD", "VEENA_CA_FILE"];
/// What Kubernetes sets for a service of our name, `VEENA_PORT_8080_TCP_ADDR` among it.
const OF_KUBERNETES: [&str; 3] = ["VEENA_SERVICE_HOST", "VEENA_SERVICE_PORT", "VEENA_PORT"];
/// How many letters may differ from the name that was meant.
const DISTANCE_MAX: usize = 3;

/// Warns of every `VEENA_*` name that no setting has.
pub fn warn_of_unknown_variables(names: impl IntoIterator<Item = String>) {
    for name in names {
        if is_unknown(&name) {
            let nearest = nearest(&name).unwrap_or_else(|| "none".to_owned());
            warn!(variable = %name, %nearest, "this variable is not known and sets nothing; docs/operate/configuration.md lists those that do");
        }
    }
}

fn is_unknown(name: &str) -> bool {
    let is_of_kubernetes =
        OF_KUBERNETES.iter().any(|set| name.strip_prefix(set).is_some_and(|rest| rest.is_empty() || rest.starts_with('_')));
    name.starts_with("VEENA_") && !OTHERS.contains(&name) && !is_of_kubernetes && KEYS.iter().all(|key| key.env != Some(name))
}

/// What was probably meant. A key may also have been written out in full, like `VEENA_STORAGE_DATA_DIR`.
fn nearest(name: &str) -> Option<String> {
    let candidates = KEYS.iter().map(|key| {
        let in_full = format!("VEENA_{}", key.path.replace('.', "_").to_uppercase());
        let distance = key.env.map_or(usize::MAX, |env| distance(name, env)).min(distance(name, &in_full));
        (distance, key)
    });
    let (_, key) = candidates.filter(|(distance, _)| *distance <= DISTANCE_MAX).min_by_key(|(distance, _)| *distance)?;
    Some(key.env.map_or_else(|| format!("{} in the file", key.path), str::to_owned))
}

/// How many letters must be put in, taken out or changed to make one name of the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut above_left = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = above_left + usize::from(x != y);
            above_left = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(above_left + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ours_that_set_nothing_are_unknown() {
        for name in ["VEENA_HTTP_ADR", "VEENA_", "VEENA_STORAGE_CODEC", "VEENA_PORTS", "VEENA_SERVICE_NAME"] {
            assert!(is_unknown(name), "{name}");
        }
        for name in ["VEENA_HTTP_ADDR", "VEENA_ADDR", "VEENA_STALL_FILE", "PATH", "NARAD_HTTP_ADDR"] {
            assert!(!is_unknown(name), "{name}");
        }
        for name in ["VEENA_SERVICE_HOST", "VEENA_SERVICE_PORT_HTTP", "VEENA_PORT", "VEENA_PORT_8080_TCP_ADDR"] {
            assert!(!is_unknown(name), "{name}: of a service of this name");
        }
    }

    #[test]
    fn the_name_that_was_probably_meant_is_found() {
        for (name, meant) in [
            ("VEENA_HTTP_ADR", Some("VEENA_HTTP_ADDR")),
            ("VEENA_DATADIR", Some("VEENA_DATA_DIR")),
            ("VEENA_STORAGE_DATA_DIR", Some("VEENA_DATA_DIR")),
            ("VEENA_STORAGE_CODEC", Some("storage.codec in the file")),
            ("VEENA_COLOUR", None),
        ] {
            assert_eq!(nearest(name).as_deref(), meant, "{name}");
        }
    }

    #[test]
    fn a_distance_counts_letters() {
        for (a, b, letters) in [("", "", 0), ("abc", "abc", 0), ("abc", "", 3), ("", "ab", 2), ("abc", "axc", 1), ("abcd", "bcde", 2)] {
            assert_eq!(distance(a, b), letters, "{a} {b}");
        }
    }
}
