//! Why may somebody do something, or why not? The decisions are those that requests meet, asked without the request.

use http::StatusCode;
use veena_auth::{Action, Decision, Reason, decide, may_administer, may_manage, may_see};
use veena_client::bodies::{CoveringGrant, Explained};
use veena_contract::{CommandError, TopicName, Username};

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

/// `GET /v1/explain`: of users of the caller's tenant, to its admins; of oneself, to everybody.
pub(crate) async fn explain(call: &Call<'_>) -> Result<Answer, Problem> {
    let asked = |name: &str| {
        let value = query::first(call.query(), name).map_err(|error| Problem::malformed(format!("invalid {name}: {error}")))?;
        Ok::<_, Problem>(value.filter(|text| !text.is_empty()))
    };
    let own = call.caller.username();
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
    if call.state.parts.cluster.is_some() && view.user(call.tenant(), &user).is_none() {
        view = call.state.parts.leader.confirmed_view().await?;
    }
    let record = view.user(call.tenant(), &user).ok_or(CommandError::UserNotFound)?;
    let mut principal = rights::principal(record);
    if own == Some(&user) {
        principal.scopes = call.caller.key().and_then(|key| key.scopes.clone());
    }
    let topic_of = || topic.as_ref().ok_or_else(|| Problem::invalid("topic is required"));
    let known = topic.as_ref().and_then(|topic| view.topic(call.tenant(), topic));
    let owner = known.and_then(|topic| topic.owner.as_deref());
    let decision = match question {
        Question::Do(Action::Admin) => may_administer(&principal),
        Question::Do(action) => decide(&principal, action, topic_of()?),
        Question::See => may_see(&principal, topic_of()?, owner),
        Question::Manage => may_manage(&principal, topic_of()?, owner),
    };
    let mut explained = shape(decision);
    // Whether there is such a topic, and whose it is, is for whoever would see it.
    if let Some(topic) = topic.filter(|topic| call.caller.sees(topic, owner)) {
        explained.topic = Some(topic.to_string());
        explained.exists = Some(known.is_some());
        explained.owner = known.map(|_| owner == Some(user.as_str()));
    }
    Ok(answer::json(StatusCode::OK, &explained))
}

fn shape(decision: Decision) -> Explained {
    let reason = decision.as_ref().map_or_else(ToString::to_string, ToString::to_string);
    let grant = match &decision {
        Ok(Reason::Grant { action, pattern }) => Some(CoveringGrant { action: action.to_string(), pattern: Some(pattern.to_string()) }),
        Ok(Reason::Admin) => Some(CoveringGrant { action: Action::Admin.to_string(), pattern: None }),
        _ => None,
    };
    Explained { allowed: decision.is_ok(), reason, grant, ..Explained::default() }
}
