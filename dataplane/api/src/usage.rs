//! What tenants have used, over all nodes.

use http::StatusCode;
use veena_broker::usage::UsageNumbers;
use veena_client::bodies::Usage;
use veena_contract::TenantId;

use crate::answer::{self, Answer};
use crate::edge::Call;

fn shape(tenant: &TenantId, numbers: UsageNumbers, nodes: usize, silent: usize) -> Usage {
    Usage {
        tenant: tenant.to_string(),
        messages_in: numbers.messages_in,
        bytes_in: numbers.bytes_in,
        messages_copied: numbers.messages_copied,
        bytes_copied: numbers.bytes_copied,
        messages_out: numbers.messages_out,
        bytes_out: numbers.bytes_out,
        stored_bytes: numbers.stored_bytes,
        stored_bytes_peak: numbers.stored_bytes_peak,
        nodes: nodes as u64,
        nodes_silent: silent as u64,
    }
}

/// `GET /v1/usage`: one's own.
pub(crate) async fn own(call: &Call<'_>) -> Answer {
    let tenant = call.tenant();
    let told = call.state.parts.broker.usage_everywhere(Some(tenant)).await;
    let numbers = told.tenants.get(tenant).copied().unwrap_or_default();
    answer::json(StatusCode::OK, &shape(tenant, numbers, told.nodes, told.silent))
}

/// `GET /v1/admin/usage`: of every tenant, by name.
pub(crate) async fn all(call: &Call<'_>) -> Answer {
    let told = call.state.parts.broker.usage_everywhere(None).await;
    let tenants: Vec<Usage> = told.tenants.iter().map(|(tenant, numbers)| shape(tenant, *numbers, told.nodes, told.silent)).collect();
    answer::json(StatusCode::OK, &tenants)
}
