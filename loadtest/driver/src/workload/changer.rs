//! Makes topics and takes them away while nodes are hurt. What was answered must hold at the end, and what was refused must not have happened.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::Outcome;

use super::Plan;
use crate::api::{Client, outcome_of};
use crate::chance::Chance;
use crate::http::{Exchange, RequestBytes};

const PAUSE_MS_MAX: u64 = 400;
/// How many topics stay: each has partitions, which have to move when nodes leave.
const KEPT_MAX: usize = 12;

/// What is known of a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    There,
    Gone,
    /// A change was not answered.
    Unknown,
}

/// Topics that were made by one client, each once and under a name of its own.
#[derive(Debug, Default)]
pub struct Changes(Vec<(String, Fate)>);

impl Changes {
    /// Makes and takes away until told to stop.
    pub async fn make(plan: Plan, mut chance: Chance, stop: CancellationToken) -> Self {
        let mut client = plan.client(0);
        let mut changes = Self::default();
        while !stop.is_cancelled() {
            let name = format!("made-{}", changes.0.len());
            let body = serde_json::json!({ "name": name, "partitions": 1 + chance.below(3) }).to_string();
            let mut fate = match ask(&mut client, &RequestBytes::post_json("/v1/topics", body.as_bytes())).await {
                Outcome::Ok => Fate::There,
                Outcome::Fail => Fate::Gone,
                Outcome::Unknown => Fate::Unknown,
            };
            if fate == Fate::There && chance.percent(60) {
                client.turn();
                fate = take_away(&mut client, &name).await;
            }
            changes.0.push((name, fate));
            changes.take_away_beyond(KEPT_MAX, &mut client, &mut chance).await;
            tokio::time::sleep(Duration::from_millis(chance.below(PAUSE_MS_MAX))).await;
        }
        changes
    }

    /// One of those that are there goes, if there are more than `kept`.
    async fn take_away_beyond(&mut self, kept: usize, client: &mut Client, chance: &mut Chance) {
        let there: Vec<usize> = (0..self.0.len()).filter(|at| self.0[*at].1 == Fate::There).collect();
        if there.len() > kept
            && let Some(at) = chance.pick(&there)
        {
            self.0[at].1 = take_away(client, &self.0[at].0).await;
        }
    }

    /// What a node says otherwise than was answered.
    ///
    /// # Errors
    /// It does not answer, or there is nothing to ask for.
    pub async fn wrong_at(&self, client: &mut Client) -> anyhow::Result<Vec<String>> {
        let known = |wanted| self.0.iter().filter(|(_, fate)| *fate == wanted).count();
        anyhow::ensure!(known(Fate::There) > 0 && known(Fate::Gone) > 0, "no topic was made, or none was taken away");
        let mut wrong = Vec::new();
        for (name, fate) in &self.0 {
            let status = client.get(&format!("/v1/topics/{name}/schema")).await?.status;
            match (fate, status) {
                (Fate::There, 200) | (Fate::Gone, 404) | (Fate::Unknown, 200 | 404) => {}
                (fate, status) => wrong.push(format!("topic {name} is {fate:?} by what was answered, and is answered with {status}")),
            }
        }
        Ok(wrong)
    }
}

async fn take_away(client: &mut Client, name: &str) -> Fate {
    let request = RequestBytes::new("DELETE", &format!("/v1/topics/{name}"), &["X-Veena-Client: load"], b"");
    match ask(client, &request).await {
        Outcome::Ok => Fate::Gone,
        Outcome::Fail => Fate::There,
        Outcome::Unknown => Fate::Unknown,
    }
}

async fn ask(client: &mut Client, request: &RequestBytes) -> Outcome {
    let answered: Result<_, Exchange> = client.call(request).await;
    answered.map_or_else(|err| outcome_of(&err), |reply| reply.outcome())
}
