//! Which path is which route. Matching is by hand: it is on every request's way, and the contract fixes the answers to unknown ones.

use std::borrow::Cow;

use http::Method;
use veena_auth::Action::{Consume, Produce};

use crate::query::unescape_segment;
use crate::rights::Need::{self, Admin, Anybody, Counters, Create, Do, Manage, ManageEither, Oneself, Operator, Root, See, User};

/// The routes, with what each of their methods needs: one without it does not compile.
macro_rules! routes {
    ($($(#[$doc:meta])* $name:ident $path:literal [$($method:ident: $need:expr),*];)*) => {
        /// Every path that is served.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Route { $($(#[$doc])* $name,)* }

        impl Route {
            /// Every route, in order of its number.
            pub(crate) const ALL: &'static [Route] = &[$(Route::$name,)*];

            /// The path's template, used as a label.
            pub(crate) const fn template(self) -> &'static str {
                match self { $(Route::$name => $path,)* }
            }

            /// The methods served there (`HEAD` goes wherever `GET` goes), and what a caller needs for each.
            pub(crate) const fn methods(self) -> &'static [(Verb, Need)] {
                match self { $(Route::$name => &[$((Verb::$method, $need),)*],)* }
            }
        }
    };
}

routes! {
    /// Creates and lists topics.
    Topics "/v1/topics" [Get: User, Post: Create];
    /// One topic.
    Topic "/v1/topics/{topic}" [Get: See, Patch: Manage, Delete: Manage];
    /// A topic's schema history.
    Schema "/v1/topics/{topic}/schema" [Get: See];
    /// A topic's children.
    Children "/v1/topics/{topic}/children" [Get: See, Post: Manage];
    /// One child.
    Child "/v1/topics/{topic}/children/{child}" [Delete: ManageEither];
    /// Takes one message.
    Produce "/v1/topics/{topic}/produce" [Post: Do(Produce)];
    /// Takes many messages.
    ProduceBatch "/v1/topics/{topic}/produce/batch" [Post: Do(Produce)];
    /// Hands out messages.
    Consume "/v1/topics/{topic}/consume" [Get: Do(Consume)];
    /// Settles leases.
    Ack "/v1/topics/{topic}/ack" [Post: Do(Consume)];
    /// The members of the cluster.
    ClusterMembers "/v1/cluster/members" [Get: Operator];
    /// A copy of the metadata.
    ClusterBackup "/v1/cluster/backup" [Get: Root];
    /// Takes a member out, or takes that back.
    ClusterDecommission "/v1/cluster/members/{member}/decommission" [Post: Operator, Delete: Operator];
    /// Gives up a member that is dead.
    ClusterForget "/v1/cluster/members/{member}/forget" [Post: Operator];
    /// Partitions on their way to other nodes.
    ClusterMoves "/v1/cluster/moves" [Get: Operator];
    /// Ends a move.
    ClusterAbort "/v1/cluster/moves/{topic}/{partition}/abort" [Post: Operator];
    /// Creates and lists users.
    Users "/v1/users" [Get: Admin, Post: Admin];
    /// One user.
    User "/v1/users/{user}" [Get: Admin, Delete: Admin];
    /// What a user may do.
    Grants "/v1/users/{user}/grants" [Put: Admin];
    /// A user's password.
    Password "/v1/users/{user}/password" [Put: Oneself];
    /// The tenants of the cluster.
    Tenants "/v1/admin/tenants" [Get: Operator];
    /// One tenant.
    Tenant "/v1/admin/tenants/{tenant}" [Get: Operator, Put: Operator, Delete: Operator];
    /// The users of a tenant.
    TenantUsers "/v1/admin/tenants/{tenant}/users" [Get: Operator];
    /// One user of a tenant.
    TenantUser "/v1/admin/tenants/{tenant}/users/{user}" [Put: Operator, Delete: Operator];
    /// Creates and lists service accounts.
    Accounts "/v1/accounts" [Get: Admin, Post: Admin];
    /// One service account.
    Account "/v1/accounts/{account}" [Get: Admin, Delete: Admin];
    /// What a service account may do.
    AccountGrants "/v1/accounts/{account}/grants" [Put: Admin];
    /// Creates and lists keys of a service account.
    Keys "/v1/accounts/{account}/keys" [Get: Admin, Post: Admin];
    /// One key.
    Key "/v1/accounts/{account}/keys/{key}" [Delete: Admin];
    /// Who is it that asks?
    Whoami "/v1/whoami" [Get: User];
    /// Who changed what of the caller's tenant.
    Audit "/v1/audit" [Get: Admin];
    /// The same of any tenant.
    AdminAudit "/v1/admin/audit" [Get: Operator];
    /// Why may somebody do something, or not?
    Explain "/v1/explain" [Get: User];
    /// The limits of any tenant.
    TenantQuota "/v1/admin/tenants/{tenant}/quota" [Get: Operator, Put: Operator];
    /// What every tenant has used.
    AdminUsage "/v1/admin/usage" [Get: Operator];
    /// The limits of one's own tenant.
    Quota "/v1/quota" [Get: User];
    /// What one's own tenant has used.
    Usage "/v1/usage" [Get: Admin];
    /// Whose tokens are taken.
    TokenIssuer "/v1/admin/token-issuer" [Get: Operator, Put: Operator, Delete: Operator];
    /// Does the process answer?
    Healthz "/healthz" [Get: Anybody];
    /// Does it take work?
    Readyz "/readyz" [Get: Anybody];
    /// Counters.
    Metrics "/metrics" [Get: Counters];
}

