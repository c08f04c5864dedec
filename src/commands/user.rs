//! `veena user`: who may do what.

use clap::{Args, Subcommand};
use veena_client::bodies::{CreateUser, Grant, PasswordText, PutUser, SetGrants, SetPassword, User};
use veena_client::{Client, ClientError};

use veena_contract::{Effect, ErrorCode};

use super::Global;
use crate::output::{self, Failure, Outcome};
use crate::sign_in::new_password;

/// Whose users, and what to do with them.
#[derive(Debug, Args)]
pub struct UserArgs {
    /// The tenant whose users they are, for operators (default: the tenant of the one who signs in).
    #[arg(long, global = true, value_name = "TENANT")]
    tenant: Option<String>,
    #[command(subcommand)]
    command: UserCommand,
}

/// What to do with users.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    /// Create a user. The password is asked for, or taken from a file.
    #[command(visible_alias = "create")]
    Add {
        /// The name: A-Z a-z 0-9 . _ -
        name: String,
        #[command(flatten)]
        grants: GrantArgs,
        #[command(flatten)]
        password: NewPasswordArgs,
    },
    /// List the users.
    #[command(visible_alias = "list")]
    Ls,
    /// Show a user.
    Info {
        /// The user.
        name: String,
    },
    /// Delete a user. Topics that they own stay, and are theirs again if a user of this name is created.
    #[command(visible_alias = "delete")]
    Rm {
        /// The user.
        name: String,
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
    },
    /// Replace what a user may do: what is not said here is taken away.
    Grant {
        /// The user.
        name: String,
        #[command(flatten)]
        grants: GrantArgs,
        /// Take everything away.
        #[arg(long, conflicts_with = "grant")]
        nothing: bool,
    },
    /// Change a password: one's own, or, for admins, somebody else's. The new one is asked for, or taken from a file.
    Passwd {
        /// The user (default: the one who signs in).
        name: Option<String>,
        #[command(flatten)]
        password: NewPasswordArgs,
    },
}

/// What a user may do.
#[derive(Debug, Args)]
pub struct GrantArgs {
    /// What the user may do, and to which topics: ACTION:PATTERN,PATTERN. Actions are produce, consume and create; a pattern is a name, or the
    /// beginning of names and a *. Or admin, for everything. May be given several times.
    #[arg(long, value_parser = grant, value_name = "GRANT")]
    pub(super) grant: Vec<Grant>,
}

/// Where a new password is.
#[derive(Debug, Args)]
pub struct NewPasswordArgs {
    /// A file whose first line is the new password; - is the standard input.
    #[arg(long, value_name = "PATH")]
    new_password_file: Option<String>,
}

/// Reads `action:pattern,pattern`. What is a good action or pattern is the server's to say.
pub(super) fn grant(text: &str) -> Result<Grant, String> {
    let (action, patterns) = match text.split_once(':') {
        Some((action, patterns)) => (action, patterns.split(',').map(str::to_owned).collect::<Vec<_>>()),
        None => (text, Vec::new()),
    };
    if action.is_empty() || patterns.iter().any(String::is_empty) {
        Err("want ACTION:PATTERN,PATTERN, or admin, with something at each of these places".to_owned())
    } else {
        Ok(Grant { action: action.to_owned(), patterns })
    }
}

