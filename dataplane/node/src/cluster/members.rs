//! What this node knows of the members, and how one that is dead is given up.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::timeout;
use veena_contract::{
    BoxFuture, Catalog, CatalogWriter, Command, Effect, FeatureLevel, ForgetError, LeaderPort, Member, Members, NodeDirectory, NodeId,
    Note, Obstacle, Origin, PeerAddr, PeerCall, PeerClass, PeerClient, PeerOp, ProposeError, Standing, limits,
};
use veena_metastore::{MemberError, Metastore};

use super::plan::obstacles;
use super::watch::{Question, Watch, ask};

/// The membership that the metastore knows, and who of it answers.
pub(super) struct ClusterMembers {
    pub me: NodeId,
    pub metastore: Metastore,
    pub client: Arc<dyn PeerClient>,
    pub watch: Arc<Watch>,
}

impl ClusterMembers {
    /// Who says that a node lives, and why; nobody, of one that is dead for all who can be asked.
    async fn sign_of_life(&self, node: &NodeId) -> Option<String> {
        let dead = Duration::from_millis(limits::MEMBER_DEAD_MS);
        let heard = |who: &str, silent: Duration| (silent < dead).then(|| life(who, silent));
        if let Some(life) = self.watch.silent(node).and_then(|silent| heard("this node", silent)) {
            return Some(life);
        }
        let status = self.metastore.status();
        let others = status.members.iter().map(|member| &member.peer).filter(|peer| peer.node != self.me);
        let answers = join_all(others.map(|peer| async move {
            let about = (peer.node != *node).then(|| node.clone());
            let question = Question { about, ..Question::default() };
            (peer, ask(self.client.as_ref(), peer, &question).await)
        }));
        answers.await.into_iter().find_map(|(peer, answer)| {
            let sign = answer.ok()?;
            if peer.node == *node {
                return Some("is not dead: it answers; decommission it instead".to_owned());
            }
            heard(&peer.node.0, Duration::from_millis(sign?.silent_ms?))
        })
    }

    async fn forget_dead(&self, node: &NodeId, origin: Origin) -> Result<bool, ForgetError> {
        if *node == self.me {
            return Err(ForgetError::Oneself);
        }
        let unavailable = |reason: String| ForgetError::Unavailable { reason, effect: Effect::None };
        self.metastore.confirmed_view().await.map_err(|error| match error {
            ProposeError::Unavailable { reason } | ProposeError::Uncertain { reason } => unavailable(reason),
            ProposeError::Refused(refused) => unavailable(refused.to_string()),
        })?;
        let status = self.metastore.status();
        let member = status.members.iter().find(|member| member.peer.node == *node).ok_or(ForgetError::NotAMember)?;
        if let Some(reason) = self.sign_of_life(node).await {
            return Err(ForgetError::Alive { node: node.clone(), reason });
        }
        // A node of an older program would not understand the record, and must not keep a dead one from being given up.
        if self.metastore.level() >= FeatureLevel::TENANTS {
            let note = Command::Note { what: Note::ForgetMember { node: node.clone() } };
            self.metastore.propose_from(origin, note).await.map_err(|error| match error {
                ProposeError::Refused(refused) => ForgetError::Refused { reason: refused.to_string() },
                // The member is there still, whatever became of the record.
                ProposeError::Unavailable { reason } | ProposeError::Uncertain { reason } => unavailable(reason),
            })?;
        }
        match self.metastore.remove(node).await {
            Ok(()) => Ok(member.is_voter),
            Err(MemberError::Refused { reason }) => Err(ForgetError::Refused { reason }),
            Err(error) => Err(ForgetError::Unavailable { reason: error.to_string(), effect: error.effect() }),
        }
    }
}

