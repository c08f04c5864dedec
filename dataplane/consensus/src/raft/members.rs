//! Who takes part: joining, voting, leaving, moving. One change at a time, each of them the leader's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::error::RaftError;
use openraft::metrics::WaitError;
use openraft::{ChangeMembers, LogIdOptionExt, Membership};
use tokio::time::{Instant, sleep, timeout_at};
use veena_contract::{FeatureLevel, LineageId, LogIndex, NodeId, PeerAddr, PeerOp, limits};

use super::leader::{Leader, member_error, write_failure};
use super::node::{Consensus, Metrics, lowest_level};
use super::types::{CommandText, Member, MemberId, member_id};
use super::wire::{Change, Failure};
use crate::{Joining, MemberError};

/// How long one node is asked to be let in, before another one is.
const JOIN_TRY: Duration = Duration::from_millis(limits::METADATA_PROPOSE_MS_MAX);
/// How long those who would be voters are given to show that they live.
const LIVING_WITHIN: Duration = Duration::from_millis(limits::METADATA_LEADER_WAIT_MS_MAX);
const RETRY: Duration = Duration::from_millis(limits::METADATA_LEADER_RETRY_MS);

impl Consensus {
    /// Makes this node, whose log is empty, a learner of the cluster that one of the `known` nodes belongs to, and waits until it has
    /// applied what made it one. Until then it serves no raft call: a node that lost its log must not vote again under its old name, nor
    /// be taken for one that has what was confirmed to it. Does nothing if the log is not empty.
    ///
    /// # Errors
    /// [`MemberError::Refused`] if the name is a voter's: then that voter has lost its log, and has to be removed first; or if the
    /// [`Door`](crate::Door) is closed to the name, and this is not the directory that was let in under it.
    pub async fn join(&self, known: &[PeerAddr], deadline: Duration) -> Result<(), MemberError> {
        if !self.is_blank() {
            return Ok(());
        }
        let until = Instant::now() + deadline;
        let failed = |failure| member_error(failure, deadline);
        let change = Change::Join {
            name: self.node.to_string(),
            addr: self.addr.to_string(),
            directory: self.directory.to_string(),
            left: self.left,
            level: self.level,
        };
        let at = self.ask_around(known, &change, until).await.map_err(failed)?;
        self.parts.is_open.store(true, Ordering::Release);
        self.applied(at, until).await.map_err(failed)
    }

    /// Has the leader asked for a change that any of these nodes may pass on.
    async fn ask_around(&self, known: &[PeerAddr], change: &Change, until: Instant) -> Result<LogIndex, Failure> {
        let mut failure = Failure::NoLeader("no other node is known".to_owned());
        loop {
            for peer in known.iter().filter(|peer| peer.node != self.node) {
                let attempt = until.min(Instant::now() + JOIN_TRY);
                match self.ask_through(peer, PeerOp::METADATA_MEMBERS, change, || attempt).await {
                    // Joining twice is joining once: whatever became of it, it can be asked for again.
                    Err(again @ (Failure::NoLeader(_) | Failure::Lost(_) | Failure::Timeout | Failure::Elsewhere { .. })) => {
                        failure = again
                    }
                    other => return other,
                }
            }
            if known.is_empty() || Instant::now() + RETRY >= until {
                return Err(failure);
            }
            sleep(RETRY).await;
        }
    }

    /// Makes a learner a voter, once it has nearly caught up. Does nothing to a voter.
    ///
    /// # Errors
    /// [`MemberError`], whose effect says whether it may have become one.
    pub async fn promote(&self, node: &NodeId, deadline: Duration) -> Result<(), MemberError> {
        self.change(Change::Promote { name: node.to_string() }, deadline).await
    }

    /// Takes a member out. It has no vote from then on, and is served no more. Does nothing if it is none.
    ///
    /// # Errors
    /// [`MemberError::Refused`] for the last voter; its effect says whether the member may have been taken out.
    pub async fn remove(&self, node: &NodeId, deadline: Duration) -> Result<(), MemberError> {
        self.change(Change::Remove { name: node.to_string() }, deadline).await
    }

    /// Tells the cluster where this node listens, and what it knows of commands. Says so also if that is what this node knows of itself: it may have missed what the
    /// others know.
    ///
    /// # Errors
    /// [`MemberError`], whose effect says whether the cluster may know it.
    pub async fn announce_address(&self, deadline: Duration) -> Result<(), MemberError> {
        if self.addr.is_empty() {
            return Ok(());
        }
        let change = Change::Address { name: self.node.to_string(), addr: self.addr.to_string(), level: self.level };
        match self.change(change.clone(), deadline).await {
            // The leader tells its members that it leads, and does not know where this one is.
            Err(MemberError::NoLeader { .. }) => {}
            other => return other,
        }
        let until = Instant::now() + deadline;
        let failed = |failure| member_error(failure, deadline);
        let members: Vec<PeerAddr> = self.status().members.into_iter().map(|member| member.peer).collect();
        let at = self.ask_around(&members, &change, until).await.map_err(failed)?;
        self.applied(at, until).await.map_err(failed)
    }