/// Runs one of them.
pub async fn run(global: &Global, args: UserArgs) -> Outcome {
    check(global, &args.command)?;
    let client = global.client()?;
    let users = Users { client, tenant: args.tenant };
    match args.command {
        UserCommand::Add { name, grants, password } => {
            let password = new_password(password.new_password_file.as_deref(), &name)?.expose().to_owned().into();
            let user = users.create(name, password, grants.grant).await?;
            done(global, &user, &format!("created {}, who may {}", user.username, rights(&user)))
        }
        UserCommand::Ls => {
            let users = users.all().await?;
            if global.json { users.iter().try_for_each(output::json) } else { list(&users) }
        }
        UserCommand::Info { name } => {
            let user = users.one(&name).await?;
            if global.json { output::json(&user) } else { list(std::slice::from_ref(&user)) }
        }
        UserCommand::Rm { name, force } => {
            if !force {
                match output::confirm(&format!("Delete the user {name}?"))? {
                    Some(true) => {}
                    Some(false) => return Err(Failure::Failed(anyhow::anyhow!("not deleted"))),
                    None => return Err(Failure::Usage("nobody can be asked here: say -f to delete the user".to_owned())),
                }
            }
            users.delete(&name).await?;
            if global.json { Ok(()) } else { output::line(format!("deleted {name}")) }
        }
        UserCommand::Grant { name, grants, nothing: _ } => {
            let user = users.set_grants(&name, grants.grant).await?;
            done(global, &user, &format!("{} may {}", user.username, rights(&user)))
        }
        UserCommand::Passwd { name, password } => {
            // Of an operator who looks after another tenant nobody there is themselves.
            let own = global.sign_in.user().filter(|_| users.tenant.is_none());
            let own = own.map(|own| own.split_once('@').map_or(own, |(name, _)| name).to_owned());
            let name = name.or_else(|| own.clone()).ok_or_else(|| Failure::Usage("say whose password, or sign in with -u".to_owned()))?;
            // Whoever is no admin proves that it is them.
            let current = if own.as_deref() == Some(&*name) { global.sign_in.password()? } else { None };
            let new = new_password(password.new_password_file.as_deref(), &name)?;
            let current = current.map(|current| current.expose().to_owned().into());
            users.set_password(&name, new.expose().to_owned().into(), current).await?;
            if global.json { Ok(()) } else { output::line(format!("changed the password of {name}")) }
        }
    }
}

/// The users of the one who signs in, or those of a tenant that an operator looks after.
struct Users {
    client: Client,
    tenant: Option<String>,
}

impl Users {
    async fn all(&self) -> Result<Vec<User>, Failure> {
        Ok(match &self.tenant {
            None => self.client.users().await?,
            Some(tenant) => self.client.users_of(tenant).await?,
        })
    }

    async fn one(&self, name: &str) -> Result<User, Failure> {
        match &self.tenant {
            None => Ok(self.client.user(name).await?),
            Some(_) => self.find(name).await?.ok_or_else(|| refused(404, ErrorCode::NotFound, "user not found")),
        }
    }

    async fn find(&self, name: &str) -> Result<Option<User>, Failure> {
        Ok(self.all().await?.into_iter().find(|user| user.username == name))
    }

    async fn create(&self, username: String, password: PasswordText, grants: Vec<Grant>) -> Result<User, Failure> {
        let Some(tenant) = &self.tenant else {
            return Ok(self.client.create_user(&CreateUser { username, password, grants: Some(grants) }).await?);
        };
        // What an operator says of a user is said of one that is there, too.
        if self.find(&username).await?.is_some() {
            return Err(refused(409, ErrorCode::AlreadyExists, "user already exists"));
        }
        let body = PutUser { password: Some(password), grants: Some(grants), revision: None };
        Ok(self.client.put_user_of(tenant, &username, &body).await?)
    }

    async fn delete(&self, name: &str) -> Result<(), Failure> {
        match &self.tenant {
            None => self.client.delete_user(name).await?,
            Some(tenant) => self.client.delete_user_of(tenant, name).await?,
        }
        Ok(())
    }

    async fn set_grants(&self, name: &str, grants: Vec<Grant>) -> Result<User, Failure> {
        let Some(tenant) = &self.tenant else { return Ok(self.client.set_grants(name, &SetGrants { grants }).await?) };
        self.one(name).await?;
        Ok(self.client.put_user_of(tenant, name, &PutUser { grants: Some(grants), ..PutUser::default() }).await?)
    }

    async fn set_password(&self, name: &str, new_password: PasswordText, current_password: Option<PasswordText>) -> Result<(), Failure> {
        let Some(tenant) = &self.tenant else {
            return Ok(self.client.set_password(name, &SetPassword { new_password, current_password }).await?);
        };
        self.one(name).await?;
        self.client.put_user_of(tenant, name, &PutUser { password: Some(new_password), ..PutUser::default() }).await?;
        Ok(())
    }
}

