//! Looks at the topics' numbers while others work: a watermark never goes back.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use veena_loadtest_checker::{Observed, Op, Outcome};

use super::{Plan, topic_key};
use crate::api::Client;
use crate::recorder::Recorder;

const EVERY: Duration = Duration::from_millis(50);

pub(super) async fn run(plan: Plan, recorder: Arc<Recorder>, stop: CancellationToken) {
    let number = recorder.new_client();
    let mut client = plan.client(number).with_timeout(Duration::from_secs(5));
    while !stop.is_cancelled() {
        for topic in plan.all_topics() {
            // A node that is down describes nothing.
            let _ = observe(&mut client, number, &topic.name, &recorder).await;
        }
        tokio::time::sleep(EVERY).await;
    }
}

/// One recorded description of a topic.
pub(super) async fn observe(client: &mut Client, number: u32, topic: &str, recorder: &Recorder) -> anyhow::Result<()> {
    let (at, node) = (recorder.now_us(), client.node());
    for numbers in client.describe(topic).await? {
        let observed = Observed {
            topic: topic_key(topic),
            partition: numbers.index,
            log_end: numbers.next_offset,
            high_watermark: numbers.high_watermark,
            frontier: numbers.frontier,
            owner: numbers.owner_node.as_deref().filter(|_| recorder.is_of_several()).map(Into::into),
        };
        recorder.note(node, number, at, Op::Observe(observed), Outcome::Ok);
    }
    Ok(())
}