    async fn change(&self, change: Change, deadline: Duration) -> Result<(), MemberError> {
        let until = Instant::now() + deadline;
        let here = || self.change_here(&change, until);
        let failed = |failure| member_error(failure, deadline);
        let at: LogIndex = self.at_leader(PeerOp::METADATA_MEMBERS, &change, until, here).await.map_err(failed)?;
        // A node that has taken itself out is told of it no more.
        if matches!(&change, Change::Remove { name } if *name == *self.node.0) {
            return Ok(());
        }
        self.applied(at, until).await.map_err(failed)
    }

    /// Makes one change, if this member leads. Answers where it stands in the log.
    pub(super) async fn change_here(&self, change: &Change, until: Instant) -> Result<LogIndex, Failure> {
        let changing = async {
            if let Change::Promote { name } = change {
                self.caught_up(name, until).await?;
            }
            let _one_at_a_time = self.parts.changes.lock().await;
            self.finish_change().await?;
            match change {
                Change::Join { name, addr, directory, left, level } => {
                    let member = Member { name: name.clone(), addr: addr.clone(), directory: directory.clone(), level: *level };
                    self.join_here(member, *left, until).await
                }
                Change::Promote { name } => self.promote_here(name).await,
                Change::Remove { name } => self.remove_here(name).await,
                Change::Address { name, addr, level } => self.address_here(name, addr, *level).await,
            }
        };
        timeout_at(until, changing).await.unwrap_or(Err(Failure::Timeout))
    }

    /// Ends a change of voters that a leader before this one has left halfway.
    async fn finish_change(&self) -> Result<(), Failure> {
        let membership = self.membership()?;
        if let [_, .., last] = membership.get_joint_config().as_slice() {
            self.commit_change(ChangeMembers::ReplaceAllVoters(last.clone()), true).await?;
        }
        Ok(())
    }

    async fn join_here(&self, joining: Member, left: Option<LineageId>, until: Instant) -> Result<LogIndex, Failure> {
        let (name, directory) = (joining.name.as_str(), joining.directory.as_str());
        let (id, membership) = (id_of(name), self.membership()?);
        let is_known = membership.get_node(&id).is_some_and(|member| !directory.is_empty() && member.directory == directory);
        if lowest_level(&membership).is_some_and(|level| joining.level < level) {
            return Err(Failure::Refused(format!(
                "the program of {name} is older than all of this cluster and would not understand what they write: start it with a newer one"
            )));
        }
        match membership.get_node(&id) {
            Some(other) if other.name != name => {
                return Err(Failure::Refused(format!("the name {name} cannot be told from {}; choose another", other.name)));
            }
            Some(_) if is_voter(&membership, id) => {
                return Err(Failure::Refused(format!(
                    "{name} is a voter of this cluster and comes with an empty log: it has lost its disk: put its data directory back, or start under another name"
                )));
            }
            // It was let in before, and has nothing yet. What was given to it since was given to this directory.
            Some(_) if is_known && !self.has_matched(id) => return self.address_here(name, &joining.addr, joining.level).await,
            Some(_) if is_known => {}
            _ => self.check_door(Joining { node: &NodeId(name.into()), directory, left }, until).await?,
        }
        if membership.get_node(&id).is_some() {
            // What the leader knew of a learner's log is gone with that log.
            self.commit_change(ChangeMembers::RemoveNodes(BTreeSet::from([id])), true).await?;
        }
        self.commit_change(ChangeMembers::AddNodes(BTreeMap::from([(id, joining)])), true).await
    }

    /// Has this member, as far as the leader knows, anything of the log?
    fn has_matched(&self, id: MemberId) -> bool {
        self.raft.metrics().borrow().replication.as_ref().and_then(|all| all.get(&id)).is_some_and(Option::is_some)
    }

    /// What was committed under a leader before this one counts too.
    async fn check_door(&self, joining: Joining<'_>, until: Instant) -> Result<(), Failure> {
        let at = self.confirm_here(until).await?;
        self.applied(at, until).await?;
        (self.parts.door)(joining).map_or(Ok(()), |reason| Err(Failure::Refused(reason)))
    }

    /// Waits until a learner has everything that was committed when this was called.
    async fn caught_up(&self, name: &str, until: Instant) -> Result<(), Failure> {
        let id = id_of(name);
        if self.membership()?.get_node(&id).is_none() {
            return Err(Failure::Refused(format!("{name} is no member; let it join first")));
        }
        // What is left of the time is for the change itself.
        let patience = until.saturating_duration_since(Instant::now()) * 3 / 4;
        if self.have(&BTreeSet::from([id]), 1, patience).await? {
            return Ok(());
        }
        Err(Failure::Refused(format!("{name} has not caught up in time")))
    }

