//! R7: no tenant sees another's bytes or names.

use crate::index::Index;
use crate::verdict::{Rule, Verdict};

pub(super) fn check(index: &Index, verdict: &mut Verdict) {
    for (place, leases) in &index.leases {
        for lease in leases {
            let Some(message) = lease.label.and_then(|label| index.sent.get(&label)) else { continue };
            if message.topic.tenant != place.topic.tenant {
                verdict.add(Rule::Tenant, 1, || format!("{place} delivered a message that was sent to {}", message.topic));
            }
        }
    }
    for (tenant, shown) in &index.names_shown {
        let own = index.names_used.get(tenant);
        for name in shown.iter().filter(|name| own.is_none_or(|own| !own.contains(*name))) {
            let foreign = index.names_used.iter().find(|(other, used)| *other != tenant && used.contains(name));
            if let Some((other, _)) = foreign {
                verdict.add(Rule::Tenant, 1, || format!("tenant {tenant} was shown topic {name} of tenant {other}"));
            }
        }
    }
}
