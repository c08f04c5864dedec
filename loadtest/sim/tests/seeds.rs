use veena_loadtest_sim::sweep::fixed_seeds;
use veena_loadtest_sim::{Report, run_seed, run_seed_among};

#[test]
fn one_seed_gives_one_trace_byte_for_byte() {
    for seed in [1, 7] {
        let ((first, trace), (second, again)) = (run_seed(seed, true), run_seed(seed, true));
        assert!(trace.len() > 10_000, "seed {seed}: the run did something");
        assert!(trace == again, "seed {seed}: two runs differ");
        assert_eq!(first.trace_hash, second.trace_hash);
    }
}

#[test]
fn one_seed_of_three_nodes_gives_one_trace_byte_for_byte() {
    for seed in [1, 3] {
        let ((first, trace), (second, again)) = (run_seed_among(seed, 3, true), run_seed_among(seed, 3, true));
        for node in ["n1", "n2", "n3"] {
            assert!(trace.contains(&format!("write /{node}/")), "seed {seed}: {node} did something");
        }
        assert!(trace == again, "seed {seed}: two runs differ");
        assert_eq!(first.trace_hash, second.trace_hash);
    }
}

#[test]
fn two_seeds_give_two_traces() {
    assert_ne!(run_seed(1, false).0.trace_hash, run_seed(2, false).0.trace_hash);
}

#[test]
fn the_fixed_seeds_hold() {
    let seeds = fixed_seeds(1);
    assert!(!seeds.is_empty());
    for seed in seeds {
        let report = run_seed(seed, false).0;
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    }
}

#[test]
fn new_seeds_hold() {
    hold_from_anywhere(6, |seed| run_seed(seed, false).0);
}

#[test]
fn new_seeds_of_three_nodes_hold() {
    hold_from_anywhere(3, |seed| run_seed_among(seed, 3, false).0);
}

fn hold_from_anywhere(seeds: u64, run: impl Fn(u64) -> Report) {
    let mut bytes = [0_u8; 4];
    getrandom::fill(&mut bytes).expect("entropy");
    let from = u64::from(u32::from_le_bytes(bytes));
    for seed in from..from + seeds {
        let report = run(seed);
        let nodes = report.nodes;
        assert!(report.violations.is_empty(), "again: veena-sim run --nodes {nodes} --seed {seed}: {:#?}", report.violations);
    }
}
