//! Who may do what, and why. Pure: it knows what it is given, asks nobody, and takes well under a microsecond.

use std::fmt;

use veena_contract::{TenantId, TopicName};

use veena_contract::Username;
use veena_contract::{Action, Grants, Pattern};

/// Who asks, and what they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// Whose user it is.
    pub tenant: TenantId,
    /// Their name.
    pub username: Username,
    /// The root admin, whose rights nobody changes.
    pub is_root: bool,
    /// What was granted to them.
    pub grants: Grants,
    /// What the key allows that they sign in with, if it is not for all that they may. It takes away and never gives: whatever is decided
    /// takes a reason without the scopes, and that they allow it too.
    pub scopes: Option<Grants>,
}

impl Principal {
    /// Why they may do everything, if they may, whatever the scopes allow.
    fn everything(&self) -> Option<Reason> {
        if self.is_root {
            return Some(Reason::Root);
        }
        self.grants.has_admin().then_some(Reason::Admin)
    }

    /// Do the scopes allow what only an admin may?
    fn scopes_allow_all(&self) -> bool {
        self.scopes.as_ref().is_none_or(Grants::has_admin)
    }

    /// Do the scopes allow an action, of those that are meant, on the topic?
    fn scopes_allow(&self, topic: &TopicName, is_meant: impl Fn(Action) -> bool) -> bool {
        let Some(scopes) = self.scopes.as_ref().filter(|scopes| !scopes.has_admin()) else { return true };
        let mut meant = scopes.iter().filter(|scope| is_meant(scope.action())).flat_map(veena_contract::Grant::patterns);
        meant.any(|pattern| pattern.matches(topic.as_str()))
    }

    fn grant(&self, topic: &TopicName, is_meant: impl Fn(Action) -> bool) -> Option<Reason> {
        self.grants.iter().filter(|grant| is_meant(grant.action())).find_map(|grant| {
            let pattern = grant.patterns().iter().find(|pattern| pattern.matches(topic.as_str()))?;
            Some(Reason::Grant { action: grant.action(), pattern: pattern.clone() })
        })
    }

    fn owns(&self, owner: Option<&str>) -> Option<Reason> {
        (owner == Some(self.username.as_str())).then_some(Reason::Owner)
    }
}

/// Why something may be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The root admin may do everything.
    Root,
    /// The grant `admin` is for everything.
    Admin,
    /// The topic is theirs.
    Owner,
    /// Every user of the tenant `default` may.
    User,
    /// It was granted.
    Grant {
        /// This action.
        action: Action,
        /// For these topics.
        pattern: Pattern,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("the root admin may do everything"),
            Self::Admin => f.write_str("the grant admin is for everything"),
            Self::Owner => f.write_str("the topic's owner may"),
            Self::User => f.write_str("every user of the tenant default may"),
            Self::Grant { action, pattern } => write!(f, "the grant {action} on {pattern} covers the topic"),
        }
    }
}

/// Why something may not be done. The texts are the contract's for 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No grant of this action covers the topic.
    #[error("{0} not allowed on this topic")]
    Action(Action),
    /// No grant of any action covers the topic, which is not theirs.
    #[error("no grant on this topic")]
    NoGrant,
    /// The topic is not theirs.
    #[error("only the topic owner or an admin may modify this topic")]
    NotOwner,
    /// It takes `admin`.
    #[error("admin privileges required")]
    NotAdmin,
    /// It takes the root admin.
    #[error("only the root admin may copy the metadata: what is stored of passwords is part of it")]
    NotRoot,
    /// It takes an admin of the tenant `default`.
    #[error("operator privileges required")]
    NotOperator,
}

/// Whether something may be done, and why or why not.
pub type Decision = Result<Reason, Denied>;

/// May they do this to the topic? `admin` is not a matter of topics.
///
/// # Errors
/// [`Denied`]: no.
pub fn decide(principal: &Principal, action: Action, topic: &TopicName) -> Decision {
    if action == Action::Admin {
        return may_administer(principal);
    }
    let reason = principal.everything().or_else(|| principal.grant(topic, |granted| granted == action));
    reason.filter(|_| principal.scopes_allow(topic, |allowed| allowed == action)).ok_or(Denied::Action(action))
}

