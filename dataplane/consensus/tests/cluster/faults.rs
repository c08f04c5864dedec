//! Everything at once, by seed: what was answered is there once, and what was certainly not taken is not there.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use veena_contract::Effect;

use super::support::{Cluster, Seeded, eventually, text, wait};

const ROUNDS: u64 = 40;

async fn run(voters: usize, seed: u64) -> [u64; 3] {
    let mut cluster = Cluster::of(voters, seed).await;
    let chance = Seeded::new(seed.wrapping_mul(31));
    let mut asked: JoinSet<(String, Option<Effect>)> = JoinSet::new();
    let mut next = 0;
    for _ in 0..ROUNDS {
        match chance.below(8) {
            0 => {
                let at = below(&chance, voters);
                if cluster.nodes[at].is_up() && cluster.up().count() > voters / 2 + 1 {
                    cluster.kill(at).await;
                }
            }
            1 | 2 => {
                if let Some(at) = (0..voters).find(|at| !cluster.nodes[*at].is_up()) {
                    cluster.start(at).await;
                }
            }
            3 => {
                let (a, b) = (below(&chance, voters), below(&chance, voters));
                cluster.net.cut(&cluster.nodes[a].id, &cluster.nodes[b].id);
            }
            4 => cluster.isolate(&[below(&chance, voters)]),
            5 => cluster.net.delay(chance.below(60)),
            _ => cluster.net.heal(),
        }
        for node in cluster.up() {
            let (member, command) = (node.up().clone(), format!("{}-{next}", node.id));
            next += 1;
            let within = Duration::from_millis(200 + chance.below(3000));
            asked.spawn(async move {
                let outcome = member.propose(text(&command), within).await;
                (command, outcome.err().map(|error| error.effect()))
            });
        }
        sleep(Duration::from_millis(chance.below(800))).await;
    }
    cluster.net.heal();
    for at in 0..voters {
        if !cluster.nodes[at].is_up() {
            cluster.start(at).await;
        }
    }
    let outcomes = asked.join_all().await;
    eventually("a last change", || cluster.nodes[0].propose("last")).await;
    for node in &cluster.nodes {
        eventually("a read point", || node.up().barrier(Duration::from_secs(5))).await;
    }
    wait("all are equal", || cluster.nodes.iter().all(|node| node.journal.lines() == cluster.nodes[0].journal.lines())).await;

    let lines = cluster.nodes[0].journal.lines();
    let mut times: BTreeMap<&str, u64> = BTreeMap::new();
    for line in &lines {
        *times.entry(line).or_default() += 1;
    }
    let mut counts = [0; 3];
    for (command, failed) in &outcomes {
        let times = times.get(command.as_str()).copied().unwrap_or_default();
        match failed {
            None => {
                counts[0] += 1;
                assert_eq!(times, 1, "seed {seed}: {command} was answered and is there {times} times");
            }
            Some(Effect::None) => {
                counts[1] += 1;
                assert_eq!(times, 0, "seed {seed}: {command} was certainly not taken and is there {times} times");
            }
            Some(Effect::Possible) => {
                counts[2] += 1;
                assert!(times <= 1, "seed {seed}: {command} is there {times} times");
            }
        }
    }
    // What is left running would go on in the time of the next run.
    for at in 0..voters {
        cluster.kill(at).await;
    }
    counts
}

fn below(chance: &Seeded, end: usize) -> usize {
    usize::try_from(chance.below(end as u64)).expect("below a small number")
}

async fn sweep(voters: usize, seeds: std::ops::Range<u64>) {
    let mut all = [0; 3];
    for seed in seeds {
        let counts = run(voters, seed).await;
        for (sum, count) in all.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    eprintln!("{voters} voters: {} made, {} certainly not, {} unknown", all[0], all[1], all[2]);
    assert!(all.iter().all(|count| *count > 0), "a run without one of them shows nothing: {all:?}");
}

#[tokio::test(start_paused = true)]
async fn three_voters_keep_what_they_answered_and_drop_what_they_refused() {
    sweep(3, 0..6).await;
}

#[tokio::test(start_paused = true)]
async fn five_voters_keep_what_they_answered_and_drop_what_they_refused() {
    sweep(5, 100..104).await;
}

#[tokio::test(start_paused = true)]
async fn disks_whose_syncs_take_most_of_a_second_cost_no_leader() {
    const SLOW: Duration = Duration::from_millis(900);
    for (seed, slow) in [(1, &[0][..]), (2, &[1]), (3, &[0, 1, 2])] {
        let cluster = Cluster::of(3, seed).await;
        let leader = cluster.leader().await;
        let term = cluster.nodes[leader].up().status().term;
        // The first of them leads.
        slow.iter().for_each(|after| cluster.nodes[(leader + after) % 3].log.slow_writes(SLOW));
        // Three at a time, as openraft is silent while it goes through those that wait.
        for round in 0..10 {
            let change = async |at: usize| cluster.nodes[at].propose(&(round * 3 + at).to_string()).await;
            let made = tokio::join!(change(0), change(1), change(2));
            for made in [made.0, made.1, made.2] {
                made.expect("made, though it takes its time");
            }
        }
        wait("all have all of it", || cluster.nodes.iter().all(|node| node.journal.lines().len() == 30)).await;
        for node in &cluster.nodes {
            let status = node.up().status();
            assert_eq!((status.term, status.leader.as_ref()), (term, Some(&cluster.nodes[leader].id)), "{slow:?} are slow");
        }
    }
}