/// What is said of a node that `who` has heard not long ago.
fn life(who: &str, silent: Duration) -> String {
    let silent_s = silent.as_secs();
    if silent < Duration::from_millis(limits::MEMBER_SILENT_MS) {
        return format!("is not dead: {who} heard it {silent_s} s ago; decommission it instead");
    }
    let dead_s = Duration::from_millis(limits::MEMBER_DEAD_MS).as_secs();
    format!("has been silent for {silent_s} s, says {who}; it can be forgotten after {dead_s} s of silence")
}

impl NodeDirectory for ClusterMembers {
    fn nodes(&self) -> Vec<NodeId> {
        self.metastore.nodes()
    }

    fn address_of(&self, node: &NodeId) -> Option<PeerAddr> {
        self.metastore.address_of(node)
    }

    fn leader(&self) -> Option<NodeId> {
        self.metastore.status().leader
    }

    fn is_dead(&self, node: &NodeId) -> bool {
        self.watch.standing(node) == Standing::Dead
    }
}

impl Members for ClusterMembers {
    fn members(&self, within: Duration) -> BoxFuture<'_, Vec<Member>> {
        Box::pin(async move {
            let status = self.metastore.status();
            let asked = status.members.iter().map(|member| async {
                let peer = member.peer.clone();
                let is_leader = status.leader.as_ref().map(|leader| *leader == peer.node);
                let silent = self.watch.silent(&peer.node).unwrap_or_default();
                let (is_alive, is_ready) = if peer.node == self.me {
                    (true, true)
                } else if silent.is_zero() {
                    let heard = timeout(within, ask(self.client.as_ref(), &peer, &Question::default())).await.ok().and_then(Result::ok);
                    (heard.is_some(), heard.is_some_and(|sign| sign.is_some_and(|sign| sign.is_ready)))
                } else {
                    // It is asked again on the side, and nobody waits for it.
                    (false, false)
                };
                Member { peer, is_alive, is_ready, is_voter: member.is_voter, is_leader, silent }
            });
            let mut members = join_all(asked).await;
            members.sort_unstable_by(|a, b| a.peer.node.cmp(&b.peer.node));
            members
        })
    }

    fn standing(&self, node: &NodeId) -> Standing {
        self.watch.standing(node)
    }

    fn is_voter(&self, node: &NodeId) -> bool {
        self.metastore.status().members.iter().any(|member| member.is_voter && member.peer.node == *node)
    }

    fn status(&self, node: &NodeId) -> BoxFuture<'_, Result<Bytes, String>> {
        let peer = self.metastore.address_of(node);
        let silent = self.watch.silent(node).unwrap_or_default();
        Box::pin(async move {
            let peer = peer.ok_or_else(|| "it is no member".to_owned())?;
            if !silent.is_zero() {
                return Err(format!("it has been silent for {} s", silent.as_secs()));
            }
            let timeout = Duration::from_millis(limits::MEMBER_ANSWER_MS_MAX);
            let call = PeerCall { class: PeerClass::Control, op: PeerOp::NODE_STATUS, timeout, body: Bytes::new() };
            self.client.call(&peer, call).await.map_err(|error| error.to_string())
        })
    }

    fn obstacles(&self, node: &NodeId) -> Vec<Obstacle> {
        obstacles(&self.metastore.view(), &self.watch.seats(&self.metastore.status()), node)
    }

    fn forget(&self, node: &NodeId, origin: Origin) -> BoxFuture<'_, Result<bool, ForgetError>> {
        let node = node.clone();
        Box::pin(async move { self.forget_dead(&node, origin).await })
    }

    fn not_ready_reason(&self) -> Option<String> {
        self.watch.not_ready_reason()
    }

    fn taken_out(&self) -> Option<&'static str> {
        self.watch.taken_out()
    }

    fn until_taken_out(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.watch.until_taken_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_silent_is_not_called_alive() {
        let says = |silent_ms| life("node-1", Duration::from_millis(silent_ms));
        assert_eq!(says(4_999), "is not dead: node-1 heard it 4 s ago; decommission it instead");
        assert_eq!(says(8_200), "has been silent for 8 s, says node-1; it can be forgotten after 30 s of silence");
    }
}