/// May they see the topic: its settings, its schemas, its children?
///
/// # Errors
/// [`Denied`]: no.
pub fn may_see(principal: &Principal, topic: &TopicName, owner: Option<&str>) -> Decision {
    let reason = principal.everything().or_else(|| principal.owns(owner)).or_else(|| principal.grant(topic, |_| true));
    reason.filter(|_| principal.scopes_allow(topic, |_| true)).ok_or(Denied::NoGrant)
}

/// May they change the topic, delete it, attach it? A topic that nobody owns is the admins'. With a key that has scopes only what the key could
/// create.
///
/// # Errors
/// [`Denied`]: no.
pub fn may_manage(principal: &Principal, topic: &TopicName, owner: Option<&str>) -> Decision {
    let reason = principal.everything().or_else(|| principal.owns(owner));
    reason.filter(|_| principal.scopes_allow(topic, |allowed| allowed == Action::Create)).ok_or(Denied::NotOwner)
}

/// May they manage the users of their tenant?
///
/// # Errors
/// [`Denied`]: no.
pub fn may_administer(principal: &Principal) -> Decision {
    principal.everything().filter(|_| principal.scopes_allow_all()).ok_or(Denied::NotAdmin)
}

/// May they manage the cluster and its tenants? That is for the admins of the tenant `default`.
///
/// # Errors
/// [`Denied`]: no.
pub fn may_operate(principal: &Principal) -> Decision {
    if principal.tenant.is_default() { may_administer(principal) } else { Err(Denied::NotOperator) }
}

/// May they see the counters of a node? They tell of the topics of the tenant `default`, and of nobody else's.
///
/// # Errors
/// [`Denied`]: no.
pub fn may_see_counters(principal: &Principal) -> Decision {
    if principal.tenant.is_default() { Ok(Reason::User) } else { Err(Denied::NotOperator) }
}

/// May they have a copy of all metadata, which holds what is stored of passwords, also of the root admin's?
///
/// # Errors
/// [`Denied::NotRoot`]: no.
pub fn may_copy_metadata(principal: &Principal) -> Decision {
    if principal.is_root && principal.tenant.is_default() && principal.scopes_allow_all() {
        return Ok(Reason::Root);
    }
    Err(if principal.tenant.is_default() { Denied::NotRoot } else { Denied::NotOperator })
}

/// Why grants may not be handed on. The text is the contract's for 403; the fields say what is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot grant permissions you do not hold")]
pub struct NotHeld {
    /// The action that the granter lacks.
    pub action: Action,
    /// For these topics; none for `admin`.
    pub pattern: Option<Pattern>,
}

