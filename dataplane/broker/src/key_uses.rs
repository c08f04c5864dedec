//! When keys were last used at this node: nobody is asked for that on a request's way, and no lock is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use imbl::OrdMap;
use veena_contract::{CatalogView, KeyId, limits};

/// How many keys that are gone may be remembered before they are looked for.
const GONE_MAX: usize = 1024;

/// The last use of each key that was used since this node started, to the hour.
#[derive(Default)]
pub struct KeyUses(ArcSwap<OrdMap<KeyId, Arc<AtomicU64>>>);

impl KeyUses {
    /// Somebody has signed in with this key of the view.
    pub fn note(&self, view: &CatalogView, id: KeyId, now_ms: u64) {
        let hour_ms = now_ms - now_ms % limits::KEY_USE_MS;
        if let Some(used_ms) = self.0.load().get(&id) {
            if used_ms.load(Ordering::Relaxed) < hour_ms {
                used_ms.fetch_max(hour_ms, Ordering::Relaxed);
            }
            return;
        }
        self.0.rcu(|uses| {
            let mut next = OrdMap::clone(uses);
            if next.len() >= view.keys.len() + GONE_MAX {
                next = next.into_iter().filter(|(id, _)| view.keys.contains_key(id)).collect();
            }
            next.entry(id).or_insert_with(|| Arc::new(AtomicU64::new(hour_ms)));
            next
        });
    }

    /// When somebody last has.
    #[must_use]
    pub fn last_ms(&self, id: KeyId) -> Option<u64> {
        self.0.load().get(&id).map(|used_ms| used_ms.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: usize) -> KeyId {
        KeyId::parse(&format!("{n:012}")).expect("an id")
    }

    #[test]
    fn the_last_use_is_known_to_the_hour_and_never_goes_back() {
        let (uses, view) = (KeyUses::default(), CatalogView::default());
        assert_eq!(uses.last_ms(id(1)), None);
        for (now_ms, last_ms) in [(7_200_001, 7_200_000), (10_799_999, 7_200_000), (10_800_000, 10_800_000), (7_200_000, 10_800_000)] {
            uses.note(&view, id(1), now_ms);
            assert_eq!((uses.last_ms(id(1)), uses.last_ms(id(2))), (Some(last_ms), None), "{now_ms}");
        }
    }

    #[test]
    fn of_keys_that_are_gone_few_are_remembered() {
        let (uses, view) = (KeyUses::default(), CatalogView::default());
        for n in 0..10 * GONE_MAX {
            uses.note(&view, id(n), 1);
        }
        assert!(uses.0.load().len() <= GONE_MAX);
        assert!(uses.last_ms(id(10 * GONE_MAX - 1)).is_some());
    }
}
