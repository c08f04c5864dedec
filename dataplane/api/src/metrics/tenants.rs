//! Series of tenants, for operators who want them. The first so many by name have series of their own; the rest is summed under a name that no
//! tenant can have.

use std::collections::BTreeMap;
use std::fmt::Write;

use veena_broker::Broker;
use veena_broker::usage::UsageNumbers;
use veena_contract::{TenantId, TenantState, limits};

use super::kind;

/// Stands for all tenants that have no series.
const OTHERS: &str = "_other";

/// What is told of one tenant.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    usage: UsageNumbers,
    refused: u64,
    parked: u64,
}

type Of = fn(&Numbers) -> u64;

const SERIES: [(&str, &str, Of); 9] = [
    ("tenant_messages_in_total", "counter", |numbers| numbers.usage.messages_in),
    ("tenant_bytes_in_total", "counter", |numbers| numbers.usage.bytes_in),
    ("tenant_messages_copied_total", "counter", |numbers| numbers.usage.messages_copied),
    ("tenant_bytes_copied_total", "counter", |numbers| numbers.usage.bytes_copied),
    ("tenant_messages_out_total", "counter", |numbers| numbers.usage.messages_out),
    ("tenant_bytes_out_total", "counter", |numbers| numbers.usage.bytes_out),
    ("tenant_stored_bytes", "gauge", |numbers| numbers.usage.stored_bytes),
    ("tenant_quota_refusals_total", "counter", |numbers| numbers.refused),
    ("tenant_consumers_parked", "gauge", |numbers| numbers.parked),
];

/// Writes what every tenant uses on this node.
pub(super) fn render(out: &mut String, broker: &Broker) {
    let mut all: BTreeMap<String, Numbers> = BTreeMap::new();
    let view = broker.catalog();
    // One that is being deleted is unknown to everybody.
    let is_known = |tenant: &TenantId| matches!(view.tenant_state(tenant), Some(TenantState::Active | TenantState::Suspended));
    for (tenant, usage) in broker.usage().tenants().into_iter().filter(|(tenant, _)| is_known(tenant)) {
        all.insert(tenant.to_string(), Numbers { usage: usage.numbers(), refused: usage.refused(), parked: 0 });
    }
    for (tenant, parked) in broker.parked_by_tenant().into_iter().filter(|(tenant, _)| is_known(tenant)) {
        all.entry(tenant.to_string()).or_default().parked = parked;
    }
    render_numbers(out, bounded(all));
}

/// At most so many, and what the others have together.
fn bounded(all: BTreeMap<String, Numbers>) -> Vec<(String, Numbers)> {
    let mut told: Vec<_> = all.into_iter().collect();
    let others = told.split_off(told.len().min(limits::METRICS_TENANTS_MAX));
    let sum = |sum: Numbers, (_, next): (String, Numbers)| Numbers {
        usage: sum.usage.and(next.usage),
        refused: sum.refused.saturating_add(next.refused),
        parked: sum.parked.saturating_add(next.parked),
    };
    if !others.is_empty() {
        told.push((OTHERS.to_owned(), others.into_iter().fold(Numbers::default(), sum)));
    }
    told
}

fn render_numbers(out: &mut String, tenants: Vec<(String, Numbers)>) {
    for (name, of, value) in SERIES {
        kind(out, name, of);
        for (tenant, numbers) in &tenants {
            let _ = writeln!(out, "veena_{name}{{tenant=\"{tenant}\"}} {}", value(numbers));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_tenants_have_series_and_the_others_are_summed_under_a_name_that_is_no_tenants() {
        let numbers = Numbers { refused: 2, parked: 1, usage: UsageNumbers { messages_in: 3, ..UsageNumbers::default() } };
        let of = |count: usize| (0..count).map(|at| (format!("t{at:05}"), numbers)).collect::<BTreeMap<_, _>>();
        assert_eq!(bounded(of(limits::METRICS_TENANTS_MAX)).len(), limits::METRICS_TENANTS_MAX);
        let mut out = String::new();
        render_numbers(&mut out, bounded(of(limits::METRICS_TENANTS_MAX + 5)));
        let lines = |name: &str| out.lines().filter(|line| line.starts_with(&format!("veena_{name}{{"))).count();
        assert_eq!(lines("tenant_messages_in_total"), limits::METRICS_TENANTS_MAX + 1);
        for line in [
            "veena_tenant_messages_in_total{tenant=\"_other\"} 15",
            "veena_tenant_quota_refusals_total{tenant=\"_other\"} 10",
            "veena_tenant_consumers_parked{tenant=\"_other\"} 5",
            "veena_tenant_messages_in_total{tenant=\"t00099\"} 3",
        ] {
            assert!(out.lines().any(|found| found == line), "{line}\n{out}");
        }
        assert!(TenantId::parse(OTHERS).is_none());
    }
}