/// What the server would say if it was asked for one user of a tenant.
fn refused(status: u16, code: ErrorCode, text: &str) -> Failure {
    let (status, code, text) = (Some(status), Some(code.as_str().to_owned()), text.to_owned());
    ClientError { status, code, effect: Effect::None, is_retryable: false, text, retry_after: None }.into()
}

/// What makes no sense is told before anybody is asked for a password.
fn check(global: &Global, command: &UserCommand) -> Outcome {
    match command {
        UserCommand::Grant { grants, nothing: false, .. } if grants.grant.is_empty() => {
            Err(Failure::Usage("say --grant ..., or --nothing to take everything away".to_owned()))
        }
        UserCommand::Add { password, .. } | UserCommand::Passwd { password, .. }
            if global.sign_in.takes_stdin() && password.new_password_file.as_deref() == Some("-") =>
        {
            let text = "--password-file and --new-password-file are both -, and the standard input has one first line: name a file for one of them";
            Err(Failure::Usage(text.to_owned()))
        }
        _ => Ok(()),
    }
}

fn done(global: &Global, user: &User, text: &str) -> Outcome {
    if global.json { output::json(user) } else { output::line(text) }
}

fn list(users: &[User]) -> Outcome {
    let mut rows = vec![vec!["USER".into(), "MAY".into()]];
    rows.extend(users.iter().map(|user| vec![user.username.clone(), rights(user)]));
    output::table(&rows)
}

/// What a user may do, in words.
fn rights(user: &User) -> String {
    if user.root {
        return "do everything, for good".to_owned();
    }
    may(&user.grants)
}

/// What grants allow, in words.
pub(super) fn may(grants: &[Grant]) -> String {
    let right = |grant: &Grant| match grant.action.as_str() {
        "admin" => "do everything".to_owned(),
        action => format!("{action} {}", grant.patterns.join(",")),
    };
    if grants.is_empty() { "do nothing".to_owned() } else { grants.iter().map(right).collect::<Vec<_>>().join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::{Cli, Command};

    #[test]
    fn a_grant_is_an_action_and_patterns() {
        let of = |action: &str, patterns: &[&str]| Grant {
            action: action.to_owned(),
            patterns: patterns.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(grant("produce:a*,b"), Ok(of("produce", &["a*", "b"])));
        assert_eq!(grant("admin"), Ok(of("admin", &[])));
        for wrong in [":a", "", "produce:", "produce:a,,b", "produce:,a", ":"] {
            assert!(grant(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_told_before_anybody_is_asked() {
        let told = |line: &str| {
            let cli = Cli::read(line.split_whitespace().map(Into::into)).expect(line);
            let Command::User(args) = cli.command else { panic!("{line} is about users") };
            match check(&cli.global, &args.command) {
                Ok(()) => String::new(),
                Err(Failure::Usage(text)) => text,
                Err(_) => panic!("{line} is refused for its form alone"),
            }
        };
        assert!(told("veena user grant k1").contains("say --grant"));
        assert!(told("veena -u a --password-file - user passwd --new-password-file -").contains("are both -"));
        for fine in ["user grant k1 --nothing", "user grant k1 --grant admin", "-u a --password-file - user passwd --new-password-file f"] {
            assert_eq!(told(&format!("veena {fine}")), "");
        }
    }

    #[test]
    fn rights_are_told_in_words() {
        let of = |grants: &[&str], root| User {
            grants: grants.iter().map(|text| grant(text).expect("a grant")).collect(),
            root,
            ..User::default()
        };
        assert_eq!(rights(&of(&["produce:a*,b", "consume:c"], false)), "produce a*,b; consume c");
        assert_eq!(rights(&of(&["admin"], false)), "do everything");
        assert_eq!((rights(&of(&[], false)).as_str(), rights(&of(&[], true)).as_str()), ("do nothing", "do everything, for good"));
    }
}