/// A method that some route serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// `GET`, and `HEAD`.
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
    /// `PATCH`.
    Patch,
    /// `DELETE`.
    Delete,
}

impl Verb {
    /// Every method, in order of its number.
    pub(crate) const ALL: [Verb; 5] = [Verb::Get, Verb::Post, Verb::Put, Verb::Patch, Verb::Delete];

    /// As written in a request.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Verb::Get => "GET",
            Verb::Post => "POST",
            Verb::Put => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        }
    }

    fn of(method: &Method) -> Option<Self> {
        match *method {
            Method::GET | Method::HEAD => Some(Verb::Get),
            Method::POST => Some(Verb::Post),
            Method::PUT => Some(Verb::Put),
            Method::PATCH => Some(Verb::Patch),
            Method::DELETE => Some(Verb::Delete),
            _ => None,
        }
    }
}

impl Route {
    /// The method as this route serves it, and what it needs.
    pub(crate) fn verb(self, method: &Method) -> Option<(Verb, Need)> {
        let asked = Verb::of(method)?;
        self.methods().iter().copied().find(|(verb, _)| *verb == asked)
    }

    /// The value of `Allow` for a method that is not served.
    pub(crate) fn allow(self) -> String {
        let mut names: Vec<&str> = self.methods().iter().map(|(verb, _)| verb.name()).collect();
        if names.contains(&"GET") {
            names.push("HEAD");
        }
        names.sort_unstable();
        names.join(", ")
    }
}

/// A path, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Matched<'a> {
    pub(crate) route: Route,
    /// The topic (or parent) named in the path, or nothing.
    pub(crate) topic: Cow<'a, str>,
    /// The child, the member, the partition, the user, the tenant or the account named in the path, or nothing.
    pub(crate) second: Cow<'a, str>,
    /// The tenant named in the path, or nothing.
    pub(crate) tenant: Cow<'a, str>,
    /// The key named in the path, or nothing.
    pub(crate) third: Cow<'a, str>,
}

impl<'a> Matched<'a> {
    /// A route whose path names a topic, something else, or neither.
    const fn new(route: Route, topic: Cow<'a, str>, second: Cow<'a, str>) -> Self {
        Self { route, topic, second, tenant: Cow::Borrowed(""), third: Cow::Borrowed("") }
    }
}

