//! Changing the catalog on a caller's behalf: read, propose, and once more if another incarnation came between.

use std::sync::Arc;

use veena_contract::{CatalogView, Command, CommandError, ProposeError, TopicName, TopicRecord};

use crate::edge::Call;
use crate::problem::Problem;

/// Proposes the command that `command` makes of the newest view. A change in between is read again once; the second one is the answer.
pub(crate) async fn propose(
    call: &Call<'_>,
    command: impl Fn(&CatalogView) -> Result<Command, Problem>,
) -> Result<Arc<CatalogView>, Problem> {
    match propose_once(call, command(&call.state.view())?).await {
        Err(error) if is_changed(&error) => Ok(propose_once(call, command(&call.state.view())?).await?),
        other => Ok(other?),
    }
}

/// Proposes a command on behalf of the caller, whose rights are looked at again where it is applied.
pub(crate) async fn propose_once(call: &Call<'_>, command: Command) -> Result<Arc<CatalogView>, ProposeError> {
    call.state.parts.writer.propose_from(call.origin(), command).await
}

/// Was the command made of something that has changed since?
pub(crate) fn is_changed(error: &ProposeError) -> bool {
    matches!(error, ProposeError::Refused(CommandError::Changed))
}

/// The caller's living topic of this name in a view.
pub(crate) fn topic<'a>(call: &Call<'_>, view: &'a CatalogView, name: &TopicName) -> Result<&'a Arc<TopicRecord>, Problem> {
    view.topic(call.tenant(), name).ok_or_else(Problem::topic_not_found)
}

/// The same, if the caller may change it.
pub(crate) fn managed<'a>(call: &Call<'_>, view: &'a CatalogView, name: &TopicName) -> Result<&'a Arc<TopicRecord>, Problem> {
    let record = topic(call, view, name)?;
    call.caller.may_manage(record)?;
    Ok(record)
}
