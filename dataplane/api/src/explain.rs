//! Why may somebody do something, or why not? The decisions are those that requests meet, asked without the request.

use http::StatusCode;
use veena_auth::{Action, Decision, Denied, Principal, Reason, decide, may_administer, may_manage, may_see};
use veena_client::bodies::{CoveringGrant, Explained, MissingGrant};
use veena_contract::{CommandError, TenantId, TopicName, Username};

use crate::answer::{self, Answer};
use crate::edge::Call;
use crate::problem::Problem;
use crate::query;
use crate::rights;

/// What is asked about.
enum Question {
    Do(Action),
    See,
    Manage,
}

const QUESTIONS: &str = "invalid action: want produce, consume, create, see, manage or admin";

impl Question {
    fn parse(text: &str) -> Result<Self, Problem> {
        match text {
            "see" => Ok(Self::See),
            "manage" => Ok(Self::Manage),
            _ => {
                let action = Action::ALL.into_iter().find(|action| action.as_str() == text);
                action.map(Self::Do).ok_or_else(|| Problem::invalid(QUESTIONS))
            }
        }
    }
}

/// `GET /v1/explain`: of users of the caller's tenant, to its admins; of oneself, to everybody; of another tenant's users, to operators.
pub(crate) async fn explain(call: &Call<'_>) -> Result<Answer, Problem> {
    let asked = |name: &str| {
        let value = query::first(call.query(), name).map_err(|error| Problem::malformed(format!("invalid {name}: {error}")))?;
        Ok::<_, Problem>(value.filter(|text| !text.is_empty()))
    };
    let tenant = match asked("tenant")? {
        Some(text) => TenantId::parse(&text).ok_or(CommandError::TenantNotFound),
        None => Ok(call.tenant().clone()),
    };
    let is_other = tenant.as_ref() != Ok(call.tenant());
    if is_other {
        call.caller.may_operate()?;
    }
    let tenant = tenant?;
    // Nobody is themselves in another tenant.
    let own = call.caller.username().filter(|_| !is_other);
    let user = match asked("user")? {
        Some(text) => Username::parse(&text).map_err(|error| Problem::invalid(error.to_string()))?,
        None => own.cloned().ok_or_else(|| Problem::invalid("user is required"))?,
    };
    // Before anybody is told whether there is such a user.
    if own != Some(&user) {
        call.caller.may_administer()?;
    }
    let question = Question::parse(&asked("action")?.ok_or_else(|| Problem::invalid(QUESTIONS))?)?;
    let topic = asked("topic")?.map(|text| TopicName::parse(&text)).transpose()?;

    let mut view = call.state.view();
    if call.state.parts.cluster.is_some() && view.user(&tenant, &user).is_none() {
        view = call.state.parts.leader.confirmed_view().await?;
    }
    if view.tenant_state(&tenant).is_none() {
        return Err(CommandError::TenantNotFound.into());
    }
    let record = view.user(&tenant, &user).ok_or(CommandError::UserNotFound)?;
    let mut principal = rights::principal(record);
    if own == Some(&user) {
        principal.scopes = call.caller.key().and_then(|key| key.scopes.clone());
    }
    let topic_of = || topic.as_ref().ok_or_else(|| Problem::invalid("topic is required"));
    let known = topic.as_ref().and_then(|topic| view.topic(&tenant, topic));
    let owner = known.and_then(|topic| topic.owner.as_deref());
    let decided = |principal: &Principal| {
        Ok::<_, Problem>(match question {
            Question::Do(Action::Admin) => may_administer(principal),
            Question::Do(action) => decide(principal, action, topic_of()?),
            Question::See => may_see(principal, topic_of()?, owner),
            Question::Manage => may_manage(principal, topic_of()?, owner),
        })
    };
    let decision = decided(&principal)?;
    let without_scopes = decided(&Principal { scopes: None, ..principal.clone() })?;
    let mut explained = shape(&decision);
    if let Err(denied) = decision {
        explained.missing = Some(missing(&tenant, &question, denied, topic.as_ref(), without_scopes.is_ok()));
    }
    // Whether there is such a topic, and whose it is, is for whoever would see it.
    if let Some(topic) = topic.filter(|topic| !is_other && call.caller.sees(topic, owner)) {
        explained.topic = Some(topic.to_string());
        explained.exists = Some(known.is_some());
        explained.owner = known.map(|_| owner == Some(user.as_str()));
    }
    Ok(answer::json(StatusCode::OK, &explained))
}

/// The narrowest grant that would allow what was denied, and who has it to give. With a key whose scopes alone are in the way it is a scope.
fn missing(tenant: &TenantId, question: &Question, denied: Denied, topic: Option<&TopicName>, of_key: bool) -> MissingGrant {
    let action = match (denied, question) {
        (Denied::Action(action), _) => action,
        // Any grant on a topic lets one see it.
        (Denied::NoGrant, _) => Action::Consume,
        // Whoever owns it may manage it, with a key that may create it.
        (_, Question::Manage) if of_key => Action::Create,
        _ => Action::Admin,
    };
    let pattern = topic.filter(|_| action != Action::Admin).map(ToString::to_string);
    let given_by = format!("an admin of the tenant {tenant}");
    MissingGrant { action: action.to_string(), pattern, of_key, given_by }
}

fn shape(decision: &Decision) -> Explained {
    let reason = decision.as_ref().map_or_else(ToString::to_string, ToString::to_string);
    let grant = match decision {
        Ok(Reason::Grant { action, pattern }) => Some(CoveringGrant { action: action.to_string(), pattern: Some(pattern.to_string()) }),
        Ok(Reason::Admin) => Some(CoveringGrant { action: Action::Admin.to_string(), pattern: None }),
        _ => None,
    };
    Explained { allowed: decision.is_ok(), reason, grant, ..Explained::default() }
}