    async fn promote_here(&self, name: &str) -> Result<LogIndex, Failure> {
        let (id, membership) = (id_of(name), self.membership()?);
        if is_voter(&membership, id) {
            return Ok(self.last_membership());
        }
        let voters: BTreeSet<MemberId> = membership.voter_ids().chain([id]).collect();
        self.check_living(&voters).await?;
        self.commit_change(ChangeMembers::AddVoterIds(BTreeSet::from([id])), true).await
    }

    /// A change that those who live could not finish would leave the cluster without a leader that can do anything.
    async fn check_living(&self, voters: &BTreeSet<MemberId>) -> Result<(), Failure> {
        let majority = voters.len() / 2 + 1;
        if self.have(voters, majority, LIVING_WITHIN).await? {
            return Ok(());
        }
        Err(Failure::Refused("too few of those who would be voters answer".to_owned()))
    }

    /// Do this many of these have everything that was committed when this was called?
    async fn have(&self, members: &BTreeSet<MemberId>, count: usize, within: Duration) -> Result<bool, Failure> {
        let mark = self.write_here(CommandText::nothing(), Instant::now() + within).await;
        let mark = match mark {
            Ok(written) => written.at.0,
            Err(Failure::Timeout) => return Ok(false),
            // It changes nothing: whatever became of it, nothing was done.
            Err(Failure::Lost(reason)) => return Err(Failure::NoLeader(reason)),
            Err(failure) => return Err(failure),
        };
        let enough = |metrics: &Metrics| {
            let Some(all) = &metrics.replication else { return true };
            members.iter().filter(|id| all.get(id).is_some_and(|at| at.index() >= Some(mark))).count() >= count
        };
        match self.raft.wait(Some(within)).metrics(enough, "members have everything").await {
            Ok(metrics) if metrics.replication.is_some() => Ok(true),
            Ok(_) => Err(Failure::NoLeader("another node leads".to_owned())),
            Err(WaitError::Timeout(..)) => Ok(false),
            Err(WaitError::ShuttingDown) => Err(Failure::Stopped("this node is stopping".to_owned())),
        }
    }

    async fn remove_here(&self, name: &str) -> Result<LogIndex, Failure> {
        let (id, membership) = (id_of(name), self.membership()?);
        if membership.get_node(&id).is_none() {
            return Ok(self.last_membership());
        }
        let ids = BTreeSet::from([id]);
        if !is_voter(&membership, id) {
            return self.commit_change(ChangeMembers::RemoveNodes(ids), false).await;
        }
        if membership.voter_ids().count() == 1 {
            return Err(Failure::Refused(format!("{name} is the only voter")));
        }
        self.check_living(&membership.voter_ids().filter(|voter| *voter != id).collect()).await?;
        self.commit_change(ChangeMembers::RemoveVoters(ids), false).await
    }

    async fn address_here(&self, name: &str, addr: &str, level: FeatureLevel) -> Result<LogIndex, Failure> {
        let (id, membership) = (id_of(name), self.membership()?);
        let member = match membership.get_node(&id) {
            None => return Err(Failure::NotAMember),
            Some(member) if member.addr == addr && member.level == level => return Ok(self.last_membership()),
            Some(member) => Member { addr: addr.to_owned(), level, ..member.clone() },
        };
        self.commit_change(ChangeMembers::SetNodes(BTreeMap::from([(id, member)])), true).await
    }

    /// The members, if this one leads.
    fn membership(&self) -> Result<Membership<MemberId, Member>, Failure> {
        match self.leader() {
            Leader::Here => Ok(self.raft.metrics().borrow().membership_config.membership().clone()),
            Leader::Stopped(reason) => Err(Failure::Stopped(reason)),
            Leader::At(_) | Leader::Unknown(_) => Err(Failure::NoLeader("another node leads".to_owned())),
        }
    }

    fn last_membership(&self) -> LogIndex {
        LogIndex(self.raft.metrics().borrow().membership_config.log_id().index().unwrap_or_default())
    }

    async fn commit_change(&self, change: ChangeMembers<MemberId, Member>, retain: bool) -> Result<LogIndex, Failure> {
        match self.raft.change_membership(change, retain).await {
            Ok(written) => Ok(LogIndex(written.log_id.index)),
            Err(error @ RaftError::APIError(_)) => Err(write_failure(error)),
            Err(RaftError::Fatal(fatal)) => Err(Failure::Lost(fatal.to_string())),
        }
    }
}

fn id_of(name: &str) -> MemberId {
    member_id(&NodeId(name.into()))
}

fn is_voter(membership: &Membership<MemberId, Member>, id: MemberId) -> bool {
    membership.voter_ids().any(|voter| voter == id)
}
