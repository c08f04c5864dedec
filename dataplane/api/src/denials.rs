//! What this node has refused to whom, counted until it is written into the audit trail: how often, by which rule. Bounded, whoever knocks.
//!
//! A stop writes what is left; a node that dies takes the last minute with it.

use std::collections::BTreeMap;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tracing::debug;
use veena_contract::{Actor, Command, Denial, Effect, Note, TenantId, limits};

use crate::problem::Problem;
use crate::route::{Route, Verb};
use crate::state::ApiState;

/// How long a node that stops tries to write down what is left.
const LAST_WITHIN: Duration = Duration::from_secs(2);

/// The counts since they were last taken.
#[derive(Default)]
pub(crate) struct Denials(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    since_ms: u64,
    /// By whom, if that is known, and the rule.
    rows: BTreeMap<(Option<Actor>, String), u64>,
    /// What found no row.
    others: u64,
}

impl Counts {
    fn add(&mut self, actor: Option<Actor>, rule: String, count: u64) {
        let key = (actor, rule);
        let of_tenant = |other: &Option<Actor>| other.as_ref().map(|actor| &actor.tenant) == key.0.as_ref().map(|actor| &actor.tenant);
        let has_room = || {
            self.rows.len() < limits::DENIALS_MAX
                && self.rows.keys().filter(|(actor, _)| of_tenant(actor)).count() < limits::DENIALS_PER_TENANT_MAX
        };
        if self.rows.contains_key(&key) || has_room() {
            *self.rows.entry(key).or_default() += count;
        } else {
            self.others += count;
        }
    }

    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.others == 0
    }

    fn note(&self) -> Note {
        let denials = self.rows.iter().map(|((actor, rule), count)| Denial {
            tenant: actor.as_ref().map_or_else(TenantId::default_tenant, |actor| actor.tenant.clone()),
            username: actor.as_ref().map(|actor| actor.username.clone()),
            rule: rule.clone(),
            count: *count,
        });
        Note::Denials { since_ms: self.since_ms, denials: denials.collect(), others: self.others }
    }
}

impl Denials {
    /// Counts a refusal, if it is one that says that somebody may not, or not so much. Of whoever is not known only the code is told: what they
    /// asked for is their own choice, and there are many things to ask for.
    pub(crate) fn count(&self, now_ms: u64, actor: Option<Actor>, asked: Option<(Route, Verb)>, problem: &Problem) {
        if !matches!(problem.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::TOO_MANY_REQUESTS) {
            return;
        }
        let code = problem.code.as_str();
        let rule = match (&actor, asked) {
            (Some(_), Some((route, verb))) => format!("{code} {} {}", verb.name(), route.template()),
            _ => code.to_owned(),
        };
        let mut counts = self.0.lock();
        if counts.is_empty() {
            counts.since_ms = now_ms;
        }
        counts.add(actor, rule, 1);
    }

    fn take(&self) -> Option<Counts> {
        let mut counts = self.0.lock();
        (!counts.is_empty()).then(|| std::mem::take(&mut *counts))
    }

    /// Puts back what could not be written.
    fn put_back(&self, taken: Counts) {
        let mut counts = self.0.lock();
        let since = std::mem::replace(&mut *counts, taken);
        counts.others += since.others;
        since.rows.into_iter().for_each(|((actor, rule), count)| counts.add(actor, rule, count));
    }
}

impl ApiState {
    /// Writes down what was denied since the last time, if anything was.
    pub async fn write_denials(&self) {
        let Some(taken) = self.denials.take() else { return };
        if let Err(error) = self.parts.writer.propose(Command::Note { what: taken.note() }).await {
            debug!(%error, "what was denied is not in the audit trail yet");
            // What may have been written is not written twice.
            if error.effect() == Effect::None {
                self.denials.put_back(taken);
            }
        }
    }

    /// The same, again and again.
    pub(crate) async fn keep_writing_denials(self) {
        loop {
            sleep(Duration::from_millis(limits::DENIALS_EVERY_MS)).await;
            self.write_denials().await;
        }
    }

    /// The same, for the last time.
    pub(crate) async fn write_last_denials(&self) {
        if timeout(LAST_WITHIN, self.write_denials()).await.is_err() {
            debug!("what was denied last is not in the audit trail");
        }
    }
}

#[cfg(test)]
mod tests {
    use veena_contract::Username;

    use super::*;

    fn actor(tenant: &str, name: &str) -> Option<Actor> {
        Some(Actor { tenant: TenantId::parse(tenant).expect("a tenant"), username: Username::parse(name).expect("a name"), checked: None })
    }

    fn forbidden() -> Problem {
        Problem::forbidden("no".to_owned())
    }

    #[test]
    fn denials_are_counted_by_who_and_by_rule_and_nothing_else_is() {
        let denials = Denials::default();
        let asked = Some((Route::Users, Verb::Get));
        for (who, problem) in [
            (None, Problem::unauthenticated()),
            (None, Problem::unauthenticated()),
            (actor("acme", "joe"), forbidden()),
            (actor("acme", "joe"), forbidden()),
            (actor("acme", "ann"), Problem::topic_not_found()),
        ] {
            denials.count(5, who, asked, &problem);
        }
        let Note::Denials { since_ms, denials: rows, others } = denials.take().expect("some").note() else { panic!("denials") };
        let told: Vec<String> = rows
            .iter()
            .map(|row| format!("{:?}@{} {} {}", row.username.as_ref().map(Username::as_str), row.tenant, row.rule, row.count))
            .collect();
        assert_eq!((since_ms, others), (5, 0));
        assert_eq!(told, [r#"None@default unauthenticated 2"#, r#"Some("joe")@acme forbidden GET /v1/users 2"#]);
        assert!(denials.take().is_none());
    }

    #[test]
    fn one_tenant_leaves_room_for_others_and_all_together_are_bounded() {
        let denials = Denials::default();
        let asked = Some((Route::Users, Verb::Get));
        for n in 0..limits::DENIALS_MAX + 10 {
            denials.count(1, actor("busy", &format!("u{n}")), asked, &forbidden());
        }
        denials.count(1, actor("acme", "joe"), asked, &forbidden());
        let taken = denials.take().expect("some");
        assert_eq!((taken.rows.len(), taken.others), (limits::DENIALS_PER_TENANT_MAX + 1, 266 - 64));
        denials.count(9, actor("acme", "joe"), asked, &forbidden());
        denials.put_back(taken);
        let again = denials.take().expect("some");
        assert_eq!((again.since_ms, again.rows.len(), again.others), (1, limits::DENIALS_PER_TENANT_MAX + 1, 266 - 64));
        assert_eq!(again.rows.values().sum::<u64>(), 64 + 2);
    }
}