/// Finds the route of a path.
pub(crate) fn find(path: &str) -> Option<Matched<'_>> {
    let plain = |route| Some(Matched::new(route, Cow::Borrowed(""), Cow::Borrowed("")));
    let Some(rest) = path.strip_prefix("/v1/topics") else {
        return match path {
            "/healthz" => plain(Route::Healthz),
            "/readyz" => plain(Route::Readyz),
            "/metrics" => plain(Route::Metrics),
            "/v1/cluster/members" => plain(Route::ClusterMembers),
            "/v1/cluster/moves" => plain(Route::ClusterMoves),
            "/v1/cluster/backup" => plain(Route::ClusterBackup),
            "/v1/users" => plain(Route::Users),
            "/v1/accounts" => plain(Route::Accounts),
            "/v1/whoami" => plain(Route::Whoami),
            "/v1/audit" => plain(Route::Audit),
            "/v1/admin/audit" => plain(Route::AdminAudit),
            "/v1/explain" => plain(Route::Explain),
            "/v1/quota" => plain(Route::Quota),
            "/v1/usage" => plain(Route::Usage),
            "/v1/admin/usage" => plain(Route::AdminUsage),
            "/v1/admin/tenants" => plain(Route::Tenants),
            "/v1/admin/token-issuer" => plain(Route::TokenIssuer),
            _ if path.starts_with("/v1/admin/") => find_in_tenants(path.strip_prefix("/v1/admin/tenants/")?),
            _ => match path.strip_prefix("/v1/users/") {
                Some(rest) => find_in_users(rest),
                None => match path.strip_prefix("/v1/accounts/") {
                    Some(rest) => find_in_accounts(rest),
                    None => find_in_cluster(path.strip_prefix("/v1/cluster/")?),
                },
            },
        };
    };
    if rest.is_empty() {
        return plain(Route::Topics);
    }
    let rest = rest.strip_prefix('/')?;
    let (topic, tail) = rest.split_once('/').map_or((rest, None), |(topic, tail)| (topic, Some(tail)));
    let mut second = Cow::Borrowed("");
    let route = match tail {
        None => Route::Topic,
        Some("produce") => Route::Produce,
        Some("consume") => Route::Consume,
        Some("ack") => Route::Ack,
        Some("produce/batch") => Route::ProduceBatch,
        Some("schema") => Route::Schema,
        Some("children") => Route::Children,
        Some(other) => {
            let name = other.strip_prefix("children/").filter(|name| !name.is_empty() && !name.contains('/'))?;
            second = unescape_segment(name)?;
            Route::Child
        }
    };
    if topic.is_empty() {
        return None;
    }
    Some(Matched::new(route, unescape_segment(topic)?, second))
}

/// The routes below `/v1/cluster/` that name something.
fn find_in_cluster(rest: &str) -> Option<Matched<'_>> {
    let segments: Vec<&str> = rest.split('/').collect();
    let (route, topic, second) = match *segments.as_slice() {
        ["members", member, "decommission"] => (Route::ClusterDecommission, "", member),
        ["members", member, "forget"] => (Route::ClusterForget, "", member),
        ["moves", topic, partition, "abort"] if !topic.is_empty() => (Route::ClusterAbort, topic, partition),
        _ => return None,
    };
    let second = Some(second).filter(|second| !second.is_empty())?;
    Some(Matched::new(route, unescape_segment(topic)?, unescape_segment(second)?))
}

/// The routes below `/v1/admin/tenants/`.
fn find_in_tenants(rest: &str) -> Option<Matched<'_>> {
    let segments: Vec<&str> = rest.split('/').collect();
    let (route, tenant, user) = match *segments.as_slice() {
        [tenant] => (Route::Tenant, tenant, ""),
        [tenant, "users"] => (Route::TenantUsers, tenant, ""),
        [tenant, "quota"] => (Route::TenantQuota, tenant, ""),
        [tenant, "users", user] if !user.is_empty() => (Route::TenantUser, tenant, user),
        _ => return None,
    };
    let tenant = unescape_segment(Some(tenant).filter(|tenant| !tenant.is_empty())?)?;
    Some(Matched { tenant, ..Matched::new(route, Cow::Borrowed(""), unescape_segment(user)?) })
}

