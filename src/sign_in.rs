//! Who speaks: a user's name and password, a service account's key, or a token, from where they were put. None of these is ever a word of the
//! command line, which others can read.

use std::fmt;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::sync::{Arc, OnceLock};

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use veena_client::ClientBuilder;
use veena_contract::limits;

use crate::flags;
use crate::output::Failure;

/// Where the password is, if it is not asked for.
const PASSWORD: &str = "VEENA_PASSWORD";
/// Whose it is.
const USER: &str = "VEENA_USER";
/// What a terminal sends for Ctrl-C.
const CTRL_C: u8 = 3;
/// Where the key of a service account is.
const KEY: &str = "VEENA_API_KEY";
/// The longest line that can be a key: some more than one has.
const KEY_BYTES_MAX: usize = 128;
/// Where the file is that has a token. A token is renewed all the time: it is a file that is named.
const TOKEN_FILE: &str = "VEENA_TOKEN_FILE";

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
    /// A file whose first line is a bearer token that signs in; - is the standard input. Without it, without a key and without a user the file is
    /// the one that VEENA_TOKEN_FILE names. It is read once, when the command starts.
    #[arg(long, global = true, value_name = "PATH")]
    pub token_file: Option<String>,
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

/// What signs in without a name.
enum Held {
    Key(Secret),
    Token(Secret),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl SignIn {
    /// The key of a service account or the token, if one of them is to sign in. A user who is named comes before what is in the environment for
    /// every command.
    fn held(&self) -> Result<Option<Held>, Failure> {
        let usage = |text: String| Err(Failure::Usage(text));
        let and_user = |flag: &str| usage(format!("{flag} is given, and a user is named with -u: say one of them"));
        let token = |path: &str| from_file(path, "token", limits::TOKEN_BYTES_MAX).map(|token| Some(Held::Token(token)));
        match (&self.key_file, &self.token_file, self.user()) {
            (Some(_), Some(_), _) => usage("--key-file and --token-file are given: say one of them".to_owned()),
            (Some(_), None, Some(_)) => and_user("--key-file"),
            (None, Some(_), Some(_)) => and_user("--token-file"),
            (Some(path), None, None) => from_file(path, "key", KEY_BYTES_MAX).map(|key| Some(Held::Key(key))),
            (None, Some(path), None) => token(path),
            (None, None, Some(_)) => Ok(None),
            (None, None, None) => match (std::env::var(KEY).ok(), std::env::var(TOKEN_FILE).ok()) {
                (Some(_), Some(_)) => {
                    usage(format!("{KEY} and {TOKEN_FILE} are both set: unset one of them, or say --key-file or --token-file"))
                }
                (Some(key), None) => Ok(Some(Held::Key(Secret(key)))),
                (None, Some(path)) => token(&path),
                (None, None) => Ok(None),
            },
        }
    }

    /// The client, with the user if one is named, or whomever the key or the token that there is names.
    pub fn apply(&self, builder: ClientBuilder) -> Result<ClientBuilder, Failure> {
        let invalid = |error: veena_client::ClientError| Failure::Usage(error.text);
        match self.held()? {
            Some(Held::Key(key)) => return builder.api_key(key.expose()).map_err(invalid),
            Some(Held::Token(token)) => return builder.token(token.expose()).map_err(invalid),
            None => {}
        }
        match (self.user(), self.password()?) {
            (Some(user), Some(password)) => Ok(builder.sign_in(user, password.expose())),
            _ => Ok(builder),
        }
    }

    /// The user, if one is named.
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref().filter(|user| !user.is_empty())
    }

    /// Is the password the first line of the standard input?
    pub fn takes_stdin(&self) -> bool {
        self.user().is_some() && self.password_file.as_deref() == Some("-")
    }

    /// The password of the user, if one is named.
    pub fn password(&self) -> Result<Option<Secret>, Failure> {
        let Some(user) = self.user() else {
            return match &self.password_file {
                Some(_) => Err(Failure::Usage("--password-file is given, and no user: say -u NAME".to_owned())),
                None => Ok(None),
            };
        };
        if let Some(known) = self.known.get() {
            return Ok(Some(known.clone()));
        }
        let found = match (&self.password_file, from_env(user, |name| std::env::var(name).ok())) {
            (Some(path), _) => from_file(path, "password", limits::PASSWORD_BYTES_MAX)?,
            (None, FromEnv::Password(password)) => password,
            (None, found) => ask(&format!("Password of {user}: "))?.ok_or_else(|| {
                Failure::Usage(match found {
                    FromEnv::OfAnother(other) => format!(
                        "{PASSWORD} is that of {other}, whom {USER} names, and nobody can be asked for the password of {user} here: name a \
                         --password-file, or set both variables"
                    ),
                    _ => format!("nobody can be asked for the password here: set {PASSWORD}, or name a --password-file"),
                })
            })?,
        };
        Ok(Some(self.known.get_or_init(|| found).clone()))
    }
}

/// What the environment says of a user's password.
enum FromEnv {
    Nothing,
    Password(Secret),
    /// It is another user's.
    OfAnother(String),
}

