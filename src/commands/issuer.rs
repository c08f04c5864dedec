//! `veena issuer`: whose bearer tokens are taken. For operators.

use clap::Subcommand;
use veena_client::bodies::{PutTokenIssuer, TokenIssuer};

use super::Global;
use crate::flags;
use crate::output::{self, Failure, Outcome};

/// What to do with the issuer of tokens.
#[derive(Debug, Subcommand)]
pub enum IssuerCommand {
    /// Say whose tokens are taken, and by which public keys they are known. A key that is not in the file is not good any more.
    Set {
        /// A file with issuer, audience and keys (JSON), the keys as in a JWKS; - is the standard input.
        file: String,
    },
    /// Show whose tokens are taken.
    Show,
    /// Take nobody's tokens any more.
    #[command(visible_alias = "delete")]
    Rm {
        /// Do not ask.
        #[arg(short, long)]
        force: bool,
    },
}

/// Runs one of them.
pub async fn run(global: &Global, command: IssuerCommand) -> Outcome {
    let client = global.client()?;
    match command {
        IssuerCommand::Set { file } => {
            let issuer = read(&file, &flags::read_file_now(&file)?)?;
            show(global, &client.put_token_issuer(&issuer).await?)
        }
        IssuerCommand::Show => show(global, &client.token_issuer().await?),
        IssuerCommand::Rm { force } => {
            if !force {
                match output::confirm("Take nobody's tokens any more?")? {
                    Some(true) => {}
                    Some(false) => return Err(Failure::Failed(anyhow::anyhow!("not deleted"))),
                    None => return Err(Failure::Usage("nobody can be asked here: say -f to delete the issuer".to_owned())),
                }
            }
            client.delete_token_issuer().await?;
            if global.json { Ok(()) } else { output::line("nobody's tokens are taken") }
        }
    }
}

/// What the file says. One with a private key is not sent anywhere.
fn read(path: &str, bytes: &[u8]) -> Result<PutTokenIssuer, Failure> {
    serde_json::from_slice(bytes).map_err(|error| Failure::Usage(format!("{path} has no issuer of tokens: {error}")))
}

fn show(global: &Global, issuer: &TokenIssuer) -> Outcome {
    if global.json { output::json(issuer) } else { output::line(words(issuer)) }
}

fn words(issuer: &TokenIssuer) -> String {
    let kids: Vec<&str> = issuer.keys.iter().map(|key| key.kid.as_str()).collect();
    let TokenIssuer { issuer, audience, revision, .. } = issuer;
    format!("tokens of {issuer} for {audience} are taken, by the keys {} (revision {revision})", kids.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_is_shown_as_json_and_a_private_key_is_not_sent() {
        let text =
            r#"{"issuer":"https://id.example","audience":"veena","keys":[{"kty":"OKP","crv":"Ed25519","kid":"a","x":"AA"}],"revision":3}"#;
        let shown: TokenIssuer = serde_json::from_str(text).expect("an issuer");
        assert_eq!(words(&shown), "tokens of https://id.example for veena are taken, by the keys a (revision 3)");
        let read_back = read("f", &serde_json::to_vec(&shown).expect("JSON")).expect("it may be set again");
        assert_eq!((read_back.revision, read_back.keys.len()), (Some(3), 1));
        match read("f", text.replace(r#""x""#, r#""d":"canary","x""#).as_bytes()) {
            Err(Failure::Usage(text)) => assert!(text.contains("unknown field `d`") && !text.contains("canary"), "{text}"),
            _ => panic!("a private key is taken"),
        }
    }
}