/// May the granter give these grants to somebody? Only the root admin gives `admin`; whoever is no admin gives only what they hold, where one
/// pattern of theirs must cover each pattern given.
///
/// # Errors
/// [`NotHeld`], for the first that they may not give.
pub fn can_confer(granter: &Principal, grants: &Grants) -> Result<(), NotHeld> {
    for grant in grants.iter() {
        let action = grant.action();
        if action == Action::Admin && !(granter.is_root && granter.scopes_allow_all()) {
            return Err(NotHeld { action, pattern: None });
        }
        let holds = |held: &Grants, given: &Pattern| {
            held.iter().filter(|held| held.action() == action).flat_map(|held| held.patterns()).any(|held| held.covers(given))
        };
        let may_give = |given: &Pattern| {
            let is_held = granter.everything().is_some() || holds(&granter.grants, given);
            is_held && granter.scopes.as_ref().is_none_or(|scopes| scopes.has_admin() || holds(scopes, given))
        };
        if let Some(missing) = grant.patterns().iter().find(|given| !may_give(given)) {
            return Err(NotHeld { action, pattern: Some(missing.clone()) });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use veena_contract::GrantText;

    fn grants(of: &[(&str, &[&str])]) -> Grants {
        let text = |(action, patterns): &(&str, &[&str])| GrantText {
            action: (*action).to_owned(),
            patterns: patterns.iter().map(ToString::to_string).collect(),
        };
        Grants::parse(&of.iter().map(text).collect::<Vec<_>>()).expect("grants")
    }

    fn user(of: &[(&str, &[&str])]) -> Principal {
        Principal {
            tenant: TenantId::default_tenant(),
            username: Username::parse("joe").expect("a name"),
            is_root: false,
            grants: grants(of),
            scopes: None,
        }
    }

    fn root() -> Principal {
        let (tenant, username) = (TenantId::default_tenant(), Username::root());
        Principal { tenant, username, is_root: true, grants: Grants::none(), scopes: None }
    }

    fn topic(text: &str) -> TopicName {
        TopicName::parse(text).expect("a name")
    }

    fn said(decision: &Decision) -> String {
        decision.as_ref().map_or_else(ToString::to_string, ToString::to_string)
    }

    #[test]
    fn a_grant_is_for_its_action_and_its_topics_and_says_so() {
        let joe = user(&[("produce", &["invoices.*", "orders"]), ("consume", &["payments"])]);
        let decided = |action, name: &str| said(&decide(&joe, action, &topic(name)));
        assert_eq!(decided(Action::Produce, "invoices.eu"), "the grant produce on invoices.* covers the topic");
        assert_eq!(decided(Action::Produce, "orders"), "the grant produce on orders covers the topic");
        assert_eq!(decided(Action::Produce, "orders2"), "produce not allowed on this topic");
        assert_eq!(decided(Action::Consume, "orders"), "consume not allowed on this topic");
        assert_eq!(decided(Action::Create, "orders"), "create not allowed on this topic");
        assert_eq!(decided(Action::Admin, "orders"), "admin privileges required");
    }

    #[test]
    fn admins_may_do_everything_and_nobody_else_administers() {
        for (admin, why) in [(root(), Reason::Root), (user(&[("admin", &[])]), Reason::Admin)] {
            for action in Action::ALL {
                assert_eq!(decide(&admin, action, &topic("t")), Ok(why.clone()));
            }
            assert_eq!(may_see(&admin, &topic("t"), None), Ok(why.clone()));
            assert_eq!(may_manage(&admin, &topic("t"), Some("ann")), Ok(why.clone()));
            assert_eq!(may_administer(&admin), Ok(why));
        }
        let joe = user(&[("produce", &["*"]), ("consume", &["*"]), ("create", &["*"])]);
        assert_eq!(may_administer(&joe), Err(Denied::NotAdmin));
    }

    #[test]
    fn only_admins_of_the_tenant_default_operate() {
        let of_acme = |principal: Principal| Principal { tenant: TenantId::parse("acme").expect("a name"), ..principal };
        assert_eq!(may_operate(&root()), Ok(Reason::Root));
        assert_eq!(may_operate(&user(&[("admin", &[])])), Ok(Reason::Admin));
        assert_eq!(said(&may_operate(&user(&[("create", &["*"])]))), "admin privileges required");
        for principal in [of_acme(root()), of_acme(user(&[("admin", &[])])), of_acme(user(&[]))] {
            assert_eq!(said(&may_operate(&principal)), "operator privileges required");
            assert_eq!(said(&may_copy_metadata(&principal)), "operator privileges required");
            assert_eq!(said(&may_see_counters(&principal)), "operator privileges required");
        }
        assert_eq!(may_see_counters(&user(&[])), Ok(Reason::User));
    }

    #[test]
    fn an_owner_manages_and_sees_a_topic_and_a_grant_only_shows_it() {
        let joe = user(&[("consume", &["a*"])]);
        assert_eq!(may_manage(&joe, &topic("t"), Some("joe")), Ok(Reason::Owner));
        assert_eq!(said(&may_manage(&joe, &topic("t"), Some("ann"))), "only the topic owner or an admin may modify this topic");
        assert_eq!(may_manage(&joe, &topic("t"), None), Err(Denied::NotOwner), "what nobody owns is the admins'");
        assert_eq!(may_see(&joe, &topic("b"), Some("joe")), Ok(Reason::Owner));
        assert!(matches!(may_see(&joe, &topic("ab"), Some("ann")), Ok(Reason::Grant { .. })));
        assert_eq!(said(&may_see(&joe, &topic("b"), Some("ann"))), "no grant on this topic");
        assert_eq!(decide(&joe, Action::Consume, &topic("b")), Err(Denied::Action(Action::Consume)), "owning is no grant to consume");
    }

    #[test]
    fn nobody_grants_what_they_do_not_hold() {
        let joe = user(&[("produce", &["a*", "b"])]);
        assert_eq!(can_confer(&joe, &Grants::none()), Ok(()));
        assert_eq!(can_confer(&joe, &grants(&[("produce", &["a*", "ab*", "ac", "b"])])), Ok(()));
        for (given, missing) in [("*", "*"), ("b*", "b*"), ("c", "c"), ("", "")] {
            let error = can_confer(&joe, &grants(&[("produce", &["a", given])])).expect_err(given);
            assert_eq!(error.to_string(), "cannot grant permissions you do not hold");
            assert_eq!(error.pattern.expect("a pattern").to_string(), missing);
        }
        assert!(can_confer(&joe, &grants(&[("consume", &["a"])])).is_err());
        assert!(can_confer(&joe, &grants(&[("admin", &[])])).is_err());
    }

    #[test]
    fn only_root_gives_admin() {
        let everything = grants(&[("create", &["*"]), ("admin", &[])]);
        let error = can_confer(&user(&[("admin", &[])]), &everything).expect_err("not root");
        assert_eq!((error.action, error.pattern), (Action::Admin, None));
        assert_eq!(can_confer(&user(&[("admin", &[])]), &grants(&[("create", &["*"])])), Ok(()));
        assert_eq!(can_confer(&root(), &everything), Ok(()));
    }

    #[test]
    fn scopes_take_away_and_never_give() {
        let scoped = |of: &[(&str, &[&str])], scopes: &[(&str, &[&str])]| Principal { scopes: Some(grants(scopes)), ..user(of) };
        let admin: &[(&str, &[&str])] = &[("admin", &[])];
        let joe = scoped(&[("produce", &["a*"]), ("consume", &["*"])], &[("produce", &["ab", "b"]), ("create", &["own*"])]);
        assert!(decide(&joe, Action::Produce, &topic("ab")).is_ok());
        assert_eq!(decide(&joe, Action::Produce, &topic("a")), Err(Denied::Action(Action::Produce)), "not in the scopes");
        assert_eq!(decide(&joe, Action::Produce, &topic("b")), Err(Denied::Action(Action::Produce)), "not granted");
        assert_eq!(decide(&joe, Action::Consume, &topic("ab")), Err(Denied::Action(Action::Consume)));
        assert_eq!(decide(&joe, Action::Create, &topic("own")), Err(Denied::Action(Action::Create)));
        assert!(may_see(&joe, &topic("ab"), None).is_ok());
        assert_eq!(may_see(&joe, &topic("c"), Some("joe")), Err(Denied::NoGrant), "an owner's key shows what it is for");
        assert_eq!(may_manage(&joe, &topic("own"), Some("joe")), Ok(Reason::Owner));
        assert_eq!(may_manage(&joe, &topic("ab"), Some("joe")), Err(Denied::NotOwner), "a key to produce deletes nothing");
        assert_eq!(may_administer(&scoped(&[], admin)), Err(Denied::NotAdmin));

        let reader = scoped(admin, &[("consume", &["t"])]);
        assert_eq!(decide(&reader, Action::Consume, &topic("t")), Ok(Reason::Admin));
        assert_eq!(decide(&reader, Action::Produce, &topic("t")), Err(Denied::Action(Action::Produce)));
        assert_eq!(may_administer(&reader), Err(Denied::NotAdmin));
        assert_eq!(may_manage(&reader, &topic("t"), None), Err(Denied::NotOwner));
        assert!(
            can_confer(&reader, &grants(&[("consume", &["t"])])).is_ok() && can_confer(&reader, &grants(&[("consume", &["u"])])).is_err()
        );
        assert_eq!(may_administer(&scoped(admin, admin)), Ok(Reason::Admin));
        let root = Principal { scopes: Some(Grants::none()), ..root() };
        assert!(may_copy_metadata(&root).is_err() && can_confer(&root, &grants(admin)).is_err() && may_administer(&root).is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_is_handed_on_allows_more_than_the_granter_may(
            held in proptest::collection::vec("[ab]{0,2}\\*?", 1..4),
            given in proptest::collection::vec("[ab]{0,2}\\*?", 1..4),
            name in "[ab]{1,4}",
        ) {
            let borrow = |patterns: &[String]| -> Principal {
                let patterns: Vec<&str> = patterns.iter().map(String::as_str).collect();
                user(&[("consume", &patterns)])
            };
            let (granter, receiver) = (borrow(&held), borrow(&given));
            if can_confer(&granter, &receiver.grants).is_ok() && decide(&receiver, Action::Consume, &topic(&name)).is_ok() {
                prop_assert!(decide(&granter, Action::Consume, &topic(&name)).is_ok());
            }
        }
    }
}
