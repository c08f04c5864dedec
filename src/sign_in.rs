//! Who speaks: a user's name and password, or a service account's key, from where they were put. Neither a password nor a key is ever a word of
//! the command line, which others can read.

use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use veena_client::ClientBuilder;
use veena_contract::limits;

use crate::flags;
use crate::output::Failure;

/// Where the password is, if it is not asked for.
const PASSWORD: &str = "VEENA_PASSWORD";
/// Where the key of a service account is.
const KEY: &str = "VEENA_API_KEY";
/// The longest line that can be a key: some more than one has.
const KEY_BYTES_MAX: usize = 128;

/// Who speaks to the node.
#[derive(Clone, Debug, Args)]
pub struct SignIn {
    /// The user who signs in. The password is taken from VEENA_PASSWORD or --password-file, or asked for.
    #[arg(short, long, global = true, env = "VEENA_USER", value_name = "NAME")]
    pub user: Option<String>,
    /// A file whose first line is the password; - is the standard input.
    #[arg(long, global = true, value_name = "PATH")]
    pub password_file: Option<String>,
    /// A file whose first line is the key of a service account that signs in; - is the standard input. Without it and without a user the key is
    /// taken from VEENA_API_KEY.
    #[arg(long, global = true, value_name = "PATH")]
    pub key_file: Option<String>,
    /// The password, once it is known: it is asked for once.
    #[arg(skip)]
    known: Arc<OnceLock<Secret>>,
}

/// A text that is not printed.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// The text. Whoever calls this must not print it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl SignIn {
    /// The key of a service account, if one is to sign in. A user who is named comes before what is in the environment for every command.
    fn key(&self) -> Result<Option<Secret>, Failure> {
        match (&self.key_file, &self.user) {
            (Some(_), Some(_)) => {
                Err(Failure::Usage("--key-file is given, and a user is named (-u or VEENA_USER): say one of them".to_owned()))
            }
            (Some(path), None) => from_file(path, "key", KEY_BYTES_MAX).map(Some),
            (None, Some(_)) => Ok(None),
            (None, None) => Ok(std::env::var(KEY).ok().map(Secret)),
        }
    }

    /// The client, with the user if one is named, or the service account whose key there is.
    pub fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        if let Some(key) = self.key()? {
            return builder.api_key(key.expose()).map_err(|error| Failure::Usage(error.text));
        }
        match (&self.user, self.password()?) {
            (Some(user), Some(password)) => Ok(builder.sign_in(user, password.expose())),
            _ => Ok(builder),
        }
    }

    /// The password of the user, if one is named.
    pub fn password(&self) -> Result<Option<Secret>, Failure> {
        let Some(user) = &self.user else {
            return match &self.password_file {
                Some(_) => Err(Failure::Usage("--password-file is given, and no user: say -u NAME".to_owned())),
                None => Ok(None),
            };
        };
        if let Some(known) = self.known.get() {
            return Ok(Some(known.clone()));
        }
        let found = match (&self.password_file, std::env::var(PASSWORD)) {
            (Some(path), _) => from_file(path, "password", limits::PASSWORD_BYTES_MAX)?,
            (None, Ok(password)) => Secret(password),
            (None, Err(_)) => ask(&format!("Password of {user}: "))?.ok_or_else(|| {
                Failure::Usage(format!("nobody can be asked for the password here: set {PASSWORD}, or name a --password-file"))
            })?,
        };
        Ok(Some(self.known.get_or_init(|| found).clone()))
    }
}

/// A new password: from a file, or asked for twice.
pub fn new_password(path: Option<&str>, user: &str) -> Result<Secret, Failure> {
    if let Some(path) = path {
        return from_file(path, "password", limits::PASSWORD_BYTES_MAX);
    }
    let nobody = || Failure::Usage("nobody can be asked for the new password here: name a --new-password-file".to_owned());
    let first = ask(&format!("New password of {user}: "))?.ok_or_else(nobody)?;
    let second = ask("The same again: ")?.ok_or_else(nobody)?;
    if first.0 == second.0 { Ok(first) } else { Err(Failure::Usage("the two are not the same".to_owned())) }
}

/// The first line of a file.
fn from_file(path: &str, what: &str, bytes_max: usize) -> Result<Secret, Failure> {
    let bytes = flags::read_file_now(path)?;
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match std::str::from_utf8(line) {
        Ok(text) if !text.is_empty() && text.len() <= bytes_max => Ok(Secret(text.to_owned())),
        Ok(_) => Err(Failure::Usage(format!("the first line of {path} is no {what} of 1 to {bytes_max} bytes"))),
        Err(_) => Err(Failure::Usage(format!("{path} is not UTF-8"))),
    }
}

/// Asks on the terminal, which does not show what is typed; no terminal is no answer.
fn ask(question: &str) -> io::Result<Option<Secret>> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    eprint!("{question}");
    io::stderr().flush()?;
    let shown = tcgetattr(&stdin)?;
    let mut hidden = shown.clone();
    hidden.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&stdin, OptionalActions::Flush, &hidden)?;
    let mut answer = String::new();
    let read = stdin.read_line(&mut answer);
    tcsetattr(&stdin, OptionalActions::Flush, &shown)?;
    eprintln!();
    read?;
    Ok(Some(Secret(answer.trim_end_matches(['\r', '\n']).to_owned())))
}
