use futures_util::FutureExt;
use parking_lot::Mutex as Locked;
use serde_json::json;
use veena_contract::{BoxFuture, CallerGone, CatalogWriter, Command, DrainMark, FeatureLevel, PeerRequest};
use veena_metastore::{MemLog, MetastoreConfig, Runtime};

use super::*;
use crate::system::OsEntropy;

#[test]
fn a_clock_is_off_only_if_it_is_certainly_off() {
    let ahead = |theirs_ms, took_ms| clock_ahead(theirs_ms, 100_000, Duration::from_millis(took_ms));
    assert_eq!((ahead(102_001, 0), ahead(97_999, 0)), (Some(2_001), Some(-2_001)));
    for (theirs_ms, took_ms, is_off) in [
        (100_000, 0, false),
        (102_000, 0, false),
        (98_000, 0, false),
        // It may have been written at any time while the answer was on its way.
        (102_000, 2_000, false),
        (102_001, 2_000, true),
        (96_000, 2_000, false),
        (95_999, 2_000, true),
        (0, 1, true),
    ] {
        assert_eq!(ahead(theirs_ms, took_ms).is_some(), is_off, "{theirs_ms} after {took_ms}");
    }
}

#[test]
fn what_nodes_say_to_each_other_only_grows() {
    let sign = Sign { wall_ms: 7, is_ready: true, drained: Some(DrainMark(10)), knows_you: true, silent_ms: Some(5) };
    assert_eq!(
        serde_json::to_value(&sign).expect("JSON"),
        json!({"wall_ms": 7, "ready": true, "drained_under": "0000000000000000000000000000000a", "known": true, "silent_ms": 5})
    );
    let question = Question { clock_ahead_ms: Some(-5), leads: true, about: Some(NodeId("x".into())) };
    assert_eq!(serde_json::to_value(&question).expect("JSON"), json!({"clock_ahead_ms": -5, "leads": true, "about": "x"}));
    let later: Sign = serde_json::from_str(r#"{"ready":true,"later":1}"#).expect("what is not known is not looked at");
    assert_eq!(later, Sign { is_ready: true, ..Sign::default() });
}

/// The network to one other node, which says this, or nothing.
#[derive(Default)]
struct Other {
    says: Locked<Option<String>>,
    asked: Locked<Vec<Question>>,
}

impl PeerClient for Other {
    fn call<'a>(&'a self, to: &'a PeerAddr, call: PeerCall) -> BoxFuture<'a, Result<Bytes, PeerError>> {
        self.asked.lock().push(serde_json::from_slice(&call.body).expect("a question"));
        let said = self.says.lock().clone();
        Box::pin(async move { said.map(Bytes::from).ok_or_else(|| PeerError::Silent { node: to.node.clone() }) })
    }
}

struct Stopped;

impl WallClock for Stopped {
    fn now_ms(&self) -> u64 {
        100_000
    }
}

/// A node `a` that leads, and has let `b` in.
async fn watching() -> (Watch, Arc<Other>) {
    let (me, runtime) = (NodeId("a".into()), Runtime::new(Arc::new(OsEntropy)));
    let metastore = Metastore::open(MetastoreConfig::new(me.clone()), MemLog::new(), &runtime, Arc::new(veena_consensus::NoPeers))
        .await
        .expect("opens");
    metastore.found(&runtime).await.expect("founded");
    let joins = PeerRequest {
        from: NodeId("b".into()),
        class: PeerClass::Control,
        op: PeerOp::METADATA_MEMBERS,
        remaining: Duration::from_secs(10),
        caller: CallerGone::default(),
        body: json!({"v": 1, "body": {"join": {"name": "b", "addr": "b:1", "level": FeatureLevel::CURRENT}}}).to_string().into(),
    };
    metastore.serve(joins).expect("a call of the metastore").await.expect("served");
    let other = Arc::new(Other::default());
    (Watch::new(me, metastore, other.clone(), Arc::new(Stopped)), other)
}

#[tokio::test]
async fn only_long_silence_while_this_node_was_awake_is_a_death() {
    let (watch, other) = watching().await;
    let (b, never) = (NodeId("b".into()), NodeId("never".into()));
    assert_eq!((watch.standing(&b), watch.standing(&never)), (Standing::Alive, Standing::NotAMember), "nobody is dead unheard");
    // It stood still for an hour: that says nothing of the others.
    for _ in 0..7 {
        watch.round(Duration::from_secs(3600)).await;
    }
    assert_eq!(watch.standing(&b), Standing::Alive);
    watch.round(Duration::from_secs(3600)).await;
    assert_eq!(watch.standing(&b), Standing::Dead);
    *other.says.lock() = Some(r#"{"wall_ms":100000,"ready":true}"#.to_owned());
    watch.round(Duration::from_secs(2)).await;
    assert_eq!(watch.standing(&b), Standing::Alive);
    let seats = watch.seats(&watch.metastore.status());
    assert!(seats[0].is_leader && !seats[0].is_ready && seats[0].is_here, "it has no engine yet: {seats:?}");
    assert!(seats[1].is_here && seats[1].is_ready && !seats[1].is_voter);
    for _ in 0..3 {
        *other.says.lock() = None;
        watch.round(Duration::from_secs(2)).await;
    }
    let seats = watch.seats(&watch.metastore.status());
    assert!(!seats[1].is_here && !seats[1].is_dead, "{seats:?}");
    watch.metastore.shutdown().await;
}

#[tokio::test]
async fn a_member_whose_clock_differs_from_the_leaders_is_told_and_a_node_believes_nobody_but_its_leader() {
    let (watch, other) = watching().await;
    *other.says.lock() = Some(r#"{"wall_ms":105000,"ready":true}"#.to_owned());
    watch.round(Duration::ZERO).await;
    watch.round(Duration::ZERO).await;
    let told: Vec<Option<i64>> = other.asked.lock().iter().map(|question| question.clock_ahead_ms).collect();
    assert!(told[0].is_none() && told[1].is_some_and(|ahead| (5_000..5_500).contains(&ahead)), "{told:?}");
    assert!(!watch.seats(&watch.metastore.status())[1].is_ready);

    let says = |clock_ahead_ms| serde_json::to_vec(&Question { clock_ahead_ms, leads: true, about: None }).expect("JSON");
    watch.answer(&NodeId("b".into()), &says(Some(9_000)));
    assert_eq!(watch.not_ready_reason(), None, "b does not lead");
    // As if another one led.
    watch.answer(&NodeId("a".into()), &says(Some(-9_000)));
    let reason = watch.not_ready_reason().expect("it is off");
    assert!(reason.contains("9000 ms behind"), "{reason}");
    watch.answer(&NodeId("a".into()), &says(None));
    assert_eq!(watch.not_ready_reason(), None);
    watch.metastore.shutdown().await;
}

#[tokio::test]
async fn a_node_that_was_taken_out_finds_out() {
    let (watch, other) = watching().await;
    let draining = async |draining| {
        let command = Command::SetDraining { node: NodeId("a".into()), draining, mark: None, beside: None };
        drop(watch.metastore.propose(command).await.expect("taken"));
    };
    for (says, is_marked, is_out) in [
        (Some(r#"{"known":false}"#), false, false),
        (Some(r#"{"known":true}"#), true, false),
        (Some(r#"{"known":false}"#), true, true),
        (None, true, false),
    ] {
        draining(is_marked).await;
        *other.says.lock() = says.map(str::to_owned);
        watch.round(Duration::from_secs(1)).await;
        assert_eq!(watch.not_ready_reason().is_some(), is_out, "{says:?} {is_marked}");
        assert_eq!(watch.until_taken_out().now_or_never().is_some(), is_out, "whoever waits is told: {says:?} {is_marked}");
    }
    watch.metastore.shutdown().await;
}
