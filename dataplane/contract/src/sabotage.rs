//! Planted bugs, to prove that the suites can see. Compiled in with the feature `sabotage` alone; one bug is chosen by `VEENA_SABOTAGE`.

/// Is the planted bug of this name switched on? The variable is read once in a process.
#[cfg(feature = "sabotage")]
#[must_use]
pub fn is(name: &str) -> bool {
    static CHOSEN: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    CHOSEN.get_or_init(|| std::env::var("VEENA_SABOTAGE").ok()).as_deref() == Some(name)
}

/// Is the planted bug of this name switched on? Never: this build has none.
#[cfg(not(feature = "sabotage"))]
#[must_use]
pub const fn is(_name: &str) -> bool {
    false
}