fn from_env(user: &str, env: impl Fn(&str) -> Option<String>) -> FromEnv {
    match (env(PASSWORD), env(USER).filter(|named| !named.is_empty())) {
        (None, _) => FromEnv::Nothing,
        (Some(_), Some(named)) if named != user => FromEnv::OfAnother(named),
        (Some(password), _) => FromEnv::Password(Secret(password)),
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
fn ask(question: &str) -> Result<Option<Secret>, Failure> {
    let stdin = io::stdin();
    if !stdin.is_terminal() {
        return Ok(None);
    }
    // Nobody types before they are asked, and then nothing is shown.
    let hidden = Hidden::begin(&stdin)?;
    eprint!("{question}");
    io::stderr().flush()?;
    let mut input = stdin.lock();
    // A terminal hands over a line at a time.
    let line = input.fill_buf()?.to_vec();
    input.consume(line.len());
    drop(input);
    drop(hidden);
    eprintln!();
    typed(&line).map(Some)
}

/// What was typed, as the terminal handed it over: a line, what came before Ctrl-C, or what came before Ctrl-D.
fn typed(line: &[u8]) -> Result<Secret, Failure> {
    let nothing = |why: &str| Failure::Failed(anyhow::anyhow!("{why}: nothing was done"));
    if line.contains(&CTRL_C) {
        return Err(nothing("stopped"));
    }
    match line.strip_suffix(b"\n").map(|line| std::str::from_utf8(line.strip_suffix(b"\r").unwrap_or(line))) {
        None | Some(Ok("")) => Err(nothing("no password was given")),
        Some(Ok(text)) => Ok(Secret(text.to_owned())),
        Some(Err(_)) => Err(nothing("the password is not UTF-8")),
    }
}

/// A terminal that does not show what is typed, until it is dropped. Ctrl-C ends the line instead of the process, which would leave the terminal
/// like this.
struct Hidden<'a> {
    stdin: &'a io::Stdin,
    shown: Termios,
}

impl<'a> Hidden<'a> {
    fn begin(stdin: &'a io::Stdin) -> io::Result<Self> {
        let shown = tcgetattr(stdin)?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
        hidden.special_codes[SpecialCodeIndex::VEOL] = CTRL_C;
        tcsetattr(stdin, OptionalActions::Flush, &hidden)?;
        Ok(Self { stdin, shown })
    }
}

impl Drop for Hidden<'_> {
    fn drop(&mut self) {
        if let Err(error) = tcsetattr(self.stdin, OptionalActions::Flush, &self.shown) {
            eprintln!("the terminal does not show what is typed (stty echo): {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_that_is_typed_is_a_line_and_anything_else_is_none() {
        assert_eq!(typed(b"hunter2\n").expect("a line").expose(), "hunter2");
        assert_eq!(typed(b" \xc3\xa4 \r\n").expect("a line").expose(), " \u{e4} ");
        for (line, why) in [
            (b"".as_slice(), "no password was given"),
            (b"hunt", "no password was given"),
            (b"\n", "no password was given"),
            (b"hun\x03", "stopped"),
            (b"\x03", "stopped"),
            (b"\xff\n", "not UTF-8"),
        ] {
            match typed(line) {
                Err(Failure::Failed(error)) => assert!(error.to_string().contains(why), "{line:?}: {error}"),
                _ => panic!("{line:?} is taken"),
            }
        }
    }

    #[test]
    fn a_password_of_the_environment_is_only_that_of_the_user_whom_it_names() {
        let env =
            |user: Option<&'static str>| move |name: &str| if name == USER { user.map(str::to_owned) } else { Some("hunter2".to_owned()) };
        for named in [None, Some(""), Some("joe")] {
            assert!(matches!(from_env("joe", env(named)), FromEnv::Password(password) if password.expose() == "hunter2"), "{named:?}");
        }
        assert!(matches!(from_env("joe", env(Some("ann"))), FromEnv::OfAnother(other) if other == "ann"));
        assert!(matches!(from_env("joe", |_| None), FromEnv::Nothing));
    }

    #[tokio::test(flavor = "multi_thread")]
    #[expect(clippy::disallowed_methods, reason = "a real file")]
    async fn a_token_is_the_first_line_of_a_file_and_nobody_else_is_named_beside_it() {
        let file = std::env::temp_dir().join(format!("veena-token-{}", std::process::id()));
        std::fs::write(&file, "e30.e30.AA\n").expect("written");
        let path = || Some(file.display().to_string());
        let of = |user: Option<&str>, key_file: Option<String>, token_file: Option<String>| {
            SignIn { user: user.map(str::to_owned), password_file: None, key_file, token_file, known: Arc::default() }.held()
        };
        match of(None, None, path()) {
            Ok(Some(Held::Token(token))) => assert_eq!(token.expose(), "e30.e30.AA"),
            _ => panic!("the token is not read"),
        }
        assert!(matches!(of(None, path(), None), Ok(Some(Held::Key(_)))));
        for (user, key_file, flag) in
            [(Some("joe"), None, "--token-file"), (None, path(), "--key-file"), (Some("joe"), path(), "--key-file")]
        {
            match of(user, key_file, path()) {
                Err(Failure::Usage(text)) => assert!(text.contains(flag) && !text.contains("e30"), "{text}"),
                _ => panic!("{user:?} is taken beside a token"),
            }
        }
        std::fs::write(&file, "x".repeat(limits::TOKEN_BYTES_MAX + 1)).expect("written");
        assert!(matches!(of(None, None, path()), Err(Failure::Usage(_))), "too long for a token");
        std::fs::remove_file(&file).expect("removed");
    }
}
