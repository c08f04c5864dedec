//! Clients that send under idempotency keys: again and again what was not answered, in this life of the node or a later one, and at times what
//! was. However often a message is sent, it is stored once, and each answer names the same place.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use veena_broker::errors::ProduceError;
use veena_broker::message::{Committed, NewMessage};
use veena_contract::{IdempotencyKey, MessageId, Offset, PartitionIndex, TopicRecord};
use veena_loadtest_checker::{Label, Op, Outcome, Sent};

use crate::chance::Chance;
use crate::clients::{Client, is_living, outcome_of};
use crate::history::{digest, payload};
use crate::tally::Kind;
use crate::world::{World, key_of, tenant};

/// Longer than a run takes, the jumps of its clock included.
pub const WINDOW_MS: u64 = 3_600_000;
/// How many of these clients a life has.
pub const CLIENTS: u32 = 2;
/// The number of the first.
pub const CLIENT: u32 = 800;
/// How often the last life sends a message before it is said to be impossible.
const LAST_TRIES: u32 = 100;

/// What these clients remember over the lives of the node.
pub struct Once {
    /// Does the seed have such clients?
    pub is_on: bool,
    chance: Mutex<Chance>,
    drafts: Mutex<Vec<Draft>>,
}

/// One message.
#[derive(Clone)]
struct Draft {
    /// The incarnation that it is for.
    record: Arc<TopicRecord>,
    key: IdempotencyKey,
    label: Label,
    payload: Bytes,
    /// Where it is, as an answer said.
    place: Option<Place>,
}

type Place = (PartitionIndex, Offset, MessageId);

fn place_of(committed: &Committed) -> Place {
    (committed.partition, committed.offset, committed.id)
}

impl Once {
    /// What a seed decides. Drawn beside everything else, so that seeds without such clients keep their stories.
    #[must_use]
    pub fn of(aside: &Chance) -> Self {
        let mut chance = Chance::seeded(aside.clone().next_u64());
        Self { is_on: chance.percent(40), chance: Mutex::new(chance), drafts: Mutex::default() }
    }

    /// The chance of one more client.
    pub fn fork(&self) -> Chance {
        self.chance.lock().fork()
    }

    /// A message that was not answered yet, or one that was, of incarnations for which `lives` says so.
    fn any(&self, chance: &mut Chance, is_answered: bool, lives: impl Fn(&TopicRecord) -> bool) -> Option<usize> {
        let drafts = self.drafts.lock();
        let fits = |draft: &Draft| draft.place.is_some() == is_answered && lives(&draft.record);
        let fitting: Vec<usize> = drafts.iter().enumerate().filter(|(_, draft)| fits(draft)).map(|(at, _)| at).collect();
        (!fitting.is_empty()).then(|| *chance.pick(&fitting))
    }
}

/// How one attempt ended.
enum Attempt {
    Answered,
    Refused(ProduceError),
    /// The node is dead, or died.
    Unanswered,
    /// Its topic is gone.
    Moot,
}

impl Attempt {
    /// Why it must be made again.
    fn failure(self) -> Option<String> {
        match self {
            Self::Refused(error) => Some(error.to_string()),
            Self::Unanswered => Some("no answer".to_owned()),
            Self::Answered | Self::Moot => None,
        }
    }
}

impl Client {
    /// Sends messages under keys, for ever.
    pub async fn produce_once_each(mut self) {
        loop {
            let pause = self.chance.ms(0, 300);
            tokio::time::sleep(pause).await;
            self.door.turn(&mut self.chance);
            let (dice, mut pick) = (self.chance.below(100), self.chance.fork());
            let once = &self.world.once;
            let lives = |record: &TopicRecord| self.record(record.name.as_str()).is_some_and(|living| living.id == record.id);
            let known = match dice {
                0..50 => once.any(&mut pick, false, lives),
                50..65 => once.any(&mut pick, true, lives),
                _ => None,
            };
            let Some(at) = known.or_else(|| self.draft_once()) else { continue };
            if let Attempt::Refused(ProduceError::KeyReused) = self.attempt(at).await {
                self.world.complain("an idempotency key is said to stand for another message, and stands for none".to_owned());
            }
        }
    }

    fn draft_once(&mut self) -> Option<usize> {
        let topic = self.any_root();
        let record = self.record(topic)?;
        let label = self.world.history.new_label();
        let bytes = usize::try_from(self.chance.between(16, 400)).unwrap_or(16);
        let key = IdempotencyKey::parse(format!("order {label}").as_bytes()).expect("invariant: printable and short");
        let mut drafts = self.world.once.drafts.lock();
        drafts.push(Draft { record, key, label, payload: Bytes::from(payload(label, bytes)), place: None });
        Some(drafts.len() - 1)
    }

    async fn attempt(&mut self, at: usize) -> Attempt {
        let world: Arc<World> = Arc::clone(&self.world);
        let draft = world.once.drafts.lock()[at].clone();
        let record = &draft.record;
        let sent = Sent { topic: key_of(record), label: draft.label, key: None, digest: digest(&draft.payload), once: true };
        let opened = world.history.open(&self.door.name(), self.number, Op::Produce(sent));
        let message =
            NewMessage { key: None, partition: None, headers: Vec::new(), idempotency_key: Some(draft.key), payload: draft.payload };
        let (name, id) = (record.name.clone(), record.id);
        let answer = self.door.ask(move |broker| async move {
            // The engine resolves the name when it is first polled: nothing comes between this and that.
            if !is_living(&broker, &name, id) {
                return None;
            }
            let answer = broker.produce_committed(&tenant(), &name, vec![message]).await;
            Some(answer.map_err(|refused| refused.error).and_then(|mut all| all.pop().unwrap_or(Err(ProduceError::OutcomeUnknown))))
        });
        let answer = match answer.await {
            Ok(Some(answer)) => answer,
            Ok(None) => {
                world.history.close(opened, Outcome::Fail);
                return Attempt::Moot;
            }
            Err(none) => {
                world.history.close(opened, none.outcome());
                return Attempt::Unanswered;
            }
        };
        world.history.close(opened, answer.as_ref().map_or_else(|error| outcome_of(error.effect()), |_| Outcome::Ok));
        let committed = match answer {
            Ok(committed) => committed,
            Err(error) => return Attempt::Refused(error),
        };
        if committed.is_replayed {
            world.tally.add(Kind::Replayed);
        }
        if draft.place.is_some() && !committed.is_replayed {
            world.complain(format!("message {} was answered, and is stored again under its idempotency key", draft.label));
        }
        let place = *world.once.drafts.lock()[at].place.get_or_insert(place_of(&committed));
        if place != place_of(&committed) {
            world.complain(format!("message {} is at {place:?}, and at {:?} by another answer", draft.label, place_of(&committed)));
        }
        Attempt::Answered
    }

    /// The last life: sends everything until it is answered, and once more what was.
    pub async fn settle_once(&mut self) {
        let count = self.world.once.drafts.lock().len();
        for at in 0..count {
            let mut tries = 0;
            while let Some(why) = self.attempt(at).await.failure() {
                tries += 1;
                if tries == LAST_TRIES {
                    self.world.complain(format!("a message with an idempotency key is not taken by a healed node: {why}"));
                    break;
                }
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        for at in 0..count {
            if let Some(why) = self.attempt(at).await.failure() {
                self.world.complain(format!("a message that was just answered is refused: {why}"));
            }
        }
    }
}
