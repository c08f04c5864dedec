//! Records of former lives of this node that were never dispatched: read from the WAL in pieces, never more in memory than the budget.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, info, warn};
use veena_contract::WalSeq;

use crate::core::Core;
use crate::produce::dispatch;

const PIECE_BYTES: usize = 8 * 1024 * 1024;
/// How long new records wait while the reader cannot go on.
const ORDER_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);

/// Feeds the dispatcher with everything from `from` to `end`.
pub async fn run(core: Arc<Core>, from: WalSeq, end: WalSeq) {
    info!(from = from.0, end = end.0, "dispatching records of a former life");
    let token = core.ports.tasks.token().clone();
    let mut position = from;
    let mut paused_since = None;
    while position < end && !token.is_cancelled() {
        if core.dispatch.former_bytes() > core.config.undispatched_bytes_max / 2 {
            let since = *paused_since.get_or_insert_with(Instant::now);
            if since.elapsed() > ORDER_PATIENCE && core.dispatch.give_up_order() {
                warn!("records of a former life cannot be dispatched: new ones no longer wait for them, and may overtake them");
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = token.cancelled() => {}
            }
            continue;
        }
        paused_since = None;
        let wal = core.wal.clone();
        let piece = core.ports.read_io.run(move || wal.read_backlog(position, end, PIECE_BYTES)).await;
        match piece {
            Ok(piece) => {
                for gap in &piece.gaps {
                    error!(stream = %gap.stream, first = gap.first.0, end = gap.end.0, "records of the WAL are damaged and lost");
                    core.metrics.damage_found.add(1);
                }
                for record in piece.records {
                    dispatch::enqueue_one(&core, record);
                }
                position = piece.next.max(position.next());
                core.dispatch.set_backlog(Some(position));
            }
            Err(error) => {
                error!(%error, position = position.0, "the WAL cannot be read; tried again");
                tokio::select! {
                    () = tokio::time::sleep(Duration::from_secs(1)) => {}
                    () = token.cancelled() => {}
                }
            }
        }
    }
    if position >= end {
        core.dispatch.set_backlog(None);
        info!("all records of the former life are on their way");
    }
}