/// The routes of one user.
fn find_in_users(rest: &str) -> Option<Matched<'_>> {
    let (name, tail) = rest.split_once('/').map_or((rest, None), |(name, tail)| (name, Some(tail)));
    let route = match tail {
        None => Route::User,
        Some("grants") => Route::Grants,
        Some("password") => Route::Password,
        Some(_) => return None,
    };
    let second = Some(name).filter(|name| !name.is_empty())?;
    Some(Matched::new(route, Cow::Borrowed(""), unescape_segment(second)?))
}

/// The routes of one service account.
fn find_in_accounts(rest: &str) -> Option<Matched<'_>> {
    let segments: Vec<&str> = rest.split('/').collect();
    let (route, second, third) = match *segments.as_slice() {
        [account] => (Route::Account, account, ""),
        [account, "grants"] => (Route::AccountGrants, account, ""),
        [account, "keys"] => (Route::Keys, account, ""),
        [account, "keys", key] if !key.is_empty() => (Route::Key, account, key),
        _ => return None,
    };
    let second = Some(second).filter(|second| !second.is_empty())?;
    Some(Matched { third: unescape_segment(third)?, ..Matched::new(route, Cow::Borrowed(""), unescape_segment(second)?) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_found_under_its_own_route() {
        for route in Route::ALL {
            const OTHERS: [&str; 5] = ["{child}", "{member}", "{partition}", "{user}", "{account}"];
            let path = OTHERS.iter().fold(route.template().replace("{topic}", "a.b"), |path, other| path.replace(other, "c"));
            let path = path.replace("{tenant}", "acme").replace("{key}", "k");
            let found = find(&path).expect("a served path");
            assert_eq!(found.tenant == "acme", route.template().contains("{tenant}"));
            assert_eq!(found.route, *route);
            assert_eq!(found.topic == "a.b", route.template().contains("{topic}"));
            let names_another = OTHERS.iter().any(|name| route.template().contains(name));
            assert_eq!(found.second == "c", names_another);
            assert_eq!(found.third == "k", route.template().contains("{key}"));
        }
    }

    #[test]
    fn an_unknown_path_is_found_nowhere() {
        for path in [
            "/",
            "/v1",
            "/v1/topics/",
            "/v1/topicsx",
            "/v1/topics//produce",
            "/v1/topics/a/produce/",
            "/v1/topics/a/children/b/c",
            "/v2/topics",
            "/v1/cluster",
            "/v1/cluster/members/",
            "/v1/cluster/members//forget",
            "/v1/cluster/members/a",
            "/v1/cluster/moves/a/0",
            "/v1/cluster/moves//0/abort",
            "/v1/users/",
            "/v1/users//grants",
            "/v1/users/a/",
            "/v1/users/a/b",
            "/v1/users/a/grants/b",
            "/v1/admin",
            "/v1/admin/tenants/",
            "/v1/admin/tenants/a/",
            "/v1/admin/tenants//users",
            "/v1/admin/tenants/a/users/",
            "/v1/admin/tenants/a/users/b/c",
            "/v1/admin/tenants/a/topics",
            "/v1/accounts/",
            "/v1/accounts//keys",
            "/v1/accounts/a/",
            "/v1/accounts/a/b",
            "/v1/accounts/a/keys/",
            "/v1/accounts/a/keys/b/c",
            "/v1/whoami/",
        ] {
            assert_eq!(find(path), None, "{path}");
        }
    }

    #[test]
    fn allow_lists_what_is_served() {
        assert_eq!(Route::Topic.allow(), "DELETE, GET, HEAD, PATCH");
        assert_eq!(Route::Produce.allow(), "POST");
        assert_eq!(Route::Password.allow(), "PUT");
        assert_eq!(Route::Consume.verb(&Method::HEAD), Some((Verb::Get, Do(Consume))));
        assert_eq!(Route::Consume.verb(&Method::POST), None);
    }
}
