use veena_loadtest_sim::run_seed;
use veena_loadtest_sim::sweep::fixed_seeds;

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
fn two_seeds_give_two_traces() {
    assert_ne!(run_seed(1, false).0.trace_hash, run_seed(2, false).0.trace_hash);
}

#[test]
fn the_fixed_seeds_hold() {
    let seeds = fixed_seeds();
    assert!(!seeds.is_empty());
    for seed in seeds {
        let report = run_seed(seed, false).0;
        assert!(report.violations.is_empty(), "seed {seed}: {:#?}", report.violations);
    }
}

#[test]
fn new_seeds_hold() {
    let mut bytes = [0_u8; 4];
    getrandom::fill(&mut bytes).expect("entropy");
    let from = u64::from(u32::from_le_bytes(bytes));
    for seed in from..from + 6 {
        let report = run_seed(seed, false).0;
        assert!(report.violations.is_empty(), "again: veena-sim run --seed {seed}: {:#?}", report.violations);
    }
}
