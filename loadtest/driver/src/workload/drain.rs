//! Reads topics until nothing is left, so that the checker may speak of loss.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use futures_util::future::try_join_all;
use veena_loadtest_checker::How;

use super::consumer::{lease, settle};
use super::{Plan, observer};
use crate::api::{Client, NewTopic};
use crate::recorder::Recorder;

/// How many read one topic: each settles one message after the other.
const READERS: usize = 4;
const WAIT: Duration = Duration::from_millis(200);
/// How much longer than a lease a topic must stay silent to be called empty.
const SILENCE_BEYOND_LEASE: Duration = Duration::from_millis(1500);

/// Reads and acks everything in the plan's topics. Silent for longer than any lease lives: nothing is left.
///
/// # Errors
/// The topics are not empty after `deadline`, or the node does not describe them.
pub async fn drain(plan: &Plan, recorder: &Arc<Recorder>, deadline: Duration) -> anyhow::Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for topic in plan.all_topics() {
        let readers: Vec<_> = (0..READERS).map(|_| recorder.new_client()).map(|number| (plan.client(number), number)).collect();
        let (topic, recorder) = (topic.clone(), recorder.clone());
        tasks.spawn(async move {
            let read = readers.into_iter().map(|(client, number)| read_all(client, number, &topic, &recorder, deadline));
            let Some((mut client, number)) = try_join_all(read).await?.pop() else { return Ok(()) };
            observer::observe(&mut client, number, &topic.name, &recorder).await
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// One of those who read a topic, with its client afterwards.
async fn read_all(
    mut client: Client,
    number: u32,
    topic: &NewTopic,
    recorder: &Recorder,
    deadline: Duration,
) -> anyhow::Result<(Client, u32)> {
    let silence = Duration::from_millis(topic.visibility_ms) + SILENCE_BEYOND_LEASE;
    let started = Instant::now();
    let mut last_came = Instant::now();
    while last_came.elapsed() < silence {
        if started.elapsed() > deadline {
            bail!("{} still delivers after {deadline:?}", topic.name);
        }
        let Some(messages) = lease(&mut client, recorder, number, topic, WAIT, 100).await else {
            // Refused or unanswered is not silent.
            last_came = Instant::now();
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        for handle in messages.iter().filter_map(|message| message.handle.as_deref()) {
            settle(&mut client, recorder, number, &topic.name, handle, How::Ack).await;
        }
        if !messages.is_empty() {
            last_came = Instant::now();
        }
    }
    Ok((client, number))
}
